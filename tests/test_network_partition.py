"""Network partition: a network that is cut anywhere is one device's."""

import itertools
import math
import operator
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar
from conftest import Takes
from d2lpar.checks.solutions import ex_11_3
from d2lpar.network_partition import Part, way_back
from d2lpar.network_partition.balance import (
    best_cuts,
    layer_seconds,
    part_bytes,
    part_seconds,
    sizes,
    within,
)
from d2lpar.network_partition.layers import (
    Conv,
    Layer,
    Whole,
    build,
    chain,
    comes_in,
    unet,
)
from d2lpar.shared.data import shapes
from d2lpar.sim.cluster import Cluster

DOUBLE = {"dtype": torch.float64}


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
NORMED = unet((2, 3), norm=nn.BatchNorm2d, **DOUBLE)
FROZEN = (0, 3)


def pictures(N):
    x, y = shapes(N, 8, seed=N, **DOUBLE)
    return x, y


def rows(N):
    made = torch.Generator().manual_seed(N)
    return torch.randn(2, N, 3, generator=made, **DOUBLE).unbind()


def loss_of(out, y):
    return F.cross_entropy(out, y) if y.dtype == torch.int64 else F.mse_loss(out, y)


def batches(kind, N):
    return [(rows if kind == "web" else pictures)(N + k) for k in range(3)]


NETS = {"web": WEB, "unet": UNET, "normed": NORMED, "frozen": UNET}


def trained(kind, N, model, net, run):
    """(losses, {name: (value, gradient)}, buffers) after three steps."""
    first = getattr(model, "first", 0)
    if kind == "frozen":
        for i in range(len(model.layers)):
            model.layers[i].requires_grad_(first + i not in FROZEN)
    trainable = [p for p in model.parameters() if p.requires_grad]
    # The gradient of a bias before a batch norm is 0 but for rounding, and with a tiny
    # eps Adam would divide rounding by rounding.
    optimizer = torch.optim.Adam(trainable, lr=0.01, eps=1e-4) if trainable else None
    losses = []
    for x, y in batches(kind, N):
        model.zero_grad()
        losses.append(run(model, x, y))
        if optimizer:
            optimizer.step()
    named = model.layers.named_parameters()
    values = {_named(k, first): (p.detach(), p.grad) for k, p in named}
    buffers = {_named(k, first): b for k, b in model.layers.named_buffers()}
    return losses, values, buffers


def _named(name, first):
    number, _, rest = name.partition(".")
    return f"{int(number) + first}.{rest}"


def alone(model, x, y):
    loss = loss_of(model(x), y)
    loss.backward()
    return loss.item()


def together(model, x, y):
    out = model(x)
    loss = None if out is None else loss_of(out, y)
    model.backward(loss)
    return 0.0 if loss is None else loss.item()


def on_ranks(kind, N, cuts, size):
    net = NETS[kind]
    return trained(kind, N, Part(net, cuts, size), net, together)


def check(kind, cuts, N=5, backend="sim"):
    net = NETS[kind]
    size = sizes(net, batches(kind, N)[0][0])
    losses, values, buffers = trained(kind, N, Whole(net), net, alone)
    n = len(cuts) + 1
    run = d2lpar.run(on_ranks, kind, N, cuts, size, world_size=n, backend=backend)
    summed = [sum(part) for part in zip(*(x[0] for x in run.results), strict=True)]
    assert summed == pytest.approx(losses, rel=1e-10)
    found = {k: v for _, mine, _ in run.results for k, v in mine.items()}
    assert found.keys() == values.keys()
    for name, (value, gradient) in values.items():
        torch.testing.assert_close(found[name][0], value, rtol=0, atol=1e-10)
        if gradient is None:
            assert found[name][1] is None
        else:
            torch.testing.assert_close(found[name][1], gradient, rtol=0, atol=1e-10)
    seen = {k: b for _, _, mine in run.results for k, b in mine.items()}
    torch.testing.assert_close(seen, buffers, rtol=0, atol=1e-10)
    assert run.warnings == [] and (backend != "sim" or run.unwaited == [])


