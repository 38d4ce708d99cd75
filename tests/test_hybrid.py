"""Hybrids: halos, the trick and the cheapest splits, each equal to one device."""

import itertools
import math
import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar
from d2lpar.data_parallel import sum_gradients
from d2lpar.hybrid import (
    DomainConv2d,
    EagerTrick,
    WeirdTrick,
    best_splits,
    halo_exchange,
    passes,
)
from d2lpar.hybrid.domain import DomainPool2d, split_rows
from d2lpar.hybrid.split_choice import LAYOUTS, SPLITS, Costs, plan_seconds, shapes
from d2lpar.shared.model_zoo import alexnet, vgg16

RANKS = [1, 2, 3, 4, 5, 8]
WORLDS = [("sim", n) for n in RANKS] + [("gloo", 3)]
SIM = {"backend": "sim", "cluster": d2lpar.Cluster.ideal(alpha=0.0)}


def numbers(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def made(make, seed=3):
    torch.manual_seed(seed)
    return make().double()


def close(a, b):
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def uneven(total, n, seed=0):
    """n numbers above 0 that add up to `total`, different ones where they can be."""
    cuts = sorted(random.Random(seed).sample(range(1, total), n - 1))
    return [b - a for a, b in itertools.pairwise([0, *cuts, total])]


# Halos


def exchanged(heights, before, after):
    x = numbers(2, 3, sum(heights), 4).split(heights, 2)[dist.get_rank()]
    x = x.clone().requires_grad_()
    y = halo_exchange(x, before, after)
    (y * numbers(*y.shape, seed=2 + dist.get_rank())).sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize(("world", "n"), WORLDS)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 0), (0, 3), (5, 4), (0, 0)])
