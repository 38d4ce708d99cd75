"""`d2lpar.sharding.checkpoint`: recomputing changes no gradient, and no run is lost."""

import os
import signal

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


# Saving


def journey(folder, stage, steps, die=None):
    """Train, save after each step; `die`(rank, step) may end the process."""
    net = make_net()
    model = STAGES[stage](net, list(net.blocks))
    optimizer = torch.optim.Adam(model.shards, lr=0.01)
    start = c.load(folder, model, optimizer)
    for k in range(start, steps):
        one_step(model, optimizer, k)
        if die is not None:
            die(dist.get_rank(), k + 1)
        c.save(folder, k + 1, model, optimizer)
    return start, ends(model), torch.rand(2)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("n", [1, 3])
def test_a_resumed_run_ends_as_an_uninterrupted_one(stage, n, tmp_path):
    at = {"world_size": n, "backend": "sim"}
    whole = d2lpar.run(journey, tmp_path / "a", stage, 5, **at).results
    first = d2lpar.run(journey, tmp_path / "b", stage, 2, **at).results
    later = d2lpar.run(journey, tmp_path / "b", stage, 5, **at).results
    for a, b, c_ in zip(whole, first, later, strict=True):
        assert (a[0], b[0], c_[0]) == (0, 0, 2)
        assert same(a[1], c_[1]) and torch.equal(a[2], c_[2])
        assert not same(b[1], c_[1])


def kill_between_steps(rank, step):
    if (rank, step) == (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_killed_run_resumes(stage, tmp_path):
    at = {"world_size": 2, "backend": "gloo"}
    whole = d2lpar.run(journey, tmp_path / "a", stage, 5, **at).results
    with pytest.raises(d2lpar.RankError, match="SIGKILL"):
        d2lpar.run(journey, tmp_path / "b", stage, 5, kill_between_steps, **at)
    assert c.complete(tmp_path / "b") == [1, 2]
    later = d2lpar.run(journey, tmp_path / "b", stage, 5, **at).results
    for a, b in zip(whole, later, strict=True):
        assert b[0] == 2 and same(a[1], b[1])


class Deadly:
    """A number that kills its process when it is about to be written."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing(folder, stage):
    net = make_net()
    model = STAGES[stage](net, list(net.blocks))
    optimizer = torch.optim.Adam(model.shards, lr=0.01)
    for k in range(3):
        one_step(model, optimizer, k)
        if (dist.get_rank(), k) == (1, 2):
            optimizer.param_groups[0]["end"] = Deadly()
        c.save(folder, k + 1, model, optimizer)


def test_a_half_written_checkpoint_is_never_loaded(tmp_path):
    at = {"world_size": 2, "backend": "gloo"}
    with pytest.raises(d2lpar.RankError, match="SIGKILL"):
        d2lpar.run(die_while_writing, tmp_path, 3, **at)
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == ["step-1", "step-2", "step-3.part"]
    assert c.complete(tmp_path) == [1, 2]
    whole = d2lpar.run(journey, tmp_path / "whole", 3, 5, **at).results
    later = d2lpar.run(journey, tmp_path, 3, 5, **at).results
    for a, b in zip(whole, later, strict=True):
        assert b[0] == 2 and same(a[1], b[1])
    assert c.complete(tmp_path) == [1, 2, 3, 4, 5]


def test_other_ranks_other_models_and_old_steps_are_refused(tmp_path):
    d2lpar.run(journey, tmp_path, 3, 2, world_size=2, backend="sim")
    with pytest.raises(d2lpar.RankError, match="no rank-0-of-3.pt, but rank-0-of-2"):
        d2lpar.run(journey, tmp_path, 3, 3, world_size=3, backend="sim")
    with pytest.raises(d2lpar.RankError, match="a model with other shards"):
        d2lpar.run(another, tmp_path, world_size=2, backend="sim")
    with pytest.raises(d2lpar.RankError, match="a checkpoint of step 2 already"):
        d2lpar.run(another, tmp_path, 2, world_size=2, backend="sim")


def another(folder, step=None):
    model = s.FSDP(make_net())
    optimizer = torch.optim.Adam(model.shards)
    if step is None:
        return c.load(folder, model, optimizer)
    return c.save(folder, step, model, optimizer)


@pytest.mark.parametrize("stage", STAGES)
def test_mixed_precision_is_saved_wide(stage, tmp_path):
    at = {"world_size": 2, "backend": "sim"}
    whole = d2lpar.run(wide_journey, tmp_path / "a", stage, 4, **at).results
    d2lpar.run(wide_journey, tmp_path / "b", stage, 2, **at)
    later = d2lpar.run(wide_journey, tmp_path / "b", stage, 4, **at).results
    assert all(map(same, whole, later))


def wide_journey(folder, stage, steps):
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = STAGES[stage](net, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.shards, lr=0.01)
    for k in range(c.load(folder, model, optimizer), steps):
        model(torch.full((4, 8), 0.1 * k)).square().mean().backward()
        model.finish()
        model.step(optimizer)
        c.save(folder, k + 1, model, optimizer)
    return [flat.shard.detach() for flat in model.flats]
