"""`d2lpar.sharding`: three stages, each equal to one device, each at its exact cost."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar
from d2lpar import sharding as s

RANKS = (1, 2, 3, 4, 5, 8)
STAGES = {1: s.ZeRO1, 2: s.ZeRO2, 3: s.FSDP}
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
STEPS, N = 3, 10


class Net(nn.Module):
    """Tied weights (tokens and head), frozen weights alone and in company."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 11)
        self.first = nn.Sequential(nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 11))
        self.frozen = nn.Linear(11, 11)
        self.second = nn.Sequential(nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 11))
        self.head = nn.Linear(11, 7, bias=False)
        self.head.weight = self.tokens.weight
        self.frozen.requires_grad_(False)
        self.second[0].requires_grad_(False)

    def forward(self, tokens):
        h = self.tokens(tokens).sum(1)  # [N, 11]
        h = h + self.first(h)
        h = torch.sin(self.frozen(h))
        return self.head(h + self.second(h))  # [N, 7]


def make_net(kind=Net):
    """The same weights on every rank and in the serial truth."""
    torch.manual_seed(1)
    return kind().double()


def batch(step, rows=N):
    generator = torch.Generator(device="cpu").manual_seed(step)
    tokens = torch.randint(7, (rows, 4), generator=generator, device="cpu")
    return tokens, torch.randint(7, (rows,), generator=generator, device="cpu")


def serial(optimizer, rows=N):
    """(gradients of each step, parameters at the end), by name, on one device."""
    net, steps = make_net(), []
    stepper = OPTIMIZERS[optimizer](net.parameters())
    for step in range(STEPS):
        x, y = batch(step, rows)
        stepper.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        named = net.named_parameters()
        steps.append({name: p.grad.clone() for name, p in named if p.requires_grad})
        stepper.step()
    return steps, {name: p.detach() for name, p in net.named_parameters()}


def whole(flat, vector):
    """The parts of a vector of which each rank has a shard."""
    full = vector.new_empty(flat.n * flat.k)
    dist.all_gather_into_tensor(full, vector.detach().contiguous())
    return [part.clone() for part in s.parts(flat, full)]


def by_name(net, flats, attribute):
    """What the flats have, in whole tensors, by the names of the parameters."""
    names = {id(p): name for name, p in net.named_parameters()}
    found = {}
    for flat in flats:
        for p, x in zip(flat.params, whole(flat, getattr(flat, attribute)), strict=True):
            found[names[id(p)]] = x
    return found


def mine(x):
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def train(stage, optimizer, rows=N, units=None, **options):
    """What `serial` gives, by a sharded model; a rank has its share of the rows."""
    net, steps = make_net(), []
    units = units and [net.get_submodule(name) for name in units]
    model = STAGES[stage](net, units, **options)
    stepper = OPTIMIZERS[optimizer](model.shards)
    for step in range(STEPS):
        x, y = map(mine, batch(step, rows))
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (loss * dist.get_world_size() / rows).backward()
        model.finish()
        steps.append(by_name(net, model.trained, "grad"))
        assert all(p.grad is None for p in net.parameters())
        model.step(stepper)
    if stage < 3:
        assert all(p.numel() for p in net.parameters())
        return steps, {name: p.detach() for name, p in net.named_parameters()}
    assert all(s.is_released(flat) for flat in model.flats)
    return steps, by_name(net, model.flats, "own")


def assert_equal(found, truth):
    for (steps, end), (true_steps, true_end) in ((found, truth),):
        for a, b in zip([*steps, end], [*true_steps, true_end], strict=True):
            assert a.keys() == b.keys()
            for name in a:
                gap = (a[name] - b[name]).abs().max().item()
                assert gap < 1e-10, name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("n", RANKS)
def test_every_gradient_and_parameter_is_one_devices(n, stage, optimizer):
    run = d2lpar.run(train, stage, optimizer, world_size=n, backend="sim")
    for found in run.results:
        assert_equal(found, serial(optimizer))
    assert run.warnings == []


@pytest.mark.parametrize("stage", STAGES)
def test_stages_on_processes(stage):
    run = d2lpar.run(train, stage, "adam", world_size=3, backend="gloo")
    for found in run.results:
        assert_equal(found, serial("adam"))