CUTS = {
    "web": [[], [1], [3], [6], [1, 2], [2, 5], [1, 3, 5], [2, 3, 6]],
    "unet": [[], [4], [7], [12], [3, 8], [6, 7], [2, 6, 10], [1, 4, 11]],
    "normed": [[3], [1, 5]],
    "frozen": [[2], [1, 4], [4, 5, 9]],
}
EVERY = [(kind, cuts) for kind, some in CUTS.items() for cuts in some]


@pytest.mark.parametrize(("kind", "cuts"), EVERY)
def test_three_steps_are_those_of_one_device(kind, cuts):
    check(kind, cuts)


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [("web", [1, 3, 5]), ("unet", []), ("unet", [4]), ("unet", [3, 8])]
    + [("unet", [2, 6, 10]), ("normed", [3]), ("frozen", [1, 4])],
)
def test_and_on_real_processes(kind, cuts):
    check(kind, cuts, backend="gloo")


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 7), 2)))
def test_any_two_cuts_of_a_web(cuts):
    check("web", list(cuts), N=1)


class Unet(nn.Module):
    """The same U-Net by hand, three levels with one name for each layer."""

    def __init__(self, layers):
        super().__init__()
        for i, layer in enumerate(layers):
            self.add_module("abcdefghijklm"[i], layer)

    def conv(self, letter, x):
        return F.relu(getattr(self, letter).conv(x))

    def forward(self, x):
        top = self.conv("b", self.conv("a", x))
        middle = self.conv("d", self.conv("c", F.max_pool2d(top, 2)))
        low = self.conv("f", self.conv("e", F.max_pool2d(middle, 2)))
        up = torch.cat([middle, self.g(low)], dim=1)
        up = self.conv("i", self.conv("h", up))
        up = torch.cat([top, self.j(up)], dim=1)
        return self.m(self.conv("l", self.conv("k", up)))


def test_the_list_of_layers_is_the_unet_that_it_says():
    x, y = pictures(2)
    whole, by_hand = Whole(UNET), Unet(build(UNET))
    for model in (whole, by_hand):
        loss_of(model(x), y).backward()
    for a, b in zip(whole.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-14)
    wide = unet((64, 128, 256, 512, 1024), channels=1, classes=2)
    with torch.device("meta"):
        assert sum(p.numel() for p in Whole(wide).parameters()) == 31_030_658


def test_a_layer_has_the_same_values_wherever_it_is_made():
    state = torch.get_rng_state()
    whole, part = build(UNET), build(UNET, 4, 9)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(whole[4:9].parameters(), part.parameters(), strict=True):
        assert torch.equal(a, b)
    other = build(UNET, seed=1)
    assert not torch.equal(whole[0].conv.weight, other[0].conv.weight)


SIX = [Layer(str(i), nn.Identity, x) for i, x in enumerate(
    [(-1,), (0,), (1,), (2, 1), (3, 0), (4,)]
)]  # fmt: skip


def test_what_crosses_a_cut_and_in_which_order():
    """The picture on top of the module."""
    assert comes_in(SIX, 3, 6) == [0, 1, 2]
    assert way_back(SIX, 3, 6) == [0, 2, 1]
    assert [comes_in(SIX, c, 6) for c in range(6)] == [
        [], [0], [0, 1], [0, 1, 2], [0, 3], [4],
    ]  # fmt: skip
    assert comes_in(WEB, 2, 4) == [-1, 0, 1]
    assert way_back(WEB, 2, 4) == [0, 1, -1]


def test_bytes_and_messages_are_those_of_the_formula():
    N, cuts = 5, [3, 8]
    size = sizes(UNET, pictures(N)[0])
    run = d2lpar.run(one_step, UNET, cuts, size, N, world_size=3, backend="sim")
    ends = [0, *cuts, len(UNET)]
    crossing = [v for a, b in zip(ends, ends[1:]) for v in comes_in(UNET, a, b)]  # noqa: B905
    assert sum(run.bytes_sent) == 2 * sum(size[v].out for v in crossing)
    assert sum(run.messages) == 2 * len(crossing)
    assert crossing.count(1) == 1  # the top skip goes to the last rank only