def test_a_halo_and_its_gradient(world, n, before, after):
    """A rank has its slice of the picture with zeros around it."""
    every = uneven(11, n), [*[1] * (n - 1), 0], [11 // n] * n
    for heights in every[: 1 if world == "gloo" else 3]:
        H = sum(heights)
        whole = numbers(2, 3, H, 4).requires_grad_()
        padded = F.pad(whole, (0, 0, before, after))
        starts = [0, *itertools.accumulate(heights)]
        run = d2lpar.run(exchanged, heights, before, after, world_size=n, backend=world)
        for r, (y, _) in enumerate(run.results):
            true = padded[:, :, starts[r] : starts[r + 1] + before + after]
            (true * numbers(*true.shape, seed=2 + r)).sum().backward(retain_graph=True)
            close(y, true.detach())
        grads = torch.cat([dx for _, dx in run.results], 2)
        close(grads, whole.grad if H else grads)
        assert run.warnings == []


def test_a_halo_sends_what_gholami_counts():
    """k // 2 rows of W x C x N per neighbour, forward and again backward."""
    n, k, (N, C, h, W) = 4, 5, (2, 3, 6, 7)

    def step():
        conv = made(lambda: nn.Conv2d(C, C, k, padding=k // 2))
        x = numbers(N, C, h, W).requires_grad_()
        DomainConv2d(conv)(x).sum().backward()

    run = d2lpar.run(step, world_size=n, **SIM)
    each = k // 2 * W * C * N * 8
    messages = [2 * (1 if r in (0, n - 1) else 2) for r in range(n)]
    assert run.messages == messages
    assert run.bytes_sent == [each * count for count in messages]


def three_steps(net, x, slope_of, sums=lambda net: None):
    """(y, gradient of x, of the parameters, buffers) after three steps of a net."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        y = net(x := x.detach().requires_grad_())
        (y * slope_of(y)).sum().backward()
        sums(net)
        optimizer.step()
    state = [(p.detach(), p.grad) for p in net.parameters()]
    return y.detach(), x.grad, state, [b.detach() for b in net.buffers()]


def layered(make, shape, heights):
    """Three steps of a net by rows."""
    r = dist.get_rank()

    def slope_of(y):
        rows = [torch.empty(1, dtype=torch.int64) for _ in heights]
        dist.all_gather(rows, torch.tensor([y.shape[2]]))
        rows = [int(count) for count in rows]
        return numbers(*y.shape[:2], sum(rows), y.shape[3], seed=2).split(rows, 2)[r]

    x = numbers(*shape[:2], sum(heights), shape[2]).split(heights, 2)[r]
    return three_steps(split_rows(made(make)), x, slope_of, sum_gradients)


def conv(*args, **options):
    return lambda: nn.Sequential(nn.Conv2d(2, 3, *args, **options))


NETS = {
    "3x3": (conv(3, padding=1), 13),
    "even kernel": (conv(4, padding=1), 13),
    "no padding": (conv(3), 25),
    "much padding": (conv(3, padding=4), 13),
    "stride": (conv(5, stride=2, padding=2), 21),
    "stride above the kernel": (conv(2, stride=3), 27),
    "dilation": (conv((3, 2), dilation=(3, 2), padding=(3, 1)), 17),
    "1x1, no bias": (conv(1, bias=False), 9),
    "max": (lambda: nn.Sequential(conv(3, padding=1)(), nn.MaxPool2d(3, 2, 1)), 23),
    "mean": (lambda: nn.Sequential(conv(3, padding=1)(), nn.AvgPool2d(2)), 22),
    "deep": (
        lambda: nn.Sequential(
            *[nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()],
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
            *[nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 2, 5, stride=2, padding=2)],
        ),
        43,
    ),
}


@pytest.mark.parametrize(("world", "n"), WORLDS)
@pytest.mark.parametrize("name", NETS)
def test_a_net_by_rows_is_one_net(name, world, n):
    """Outputs and gradients of x; after three steps parameters and gradients."""
    make, H = NETS[name]
    heights = [len(rows) for rows in torch.arange(H).tensor_split(n)]
    heights = heights[::-1]  # not as `tensor_split` cuts
    shape = (2, 2, 8)
    x, slope_of = numbers(2, 2, H, 8), lambda y: numbers(*y.shape, seed=2)
    y, dx, state, buffers = three_steps(made(make), x, slope_of)
    run = d2lpar.run(layered, make, shape, heights, world_size=n, backend=world)
    close(torch.cat([found[0] for found in run.results], 2), y)
    close(torch.cat([found[1] for found in run.results], 2), dx)
    for _, _, mine, own in run.results:
        for ours, true in zip(mine, state, strict=True):
            close(ours[0], true[0])
            close(ours[1], true[1])
        for ours, true in zip(own, buffers, strict=True):
            close(ours.double(), true.double())
    assert run.warnings == []


def refused(make, rows):
    try:
        layer = make()
        if isinstance(layer, nn.Module):
            layer(torch.zeros(1, 2, rows, 9))
    except (TypeError, ValueError) as error:
        return str(error)


def by_rows(*args, **options):
    return lambda: DomainConv2d(nn.Conv2d(2, 2, *args, **options))


def cut(*layers):
    return lambda: WeirdTrick(nn.ReLU(), nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("make", "rows", "words"),
    [
        (by_rows(3, padding=1), 0, "has 0 rows and would"),
        (by_rows(3, stride=2), 1, "too many ranks"),
        (by_rows(3, padding="same"), 2, "not 'same'"),
        (by_rows(3, padding_mode="reflect"), 2, "Padding of zeros, not reflect"),
        (lambda: DomainConv2d(nn.Linear(2, 2)), 2, "It takes Conv2d, not Linear"),
        (lambda: DomainPool2d(nn.MaxPool2d(2, ceil_mode=True)), 2, "ceil_mode"),
        (
            lambda: DomainPool2d(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
            2,
            "count_include_pad",
        ),
        (lambda: halo_exchange(torch.zeros(2, 2), 1, -1), 2, "0 rows or more"),
        (lambda: halo_exchange(torch.zeros(2), 1, 1), 2, "but x has [2]"),
        (lambda: WeirdTrick(nn.ReLU(), nn.Linear(4, 9), "d"), 2, "not 'd'"),
        (cut(nn.ReLU()), 2, "please, not none of them"),
        (cut(nn.Linear(9, 4)), 2, "3 ranks cannot share 4"),
        (cut(nn.Linear(3, 3), nn.PReLU()), 2, "not ['PReLU']"),
    ],
)
def test_what_cannot_be_gets_a_sentence(make, rows, words):
    run = d2lpar.run(refused, make, rows, world_size=3, backend="sim")
    assert all(words in sentence for sentence in run.results)


def test_the_middle_is_computed_while_halos_travel():
    """A message that is no longer than the middle costs nothing, there and back."""

    def step():
        x = torch.zeros(8, 64, 56, 56).requires_grad_()
        DomainConv2d(nn.Conv2d(64, 64, 3, padding=1))(x).sum().backward()

    how = {"cluster": d2lpar.Cluster.of("4xA100", contention=0.0, launch=0.0)}
    run = d2lpar.run(step, world_size=4, backend="sim", device="meta", **how)
    totals = run.timeline.totals(1)
    assert totals["sending"] > 0
    assert run.timeline.exposed(1) < 0.05 * totals["sending"]


# One weird trick


DENSE = {
    1: lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 120)),
    2: lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(24, 120), nn.ReLU(), nn.Linear(120, 7)
    ),
    3: lambda: nn.Sequential(
        *[nn.Flatten(), nn.Linear(24, 120), nn.ReLU(), nn.Linear(120, 120)],
        *[nn.Tanh(), nn.Linear(120, 7)],
    ),
    4: lambda: nn.Sequential(
        *[nn.Linear(24, 120), nn.ReLU(), nn.Linear(120, 240), nn.ReLU()],
        *[nn.Linear(240, 120), nn.Tanh(), nn.Linear(120, 5, bias=False)],
    ),
}


def halves(depth):
    """Convolutions and dense layers, in float64, equal everywhere."""
    both = made(
        lambda: nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten()),
                DENSE[depth](),
            ]
        )
    )
    return tuple(both)


def data(N):
    targets = torch.randint(5, (N,), generator=torch.Generator().manual_seed(N))
    return numbers(N, 1, 5, 7), targets


def summed(scores, targets):
    return F.cross_entropy(scores, targets, reduction="sum")


def tricked(scheme, depth, rows, way):
    """Three steps: by `step`, or with dense updates after every pass."""
    features, classifier = halves(depth)
    x, targets = (t.split(rows)[dist.get_rank()] for t in data(sum(rows)))
    eager = way == "after every pass"
    trick = (EagerTrick if eager else WeirdTrick)(features, classifier, scheme)
    sgd = lambda part: torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    both, losses = (sgd(trick.features), sgd(trick.classifier)), []
    for _ in range(3):
        for optimizer in both:
            optimizer.zero_grad()
        trick.optimizer = both[1]  # of which only an EagerTrick takes steps
        losses.append(trick.step(x, targets, summed))
        for optimizer in both[: 1 if eager else 2]:
            optimizer.step()
    state = {k: (p.detach(), p.grad) for k, p in trick.named_parameters()}
    return losses, state


def one_device(scheme, depth, rows, way):
    """The serial truth, with the passes of the scheme one after the other."""
    features, classifier = halves(depth)
    N, losses = sum(rows), []
    x, targets = data(N)
    sgd = lambda part: torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    both, starts = (sgd(features), sgd(classifier)), [0, *itertools.accumulate(rows)]
    for _ in range(3):
        for optimizer in both:
            optimizer.zero_grad()
        h = features(x)
        leaf, total = h.detach().requires_grad_(), 0.0
        every = passes(scheme, rows) if way == "after every pass" else [[(0, N)]]
        for parts in every:
            at = [
                start + i
                for start, ends in zip(starts, parts, strict=False)
                for i in range(*ends)
            ]
            part = summed(classifier(leaf[at]), targets[at])
            total += part.detach() / N
            if way == "after every pass":
                dh = torch.autograd.grad(part, leaf, retain_graph=True)[0]
                leaf.grad = dh / N if leaf.grad is None else leaf.grad + dh / N
                grads = torch.autograd.grad(part / len(at), classifier.parameters())
                for p, grad in zip(classifier.parameters(), grads, strict=True):
                    p.grad = grad
                both[1].step()
                both[1].zero_grad()
            else:
                (part / N).backward()
        h.backward(leaf.grad)
        losses.append(total)
        for optimizer in both[: 1 if way == "after every pass" else 2]:
            optimizer.step()
    named = nn.ModuleDict({"features": features, "classifier": classifier})
    return losses, {k: (p.detach(), p.grad) for k, p in named.named_parameters()}


def joined(parts, true):
    """The whole of a parameter: equal on all ranks, or cut along a dimension."""
    for dim in (None, 0, 1):
        whole = parts[0] if dim is None else torch.cat(parts, dim)
        if whole.shape == true.shape:
            return whole
        if true.dim() == 1 and dim == 0:
            break
    raise AssertionError(f"{parts[0].shape} is no part of {true.shape}.")


@pytest.mark.parametrize(("world", "n"), WORLDS)
@pytest.mark.parametrize("scheme", "abc")
def test_the_trick_is_one_device(scheme, world, n):
    """All gradients, parameters and losses after three steps; unequal batches."""
    ways = "step", "after every pass"
    cases = itertools.product(ways, DENSE, (True, False))
    first, step = (0, 1) if (world, n) == ("sim", 3) else (n % 5, 7)  # two at each n
    for way, depth, equal in itertools.islice(cases, first, None, step):
        rows = [2] * n if equal else [3 * r % 4 for r in range(1, n + 1)]
        losses, truth = one_device(scheme, depth, rows, way)
        run = d2lpar.run(tricked, scheme, depth, rows, way, world_size=n, backend=world)
        for k, true in truth.items():
            for i in (0, 1):
                parts = [state[k][i] for _, state in run.results]
                assert (parts[0] is None) == (true[i] is None)
                if true[i] is not None:
                    close(joined(parts, true[i]), true[i])
        for ours, true in zip(run.results[0][0], losses, strict=True):
            close(torch.as_tensor(ours), true)
        assert run.warnings == []


def big_and_bare(scheme, rows, F):
    """A step whose memory and bytes are those of the activations, nearly."""
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(1, F, 1, bias=False), nn.Flatten())
    dense = nn.Sequential(nn.Linear(F, 16, bias=False), nn.Linear(16, 8, bias=False))
    trick = WeirdTrick(conv, dense, scheme)
    trick.step(torch.ones(rows, 1, 1, 1), torch.zeros(rows).long(), summed)


@pytest.mark.parametrize("scheme", "abc")
@pytest.mark.parametrize("n", [4, 8])
def test_bytes_and_memory_of_a_scheme(scheme, n):
    """The bytes are equal, and the memory is not: predicted and counted."""
    rows, F = 64, 5_000
    N, each = n * rows, (n - 1) * 8  # a number of 8 bytes, to every other rank
    run = d2lpar.run(big_and_bare, scheme, rows, F, world_size=n, **SIM)
    activations = 2 * (n - 1) * rows * F * 4  # there and back
    sums = 2 * (n - 1) * (N * 8 + F) * 4 // n  # the scores, the convolution's dw
    sent = each + rows * each + activations + sums
    assert run.bytes_sent == [sent] * n
    # own rows and their gradient; two passes and theirs; n-1 parts to be added
    unit, weights = rows * F * 4, (2 * F + 16 * F + 3 * 16 * F // n) * 4
    passed = {"a": 2 * n + n - 1, "b": 4 + n - 1, "c": 4 + (n - 1) / n}[scheme]
    assert max(run.peak_memory) == pytest.approx(
        (2 + passed) * unit + weights, rel=0.02
    )


def test_the_trick_sends_less_than_either_split_alone():
    """By data the dense layers send weights, by channels convolutions pictures."""
    with torch.device("meta"):
        layers = shapes(alexnet(), torch.empty(1, 3, 227, 227))
    n, batch, cluster = 8, 128, d2lpar.Cluster.ideal(alpha=0.0, beta=1.0)
    trick = ["data"] * 5 + ["out", "in", "out"]
    seconds = plan_seconds(layers, trick, n, batch, cluster)
    for other in (["data"] * 8, ["replicated", *["out", "in"] * 3, "out"]):
        assert seconds < plan_seconds(layers, other, n, batch, cluster) / 2


# The cheapest splits


def nets():
    with torch.device("meta"):
        picture = torch.empty(1, 3, 224, 224)
        yield shapes(alexnet(), torch.empty(1, 3, 227, 227))[3:]
        yield shapes(vgg16(), picture)[:4]
        yield shapes(vgg16(), picture)[-5:]
        small = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        yield shapes(small, torch.empty(1, 6))


@pytest.mark.parametrize(
    ("cluster", "n"), [("8xK20", 8), ("4x2xA100", 4), ("8xH100", 2), ("K80", 1)]
)
@pytest.mark.parametrize("batch", [1, 6, 100, 5000])
def test_the_best_splits_are_the_best_of_all(cluster, n, batch):
    cluster = d2lpar.Cluster.of(cluster)
    for layers in nets():
        every = itertools.product(SPLITS, repeat=len(layers))
        times = {p: plan_seconds(layers, p, n, batch, cluster) for p in every}
        seconds, plan = best_splits(layers, n, batch, cluster)
        assert math.isclose(seconds, min(times.values()), rel_tol=1e-12)
        assert math.isclose(seconds, times[tuple(plan)], rel_tol=1e-12)


def test_splits_that_cannot_be():
    layers = list(nets())[3]
    cluster = d2lpar.Cluster.of("8xK20")
    assert math.isinf(plan_seconds(layers, ["domain", "out"], 2, 4, cluster))
    assert math.isinf(plan_seconds(layers, ["in", "out"], 4, 4, cluster))  # 6 by 4
    with pytest.raises(ValueError, match="ranks 0 to 7, not 8"):
        best_splits(layers, 9, 4, cluster)


def counted(of, n):
    """Bytes of the busiest rank."""
    return max(d2lpar.run(of, world_size=n, **SIM).bytes_sent)


def test_costs_are_what_ranks_send():
    """Seconds at one second a byte are the bytes that chapters 07 and 12 count."""
    from d2lpar.tensor_parallel import ColumnParallel, RowParallel, parallel_mlp

    n, N = 4, 8
    costs = Costs(n, N, d2lpar.Cluster.ideal(alpha=0.0, beta=1.0))
    wide, back, flat = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 16)
    made_of = nn.Sequential(flat, wide, back, flat)
    zero, up, down, last = shapes(made_of, torch.empty(1, 16))

    def mlp():
        x = torch.ones(N, 16, requires_grad=True)
        parallel_mlp(wide, nn.ReLU(), back)(x).sum().backward()

    def averaged():
        wide(torch.ones(2, 16)).sum().backward()
        sum_gradients(wide)

    def in_parts(kind):
        x = torch.ones(N, 16, requires_grad=True)
        return lambda: kind(flat, whole=True)(x).sum().backward()

    def by_rows():
        conv = nn.Conv2d(4, 4, 3, padding=1)
        DomainConv2d(conv)(torch.ones(N, 4, 2, 5, requires_grad=True)).sum().backward()

    pair = costs.between(zero, "replicated", up, "out")
    pair += costs.between(up, "out", down, "in")
    pair += costs.between(down, "in", last, "replicated")
    assert pair == counted(mlp, n)
    assert costs.within(up, "data") == counted(averaged, n)
    for split, kind in (("out", ColumnParallel), ("in", RowParallel)):
        alone = costs.between(zero, "replicated", zero, split)
        alone += costs.between(zero, split, zero, "replicated")
        assert alone == counted(in_parts(kind), n)
    with torch.device("meta"):
        convs = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)]
        _, conv = shapes(nn.Sequential(*convs), torch.empty(1, 4, 8, 5))
    halos = costs.within(conv, "domain") - costs.rounds(2, conv.weights)
    assert halos == counted(by_rows, n)


def test_a_layer_with_layers_inside_is_refused():
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match="A Sequential has layers of its own"):
        shapes(nn.Sequential(nn.Linear(4, 4), block), torch.empty(1, 4))


def test_each_layout_is_named_for_a_gradient_too():
    """What a split needs forward is where its gradient comes back, and so on."""
    for layouts in LAYOUTS.values():
        assert (layouts.takes == "whole") == (layouts.gives_back in ("sums", "whole"))
        assert (layouts.gives in ("sums", "whole")) == (layouts.takes_back == "whole")
