"""Network partition: a network that is cut anywhere is one device's."""

import math
import operator
import random
from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import d2lpar
from conftest import Takes
from d2lpar.checks.solutions import ex_11_3
from d2lpar.network_partition import Part, balance, layers, way_back
from d2lpar.network_partition.balance import best_cuts, part_bytes, sizes
from d2lpar.network_partition.layers import Conv, Layer, Whole, comes_in, unet
from d2lpar.shared.data import shapes
from d2lpar.sim.cluster import Cluster

DOUBLE = {"dtype": torch.float64}
close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def run(fn, *args, n=2, backend="sim", **how):
    return d2lpar.run(fn, *args, world_size=n, backend=backend, **how)


class Adds(nn.Module):
    """A linear layer of the sum of its inputs, with a tied weight inside."""

    def __init__(self, D):
        super().__init__()
        self.one = nn.Linear(D, D, **DOUBLE)
        self.two = nn.Linear(D, D, bias=False, **DOUBLE)
        self.two.weight = self.one.weight

    def forward(self, *values):
        return torch.tanh(self.two(torch.tanh(self.one(sum(values)))))


# Value 0 is taken by layers 1, 3 and 5, the input by 0, 2 and 5; nobody needs 4.
#
#     layer     0      1     2      3        4     5            6
WEB_NEEDS = [(-1,), (0,), (1, -1), (0, 2), (3,), (3, 0, -1), (5, 2)]
WEB = [Layer(f"web {i}", partial(Adds, 3), x) for i, x in enumerate(WEB_NEEDS)]
UNET = unet((2, 3, 4), **DOUBLE)
FROZEN = (0, 3)