def one_step(net, cuts, size, N):
    return together(Part(net, cuts, size), *pictures(N))


# Around the network


class Looks(nn.Module):
    """Words and a shift, which comes from the input a second time."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3, **DOUBLE)

    def forward(self, h, tokens):
        return h + self.table(tokens).sum(1)


WORDS = [
    Layer("first", partial(nn.Embedding, 7, 3, **DOUBLE), (-1,)),
    Layer("mean", partial(nn.Flatten), (0,)),
    Layer("line", partial(nn.Linear, 6, 3, **DOUBLE), (1,)),
    Layer("again", Looks, (2, -1)),
]


def words_step(cuts, size):
    tokens = torch.tensor([[0, 1], [5, 6], [3, 3]])
    part = Part(WORDS, cuts, size) if cuts is not None else Whole(WORDS)
    out = part(tokens)
    loss = None if out is None else out.square().sum()
    part.backward(loss) if cuts is not None else loss.backward()
    return [p.grad for p in part.parameters()]


def test_integers_travel_and_have_no_gradient():
    size = sizes(WORDS, torch.zeros(3, 2, dtype=torch.int64))
    truth = words_step(None, None)
    for cuts in ([3], [1, 2], [1, 2, 3]):
        run = d2lpar.run(words_step, cuts, size, world_size=len(cuts) + 1)
        found = [grad for grads in run.results for grad in grads]
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-10)


def input_gradient(cuts, size):
    x, y = rows(4)
    part = Part(WEB, cuts, size)
    together(part, x.requires_grad_(), y)
    return x.grad


def test_the_gradient_of_the_input_is_on_rank_0():
    x, y = rows(4)
    size = sizes(WEB, x)
    loss_of(Whole(WEB)(x.requires_grad_()), y).backward()
    for cuts in ([], [2], [1, 5]):
        run = d2lpar.run(input_gradient, cuts, size, world_size=len(cuts) + 1)
        torch.testing.assert_close(run.results[0], x.grad, rtol=0, atol=1e-10)


class Nothing(nn.Module):
    """Its gradient does not exist: it takes the value and makes zeros."""

    def forward(self, x):
        return torch.zeros_like(x, requires_grad=True)


def without_influence():
    net = chain(partial(nn.Linear, 3, 3), Nothing, partial(nn.Linear, 3, 3))
    x = torch.ones(2, 3)
    for cuts in ([1], [2]):
        part = Part(net, cuts, sizes(net, x))
        out = part(x)
        part.backward(None if out is None else out.sum())
    return [p.grad is not None and bool(p.grad.any()) for p in part.parameters()]


def test_a_value_without_influence_has_a_gradient_of_zeros():
    run = d2lpar.run(without_influence, world_size=2)
    assert run.results == [[False, False], [False, True]]  # of what Nothing makes


def forwards_only(size):
    x, _ = pictures(3)
    with torch.no_grad():
        part = Part(UNET, [5], size)
        return [part(x), part(x[:2])]  # rows may change from call to call


def test_forward_alone_and_another_number_of_rows():
    x, _ = pictures(3)
    size = sizes(UNET, x)
    run = d2lpar.run(forwards_only, size, world_size=2, backend="sim")
    truth = Whole(UNET)(x).detach()
    torch.testing.assert_close(run.results[1], [truth, truth[:2]])
    assert run.results[0] == [None, None] and run.unwaited == []


def make_part(cuts, size, N=3):
    return together(Part(UNET, cuts, size), *pictures(N))


@pytest.mark.parametrize(
    ("cuts", "text"),
    [
        ([4, 4], r"Cuts rise from 1 to 12 here, not \[4, 4\]"),
        ([0], r"Cuts rise from 1 to 12"),
        ([13], r"Cuts rise from 1 to 12"),
        ([3, 8], "3 parts do not fit 2 ranks"),
        ([], "1 parts do not fit 2 ranks"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(cuts, text):
    size = sizes(UNET, pictures(1)[0])
    with pytest.raises(d2lpar.RankError, match=text):
        d2lpar.run(make_part, cuts, size, world_size=2, backend="sim")


def test_sizes_of_another_batch_are_refused():
    size = sizes(UNET, torch.zeros(1, 1, 16, 16, **DOUBLE))
    with pytest.raises(d2lpar.RankError, match=r"\[3, 2, 8, 8\]; `sizes` said"):
        d2lpar.run(make_part, [5], size, world_size=2, backend="sim")


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
    x = shapes(4, 16)[0]
    net = unet((4, 8))
    where = {"world_size": 1, "backend": "sim", "cluster": Cluster.of("2xRTX2070")}
    layers = d2lpar.run(layer_seconds, net, x, 1, **where).results[0]
    whole = d2lpar.run(whole_time, net, x, **where).results[0]
    forward, backward = map(sum, zip(*layers, strict=True))
    assert forward == pytest.approx(whole[0], rel=0.01)
    assert backward == pytest.approx(whole[1], rel=0.1)  # gradients of skips add up
    again = d2lpar.run(layer_seconds, net, x, 3, **where).results[0]
    torch.testing.assert_close(again, layers)
    real = d2lpar.run(layer_seconds, net, x, 2, world_size=1, backend="gloo").results[0]
    assert len(real) == len(net) and all(t > 0 for times in real for t in times)


def held(cuts, size, x):
    part = Part(unet((16, 32, 64)), cuts, size)
    optimizer = torch.optim.Adam(part.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        out = part(x)
        loss = None
        if out is not None:
            loss = F.cross_entropy(out, torch.zeros(len(x), 64, 64, dtype=int))
        part.backward(loss)
        optimizer.step()


@pytest.mark.parametrize("cuts", [[], [2], [6], [4, 10]])
def test_bytes_of_a_part_are_near_the_counted_peak(cuts):
    """The peak has, besides, what travels, and what one layer's pass needs."""
    net, x = unet((16, 32, 64)), torch.empty(4, 1, 64, 64, device="meta")
    size, n = sizes(net, x), len(cuts) + 1
    where = {"world_size": n, "backend": "sim", "device": "meta"}
    counted = d2lpar.run(held, cuts, size, x, **where).peak_memory
    ends, cost = [0, *cuts, len(net)], part_bytes(net, size)
    crossing = [comes_in(net, a, b) for a, b in zip(ends, ends[1:], strict=False)]
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


