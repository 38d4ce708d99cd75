"""`d2lpar.sharding.checkpoint`: recomputing changes no gradient."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar
from d2lpar import sharding as s
from d2lpar.sharding import checkpoint as c

STAGES = {1: s.ZeRO1, 2: s.ZeRO2, 3: s.FSDP}


class Net(nn.Module):
    """Four blocks with dropout and batch norm, each of which can be recomputed."""

    def __init__(self, recompute=False):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5))
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.norm = nn.BatchNorm1d(8)
        self.recompute = recompute

    def forward(self, x):
        for block in self.blocks:
            x = c.recompute(block, x) if self.recompute else block(x)
        return self.norm(x)


def make_net(recompute=False):
    torch.manual_seed(1)
    return Net(recompute).double()


def gradients(recompute):
    net = make_net(recompute)
    torch.manual_seed(2)
    x = torch.linspace(-1, 1, 48, dtype=torch.float64).view(6, 8).requires_grad_()
    net(x).pow(3).sum().backward()
    return [x.grad, *(p.grad for p in net.parameters()), torch.rand(3)]


def test_recomputing_changes_no_gradient_and_no_random_number():
    for a, b in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(a, b)


def test_integers_and_several_inputs_are_passed_through():
    table = nn.Embedding(5, 3)
    other = torch.ones(2, 3, requires_grad=True)
    c.recompute(lambda i, y: table(i) * y, torch.tensor([1, 4]), other).sum().backward()
    assert torch.equal(other.grad, table.weight[[1, 4]])
    assert table.weight.grad.sum() == 6


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        assert not c.recompute(nn.Linear(2, 2), torch.ones(1, 2)).requires_grad


def deep(recompute, rows=1000):
    widen = lambda: nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
    layers = [widen() for _ in range(8)]
    x = torch.ones(rows, 16)
    for layer in layers:
        x = c.recompute(layer, x) if recompute else layer(x)
    x.sum().backward()


def test_recomputing_needs_less_memory():
    plain, lean = (
        d2lpar.run(deep, again, world_size=1, backend="sim").peak_memory[0] / 64_000
        for again in (False, True)
    )
    assert 8 * 5 < plain < 8 * 5 + 11  # what enters, and 4 times as wide, 8 times
    assert 8 + 4 < lean < plain / 2  # what enters, 8 times, and one wide one at work


def three_steps(stage, recompute, outside=True):
    net = make_net(recompute)
    units = list(net.blocks) if outside else [block[0] for block in net.blocks]
    model = STAGES[stage](net, units)
    optimizer = torch.optim.SGD(model.shards, lr=0.1)
    for k in range(3):
        one_step(model, optimizer, k)
    return ends(model)


def one_step(model, optimizer, k):
    x = torch.linspace(-1, 1 + k, 48, dtype=torch.float64).view(6, 8)
    x = x.roll(dist.get_rank(), 0)
    model(x).pow(3).mean().backward()
    model.finish()
    model.step(optimizer)


def ends(model):
    """Parameters and buffers."""
    found = []
    for flat in model.flats:
        full = flat.own.new_empty(flat.n * flat.k)
        dist.all_gather_into_tensor(full, flat.own.contiguous())
        found += [full.clone()]
    return [*found, *model.model.buffers()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_recomputed_blocks_can_be_sharded(stage):
    plain = d2lpar.run(three_steps, stage, False, world_size=3, backend="sim")
    again = d2lpar.run(three_steps, stage, True, world_size=3, backend="sim")
    assert all(map(same, plain.results, again.results))


def test_parts_of_recomputed_blocks_can_be_sharded():
    run = d2lpar.run(three_steps, 3, True, False, world_size=2, backend="sim")
    truth = d2lpar.run(three_steps, 1, True, False, world_size=2, backend="sim")
    assert all(map(same, truth.results, run.results))