class Looks(nn.Module):
    """Words and a shift, which comes from the input a second time."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3, **DOUBLE)

    def forward(self, h, tokens):
        return h + self.table(tokens).sum(1)


NETS = {
    "web": WEB,
    "input": WEB,  # which has a gradient
    "unet": UNET,
    "normed": unet((2, 3), norm=nn.BatchNorm2d, **DOUBLE),
    "frozen": UNET,
    "words": [  # integers, without a gradient
        Layer("first", partial(nn.Embedding, 7, 3, **DOUBLE), (-1,)),
        Layer("flat", nn.Flatten, (0,)),
        Layer("line", partial(nn.Linear, 6, 3, **DOUBLE), (1,)),
        Layer("again", Looks, (2, -1)),
    ],
}


def batch(kind, N):
    if kind in ("unet", "normed", "frozen"):
        return shapes(N, 8, seed=N, **DOUBLE)
    made = torch.Generator().manual_seed(N)
    x, y = torch.randn(2, N, 3, generator=made, **DOUBLE).unbind()
    words = torch.randint(7, (N, 2), generator=made)
    return words if kind == "words" else x.requires_grad_(kind == "input"), y


def loss_of(out, y):
    return F.cross_entropy(out, y) if y.dtype == torch.int64 else F.mse_loss(out, y)


def step(model, x, loss_of):
    """One step of the whole network or of a part: its loss, or None."""
    out = model(x)
    loss = None if out is None else loss_of(out)
    loss.backward() if isinstance(model, Whole) else model.backward(loss)
    return loss


def trained(kind, N, cuts=None, size=None):
    """(losses, what each layer has then, the input's gradient) of three steps."""
    net, losses = NETS[kind], []
    model = Whole(net) if cuts is None else Part(net, cuts, size)
    for i, layer in enumerate(model.layers, getattr(model, "first", 0)):
        layer.requires_grad_(kind != "frozen" or i not in FROZEN)
    trainable = [p for p in model.parameters() if p.requires_grad]
    # The gradient of a bias before a batch norm is 0 but for rounding, and with a tiny
    # eps Adam would divide rounding by rounding.
    optimizer = torch.optim.Adam(trainable, lr=0.01, eps=1e-4) if trainable else None
    for k in range(3):
        x, y = batch(kind, N + k)
        model.zero_grad()
        loss = step(model, x, partial(loss_of, y=y))
        losses.append(0.0 if loss is None else loss.item())
        if optimizer:
            optimizer.step()
    have = [
        [(p.detach(), p.grad) for p in layer.parameters()] + [*layer.buffers()]
        for layer in model.layers
    ]
    return losses, have, x.grad


CUTS = {
    "web": [[], [1], [3], [6], [1, 2], [2, 5], [1, 3, 5], [2, 3, 6]],
    "unet": [[], [4], [7], [12], [3, 8], [6, 7], [2, 6, 10], [1, 4, 11]],
    "normed": [[3], [1, 5]],
    "frozen": [[2], [1, 4], [4, 5, 9]],
    "words": [[3], [1, 2], [1, 2, 3]],
    "input": [[], [2], [1, 5]],
}


@pytest.mark.parametrize(
    ("kind", "cuts", "N", "backend"),
    [
        *((kind, cuts, 5, "sim") for kind, some in CUTS.items() for cuts in some),
        *(("input", [*two], 1, "sim") for two in combinations(range(1, 7), 2)),
        *(("unet", cuts, 5, "gloo") for cuts in ([], [4], [3, 8], [2, 6, 10])),
        ("web", [1, 3, 5], 5, "gloo"),
        ("normed", [3], 5, "gloo"),
        ("frozen", [1, 4], 5, "gloo"),
    ],
)
def test_three_steps_are_those_of_one_device(kind, cuts, N, backend):
    size = sizes(NETS[kind], batch(kind, N)[0].detach())
    losses, have, gradient = trained(kind, N)
    n = len(cuts) + 1
    made = run(trained, kind, N, cuts, size, n=n, backend=backend)
    summed, parts, inputs = zip(*made.results, strict=True)
    summed = [sum(part) for part in zip(*summed, strict=True)]
    assert summed == pytest.approx(losses, rel=1e-10)
    close((sum(parts, []), inputs[0]), (have, gradient))
    assert made.warnings == [] and (backend != "sim" or made.unwaited == [])
    if kind == "unet":  # a value goes once to each part that takes it
        ends = [0, *cuts, len(UNET)]
        crossing = [v for a, b in pairwise(ends) for v in comes_in(UNET, a, b)]
        of_a_row = sum(size[v].out // N for v in crossing)
        assert sum(made.bytes_sent) == 2 * of_a_row * (3 * N + 3)
        assert sum(made.messages) == 3 * 2 * len(crossing)


def unet_by_hand(model, x):
    """Three levels, with one name for each layer."""
    a, b, c, d, e, f, g, h, i, j, k, l, m = model.layers  # noqa: E741
    conv = lambda layer, x: F.relu(layer.conv(x))
    top = conv(b, conv(a, x))
    middle = conv(d, conv(c, F.max_pool2d(top, 2)))
    low = conv(f, conv(e, F.max_pool2d(middle, 2)))
    up = conv(i, conv(h, torch.cat([middle, g(low)], dim=1)))
    return m(conv(l, conv(k, torch.cat([top, j(up)], dim=1))))


def test_the_list_of_layers_is_the_unet_that_it_says():
    (x, y), whole = batch("unet", 2), Whole(UNET)
    outs = whole(x), unet_by_hand(whole, x)
    grads = [torch.autograd.grad(loss_of(o, y), [*whole.parameters()]) for o in outs]
    close(*grads, atol=1e-14)


def test_layers_leave_the_random_state_and_follow_the_seed():
    state = torch.get_rng_state()
    one, other = (layers.build(UNET, seed=seed)[0].conv.weight for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state) and not torch.equal(one, other)


def test_what_crosses_a_cut_and_in_which_order():
    """The picture on top of the module."""
    needs = (-1,), (0,), (1,), (2, 1), (3, 0), (4,)
    six = [Layer(str(i), nn.Identity, x) for i, x in enumerate(needs)]
    assert way_back(six, 3, 6) == [0, 2, 1]
    come = [comes_in(six, c, 6) for c in range(6)]
    assert come == [[], [0], [0, 1], [0, 1, 2], [0, 3], [4]]
    assert comes_in(WEB, 2, 4) == [-1, 0, 1]
    assert way_back(WEB, 2, 4) == [0, 1, -1]


class Nothing(nn.Module):
    """Its gradient does not exist: it takes the value and makes zeros."""

    def forward(self, x):
        return torch.zeros_like(x, requires_grad=True)


def test_a_value_without_influence_has_a_gradient_of_zeros():
    line, x = partial(nn.Linear, 3, 3), torch.ones(2, 3)
    net = layers.chain(line, Nothing, line)

    def without_influence():
        for cuts in ([1], [2]):
            part = Part(net, cuts, sizes(net, x))
            step(part, x, torch.sum)
        return [p.grad is not None and bool(p.grad.any()) for p in part.parameters()]

    made = run(without_influence)
    assert made.results == [[False, False], [False, True]]  # of what Nothing makes


def test_forward_alone_and_another_number_of_rows():
    x, _ = batch("unet", 3)
    size = sizes(UNET, x)

    @torch.no_grad()
    def forwards_only():
        part = Part(UNET, [5], size)
        return [part(x), part(x[:2])]

    made = run(forwards_only)
    truth = Whole(UNET)(x).detach()
    torch.testing.assert_close(made.results[1], [truth, truth[:2]])
    assert made.results[0] == [None, None] and made.unwaited == []


@pytest.mark.parametrize(
    ("cuts", "side", "text"),
    [
        ([4, 4], 8, r"Cuts rise from 1 to 12 here, not \[4, 4\]"),
        ([0], 8, r"Cuts rise from 1 to 12"),
        ([13], 8, r"Cuts rise from 1 to 12"),
        ([3, 8], 8, "3 parts do not fit 2 ranks"),
        ([], 8, "1 parts do not fit 2 ranks"),
        ([5], 16, r"\[3, 2, 8, 8\]; `sizes` said"),
    ],
)
def test_cuts_and_sizes_that_do_not_fit_are_refused(cuts, side, text):
    size = sizes(UNET, torch.zeros(1, 1, side, side, **DOUBLE))
    with pytest.raises(d2lpar.RankError, match=text):
        run(trained, "unet", 3, cuts, size)


def test_pictures_that_cannot_be_halved_are_refused():
    with pytest.raises(ValueError, match="halved evenly on each level"):
        Whole(UNET)(torch.zeros(1, 1, 10, 10, **DOUBLE))
    assert Whole(UNET)(torch.zeros(1, 1, 12, 8, **DOUBLE)).shape == (1, 3, 12, 8)


# What layers cost


def test_sizes_count_what_autograd_keeps():
    """A ReLU keeps its value; pooling its indices; a concatenation is new."""
    net = [
        Layer("line", partial(nn.Conv2d, 1, 2, 1, **DOUBLE), (-1,)),  # keeps nothing
        Layer("conv", partial(Conv, 2, 4, **DOUBLE), (0,)),
        Layer("pool", partial(Conv, 4, 4, pool=True, **DOUBLE), (1,)),
        Layer("up", partial(nn.ConvTranspose2d, 4, 4, 2, stride=2, **DOUBLE), (2,)),
        Layer("join", partial(Conv, 8, 1, **DOUBLE), (3, 1)),
    ]
    N, S = 3, 8
    found = sizes(net, torch.zeros(N, 1, S, S, **DOUBLE))
    full, small = N * S * S * 8, N * S * S * 2  # bytes of one channel
    assert [s.out for s in found] == [2 * full, 4 * full, 4 * small, 4 * full, full]
    pooled = 3 * 4 * small  # what is pooled, where it was, and the value
    assert [s.kept for s in found] == [0, 4 * full, pooled, 0, 8 * full + full]
    assert [s.weights for s in found] == [8 * x for x in (4, 76, 148, 68, 73)]
    assert found[2].row == (4, 4, 4) and found[2].dtype == torch.float64


def whole_time(net, x):
    model = Whole(net)
    start = d2lpar.now()
    out = model(x)
    middle = d2lpar.now()
    out.backward(torch.empty_like(out))
    return middle - start, d2lpar.now() - middle


def test_seconds_of_the_layers_add_up_to_those_of_the_network():
    x, net = shapes(4, 16)[0], unet((4, 8))
    first = lambda fn, **how: run(fn, net, x, n=1, **how).results[0]
    where, times = {"cluster": Cluster.of("2xRTX2070")}, balance.layer_seconds
    each, whole = first(times, **where), first(whole_time, **where)
    forward, backward = map(sum, zip(*each, strict=True))
    assert forward == pytest.approx(whole[0], rel=0.01)
    assert backward == pytest.approx(whole[1], rel=0.1)  # gradients of skips add up
    real = first(times, backend="gloo")
    assert len(real) == len(net) and all(t > 0 for both in real for t in both)


@pytest.mark.parametrize("cuts", [[], [2], [6], [4, 10]])
def test_bytes_of_a_part_are_near_the_counted_peak(cuts):
    """The peak has, besides, what travels, and what one layer's pass needs."""
    net, x = unet((16, 32, 64)), torch.empty(4, 1, 64, 64, device="meta")
    size, n = sizes(net, x), len(cuts) + 1

    def two_steps():
        part = Part(net, cuts, size)
        optimizer = torch.optim.Adam(part.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            target = torch.zeros(len(x), 64, 64, dtype=int)
            step(part, x, partial(F.cross_entropy, target=target))
            optimizer.step()

    counted = run(two_steps, n=n, device="meta").peak_memory
    ends, cost = [0, *cuts, len(net)], part_bytes(net, size)
    crossing = [comes_in(net, a, b) for a, b in pairwise(ends)]
    for r in range(n):
        mine = range(ends[r], ends[r + 1])
        moved = [v for come in crossing for v in come if v in mine] + crossing[r]
        needs = [[v for v in net[i].needs if v >= 0] for i in mine]
        taken = [sum(size[v].out for v in x) for x in needs]
        work = [2 * size[i].out + t for i, t in zip(mine, taken, strict=True)]
        least = cost(mine.start, mine.stop)
        most = least + sum(size[v].out for v in moved) + max(work)
        assert least <= counted[r] < 1.06 * most


# The partitioner against all ways to cut


def value_of(cost, cuts, L, total):
    value = 0
    for a, b in pairwise([0, *cuts, L]):
        value = total(value, cost(a, b))
    return value


def least_of_all(cost, L, p, total=max):
    every = combinations(range(1, L), p - 1)
    return min(value_of(cost, cuts, L, total) for cuts in every)


@pytest.mark.parametrize("total", [max, operator.add])
def test_no_way_to_cut_is_better(total):
    draw = random.Random(0)
    for _ in range(60):
        L = draw.randint(1, 9)
        costs = [draw.randint(0, 12) for _ in range(L)]
        link = [draw.randint(0, 9) for _ in range(L + 1)]
        limit = draw.choice([math.inf, 25, 15])

        def cost(a, b, costs=costs, link=link, limit=limit):
            work = sum(costs[a:b]) + (link[a] if a else 0)
            return work if sum(costs[a:b]) <= limit else math.inf

        for p in (0, L + 1):
            with pytest.raises(ValueError, match=f"{L} layers cannot make {p} parts"):
                best_cuts(cost, L, p)
        for p in range(1, L + 1):
            least = least_of_all(cost, L, p, total)
            if least == math.inf:
                with pytest.raises(ValueError, match="is allowed"):
                    best_cuts(cost, L, p, total)
            else:
                value, cuts = best_cuts(cost, L, p, total)
                assert value == least == value_of(cost, cuts, L, total)
                assert len(cuts) == p - 1


def test_a_limit_and_messages_change_the_best_cut():
    net = unet((4, 8, 16))
    size, L = sizes(net, torch.zeros(2, 1, 16, 16)), len(net)
    plain = balance.part_seconds(net, [1.0] * L)
    slow = balance.part_seconds(net, [1.0] * L, size, 0.1, 1e-4)
    assert best_cuts(plain, L, 2) == (7, [6])
    come = comes_in(net, 6, L)
    moved = sum(size[v].out for v in come)
    assert slow(6, L) == pytest.approx(7 + 2 * (0.3 + 1e-4 * moved))
    assert slow(0, 6) == 6 and come == [1, 3, 5]
    value, _ = best_cuts(slow, L, 2)
    assert value == least_of_all(slow, L, 2) < max(slow(0, 6), slow(6, L))
    bytes_of = part_bytes(net, size)
    least, _ = best_cuts(bytes_of, L, 2)
    dearer, cuts = best_cuts(balance.within(slow, bytes_of, least), L, 2)
    assert max(bytes_of(0, cuts[0]), bytes_of(cuts[0], L)) == least
    assert dearer > value
    with pytest.raises(ValueError, match="into 2 is allowed"):
        best_cuts(balance.within(plain, bytes_of, least - 1), L, 2)


class Timed(nn.Module):
    """It takes its times, and makes a row of so many numbers."""

    def __init__(self, numbers, *times):
        super().__init__()
        self.times, self.numbers = times, numbers
        self.weight = nn.Parameter(torch.ones(1, **DOUBLE))

    def forward(self, *values):
        total = sum(value.sum(1, keepdim=True) for value in values) * self.weight
        return Takes.apply(total.expand(-1, self.numbers), *self.times)


def test_the_predicted_seconds_of_a_step_are_those_of_the_simulator():
    """What exercise 11.3 expects is what `Part` takes, with free latency."""
    x = torch.ones(1, 1, **DOUBLE)
    cluster = Cluster.ideal(2, alpha=0.0, beta=1 / 8000)  # seconds for each byte
    for case in ex_11_3.cases(np.random.default_rng(5)):
        forward, backward, needs, moved, cut = case.inputs[0]
        numbers = [max(1, round(1000 * seconds)) for seconds in moved]
        moved = [n / 1000 for n in numbers]
        expected = ex_11_3.seconds_of_a_step(forward, backward, needs, moved, cut)
        rows = zip(numbers, forward, backward, needs, strict=True)
        net = [Layer("timed", partial(Timed, *what), need) for *what, need in rows]
        size = run(sizes, net, x, n=1).results[0]

        def timed_step(net=net, cut=cut, size=size):
            step(Part(net, [cut], size), x, torch.sum)
            return d2lpar.now()

        found = run(timed_step, cluster=cluster).results[0]
        assert found == pytest.approx(expected, rel=1e-9), case.call