def every_way(cost, L, p, total):
    found = []
    for cuts in itertools.combinations(range(1, L), p - 1):
        ends = [0, *cuts, L]
        value = 0
        for a, b in zip(ends, ends[1:], strict=False):
            value = total(value, cost(a, b))
        found.append((value, list(cuts)))
    return min(found)


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

        for p in range(1, L + 1):
            value, cuts = every_way(cost, L, p, total)
            if value == math.inf:
                with pytest.raises(ValueError, match="is allowed"):
                    best_cuts(cost, L, p, total)
            else:
                found = best_cuts(cost, L, p, total)
                assert found[0] == value and len(found[1]) == p - 1
                ends = [0, *found[1], L]
                parts = [cost(a, b) for a, b in zip(ends, ends[1:], strict=False)]
                assert (max(parts) if total is max else sum(parts)) == value


def test_the_example_on_top_of_it():
    costs = [5, 3, 4]
    cost = lambda a, b: sum(costs[a:b])
    assert best_cuts(cost, 3, 2) == (7, [1])
    assert best_cuts(cost, 3, 1) == (12, []) and best_cuts(cost, 3, 3) == (5, [1, 2])
    for p in (0, 4):
        with pytest.raises(ValueError, match=f"3 layers cannot make {p} parts"):
            best_cuts(cost, 3, p)


def test_a_limit_and_messages_change_the_best_cut():
    x = torch.zeros(2, 1, 16, 16)
    net = unet((4, 8, 16))
    size, L = sizes(net, x), len(net)
    seconds = [1.0] * L
    plain = part_seconds(net, seconds)
    slow = part_seconds(net, seconds, size, 0.1, 1e-4)
    assert best_cuts(plain, L, 2) == (7, [6])
    come = comes_in(net, 6, L)
    moved = sum(size[v].out for v in come)
    assert slow(6, L) == pytest.approx(7 + 2 * (0.3 + 1e-4 * moved))
    assert slow(0, 6) == 6 and come == [1, 3, 5]
    value, cuts = best_cuts(slow, L, 2)
    assert value == every_way(slow, L, 2, max)[0] < max(slow(0, 6), slow(6, L))
    bytes_of = part_bytes(net, size)
    least, _ = best_cuts(bytes_of, L, 2)
    tight = within(slow, bytes_of, least)
    value, cuts = best_cuts(tight, L, 2)
    assert max(bytes_of(0, cuts[0]), bytes_of(cuts[0], L)) == least
    assert value > best_cuts(slow, L, 2)[0]
    with pytest.raises(ValueError, match="into 2 is allowed"):
        best_cuts(within(plain, bytes_of, least - 1), L, 2)


def test_ranks_need_no_more_layers_than_their_own():
    made = []

    def counting(i):
        made.append((dist.get_rank(), i))
        return nn.Linear(3, 3)

    net = chain(*[partial(counting, i) for i in range(4)])
    size = sizes(chain(*[partial(nn.Linear, 3, 3)] * 4), torch.zeros(2, 3))

    def owners():
        Part(net, [1], size)
        return made

    run = d2lpar.run(owners, world_size=2, backend="gloo")
    assert run.results == [[(0, 0)], [(1, 1), (1, 2), (1, 3)]]


# The exercises' own truths, against the executor


class Timed(nn.Module):
    """It takes its times, and makes a row of so many numbers."""

    def __init__(self, forward, backward, numbers):
        super().__init__()
        self.times, self.numbers = (forward, backward), numbers
        self.weight = nn.Parameter(torch.ones(1, **DOUBLE))

    def forward(self, *values):
        total = sum(value.sum(1, keepdim=True) for value in values) * self.weight
        return Takes.apply(total.expand(-1, self.numbers), *self.times)


def timed_step(net, cut, size):
    x = torch.ones(1, 1, **DOUBLE)
    part = Part(net, [cut], size)
    out = part(x)
    part.backward(None if out is None else out.sum())
    return d2lpar.now()


def test_the_predicted_seconds_of_a_step_are_those_of_the_simulator():
    """What exercise 11.3 expects is what `Part` takes, with free latency."""
    generator = np.random.default_rng(5)
    for case in ex_11_3.cases(generator):
        forward, backward, needs, moved, cut = case.inputs[0]
        numbers = [max(1, round(1000 * seconds)) for seconds in moved]
        given = forward, backward, needs, [n / 1000 for n in numbers], cut
        net = [
            Layer(str(i), partial(Timed, forward[i], backward[i], numbers[i]), x)
            for i, x in enumerate(needs)
        ]
        size = sizes_without_time(net)
        where = Cluster.ideal(2, alpha=0.0, beta=1 / 8000)
        how = {"world_size": 2, "backend": "sim", "cluster": where}
        run = d2lpar.run(timed_step, net, cut, size, **how)
        expected = ex_11_3.seconds_of_a_step(*given)
        assert run.results[0] == pytest.approx(expected, rel=1e-9), case.text


def sizes_without_time(net):
    fast = [
        layer._replace(make=partial(Timed, 0, 0, layer.make.args[2])) for layer in net
    ]
    find = lambda: sizes(fast, torch.ones(1, 1, **DOUBLE))
    return d2lpar.run(find, world_size=1, backend="sim").results[0]
