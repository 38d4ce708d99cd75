"""Tensor parallelism: one device's outputs, input gradients and weight gradients."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar
from d2lpar.allreduce import ring_allreduce
from d2lpar.sim.cluster import Cluster
from d2lpar.tensor_parallel import (
    Add,
    ColumnParallel,
    Enter,
    Join,
    Part,
    RowParallel,
    parallel_mlp,
    products,
    ring_columns,
)
from d2lpar.tensor_parallel.attention import (
    GroupedAttention,
    ParallelGroupedAttention,
    SelfAttention,
)
from d2lpar.tensor_parallel.vocabulary import (
    VocabularyEmbedding,
    vocabulary_cross_entropy,
)

RANKS = [1, 2, 3, 4]
WORLDS = pytest.mark.parametrize("world", ["sim", "gloo"])


def made(layer, *arguments, **options):
    """A layer in float64, equal on all ranks and outside of them."""
    torch.manual_seed(7)
    return layer(*arguments, **options).double()


def random(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def passed(module, x):
    """(y, gradient of x, gradients by name) for a loss that weighs all of y."""
    x = x.clone().requires_grad_(x.is_floating_point())
    y = module(x)
    (y * random(*y.shape, seed=2)).sum().backward()
    return y.detach(), x.grad, {name: p.grad for name, p in module.named_parameters()}


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def whole_of(results, name, dim):
    """The gradient of a whole weight, from the parts of the ranks."""
    grads = [grads[name] for _, _, grads in results]
    if dim is None:
        for grad in grads:
            close(grad, grads[0])
        return grads[0]
    return torch.cat(grads, dim)


def compare(run, truth, dims):
    """`dims` is {name on a rank: (name of one device, dimension that is split)}."""
    y, dx, grads = truth
    for mine, my_dx, _ in run.results:
        close(mine, y)
        if dx is not None:
            close(my_dx, dx)
    assert {theirs for theirs, _ in dims.values()} == set(grads)
    assert set(dims) == set(run.results[0][2])
    for name, (theirs, dim) in dims.items():
        close(whole_of(run.results, name, dim), grads[theirs])


LAYERS = {
    "linear": (lambda: made(nn.Linear, 12, 24), (5, 12)),
    "linear of tokens": (lambda: made(nn.Linear, 12, 24), (2, 3, 12)),
    "no bias": (lambda: made(nn.Linear, 12, 12, bias=False), (5, 12)),
    "conv": (lambda: made(nn.Conv2d, 12, 24, 3, padding=1), (2, 12, 4, 5)),
    "strided": (lambda: made(nn.Conv2d, 12, 12, 3, 2, dilation=2), (2, 12, 9, 8)),
}


def split(name, kind):
    of, shape = LAYERS[name]
    return passed(kind(of(), whole=True), random(*shape))


@WORLDS
@pytest.mark.parametrize("n", RANKS)
def test_columns_and_rows_are_one_layer(n, world):
    for name, (of, shape) in LAYERS.items():
        truth = passed(of(), random(*shape))
        for kind, dim, bias in [(ColumnParallel, 0, 0), (RowParallel, 1, None)]:
            run = d2lpar.run(split, name, kind, world_size=n, backend=world)
            dims = {"weight": ("weight", dim), "bias": ("bias", bias)}
            compare(run, truth, {key: dims[key] for key in truth[2]})


def mlp():
    up, down = made(nn.Linear, 6, 12), made(nn.Linear, 12, 5)
    return passed(parallel_mlp(up, nn.GELU(), down), random(4, 6))


@WORLDS
@pytest.mark.parametrize("n", RANKS)
def test_an_mlp_needs_one_sum_each_way(n, world):
    up, down = made(nn.Linear, 6, 12), made(nn.Linear, 12, 5)
    truth = passed(nn.Sequential(up, nn.GELU(), down), random(4, 6))
    run = d2lpar.run(mlp, world_size=n, backend=world)
    names = {"0.weight": 0, "0.bias": 0, "2.weight": 1, "2.bias": None}
    compare(run, truth, {name: (name, dim) for name, dim in names.items()})


def attention(heads, pairs):
    whole = one_device(heads, pairs)
    return passed(ParallelGroupedAttention(whole), random(2, 5, 24))


def one_device(heads, pairs):
    if pairs == heads:
        return made(SelfAttention, 24, heads)
    return made(GroupedAttention, 24, heads, pairs)


@WORLDS
@pytest.mark.parametrize(
    ("n", "heads", "pairs"),
    [(n, 12, 12) for n in RANKS] + [(2, 4, 2), (4, 4, 2), (4, 8, 1), (3, 6, 1)],
)
def test_attention_by_heads(n, heads, pairs, world):
    truth = passed(one_device(heads, pairs), random(2, 5, 24))
    run = d2lpar.run(attention, heads, pairs, world_size=n, backend=world)
    if n > pairs:  # ranks beside each other share a pair: equal gradients
        for _, _, grads in run.results:
            for name in ("keys.weight", "keys.bias", "values.weight", "values.bias"):
                assert grads[name].shape[0] == 24 // heads
        share = n // pairs
        for i, result in enumerate(run.results):
            for name in ("keys.weight", "values.bias"):
                close(result[2][name], run.results[i // share * share][2][name])
        run.results[:] = [
            (y, dx, grads if i % share == 0 else _without_pairs(grads))
            for i, (y, dx, grads) in enumerate(run.results)
        ]
    dims = {name: (name, 0) for name in truth[2]}
    dims["out.weight"], dims["out.bias"] = ("out.weight", 1), ("out.bias", None)
    compare(run, truth, dims)


def _without_pairs(grads):
    """The gradients, with empty ones in place of those that another rank has too."""
    return {k: v[:0] if k[0] in "kv" else v for k, v in grads.items()}


def test_attention_is_torchs():
    whole = made(SelfAttention, 24, 4)
    theirs = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        three = whole.queries, whole.keys, whole.values
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in three]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in three]))
        theirs.out_proj.weight.copy_(whole.out.weight)
        theirs.out_proj.bias.copy_(whole.out.bias)
    x = random(2, 5, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    close(whole(x), theirs(x, x, x, attn_mask=mask, need_weights=False)[0])


WORDS = torch.tensor([[0, 11, 5], [5, 6, 3]])


def embedded():
    return passed(VocabularyEmbedding(made(nn.Embedding, 12, 4)), WORDS)


@WORLDS
@pytest.mark.parametrize("n", RANKS)
def test_embedding_by_words(n, world):
    truth = passed(made(nn.Embedding, 12, 4), WORDS)
    run = d2lpar.run(embedded, world_size=n, backend=world)
    compare(run, truth, {"weight": ("weight", 0)})


TARGETS = torch.tensor([0, 11, 5, 6, 3])


def judged(scale):
    scores = scale * random(5, 12)
    mine = scores.chunk(dist.get_world_size(), 1)[dist.get_rank()]
    mine = mine.clone().requires_grad_()
    losses = vocabulary_cross_entropy(mine, TARGETS)
    (losses * random(5, seed=2)).sum().backward()
    return losses.detach(), mine.grad


@WORLDS
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("scale", [1, 1000])
def test_cross_entropy_by_words(n, world, scale):
    scores = (scale * random(5, 12)).requires_grad_()
    losses = F.cross_entropy(scores, TARGETS, reduction="none")
    (losses * random(5, seed=2)).sum().backward()
    run = d2lpar.run(judged, scale, world_size=n, backend=world)
    for mine, _ in run.results:
        close(mine, losses.detach())
    close(torch.cat([grad for _, grad in run.results], 1), scores.grad)


def ringed(rows):
    r, n = dist.get_rank(), dist.get_world_size()
    x = random(rows * n, 6).chunk(n)[r] if rows else random(0, 6)
    return ring_columns(x, random(4 * n, 6, seed=2).chunk(n)[r])


@WORLDS
@pytest.mark.parametrize("n", [*RANKS, 5, 8])
def test_a_ring_of_products(n, world):
    for rows in (0, 1, 3):
        whole = random(rows * n, 6) @ random(4 * n, 6, seed=2).T
        run = d2lpar.run(ringed, rows, world_size=n, backend=world)
        close(torch.cat(run.results, 1), whole)


def moves():
    """Each move's forward and backward, checked by numbers and by its partner."""
    r, n = dist.get_rank(), dist.get_world_size()
    x = (random(2, 2 * n) + r).requires_grad_()
    same = random(2, 2 * n).requires_grad_()
    out = {}
    for name, y, at in [
        ("enter", Enter.apply(x), x),
        ("add", Add.apply(x), x),
        ("join", Join.apply(x, 1), x),
        ("part", Part.apply(same, 1), same),
    ]:
        (dx,) = torch.autograd.grad(y, at, torch.full_like(y, 1.0 + r))
        out[name] = y.detach(), dx
    return out


@pytest.mark.parametrize("n", RANKS)
def test_the_four_moves(n):
    results = d2lpar.run(moves, world_size=n, backend="sim").results
    xs = [random(2, 2 * n) + r for r in range(n)]
    for r, out in enumerate(results):
        ones = torch.ones(2, 2 * n, dtype=torch.float64)
        close(out["enter"][0], xs[r]), close(out["enter"][1], ones * n * (n + 1) / 2)
        close(out["add"][0], sum(xs)), close(out["add"][1], ones * (1 + r))
        close(out["join"][0], torch.cat(xs, 1)), close(out["join"][1], ones * (1 + r))
        close(out["part"][0], random(2, 2 * n).chunk(n, 1)[r])
        shares = [torch.full((2, 2), 1.0 + i, dtype=torch.float64) for i in range(n)]
        close(out["part"][1], torch.cat(shares, 1))


# What moves


def traffic(of):
    """Bytes that each of four ranks sends."""
    return d2lpar.run(of, world_size=4, backend="sim").bytes_sent


def forward_only():
    up, down = made(nn.Linear, 6, 12), made(nn.Linear, 12, 5)
    with torch.no_grad():
        return parallel_mlp(up, nn.GELU(), down)(random(4, 6))


def test_an_mlp_moves_its_ends_only(monkeypatch):
    """Forward an all-reduce of y [4, 5], backward one of dx [4, 6]; float64."""
    monkeypatch.setattr(products, "allreduce", ring_allreduce)
    forward, whole = traffic(forward_only), traffic(mlp)
    assert forward == [2 * 3 * 4 * 5 // 4 * 8] * 4
    assert sum(whole) - sum(forward) == 2 * 3 * 4 * 6 * 8


# Refusals


def refused(kind, *arguments):
    try:
        kind(*arguments)
    except (TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("kind", "layer", "words"),
    [
        (ColumnParallel, nn.Linear(4, 7), "3 ranks cannot share 7 output features"),
        (RowParallel, nn.Linear(7, 6), "3 ranks cannot share 7 input features"),
        (ColumnParallel, nn.Conv2d(3, 3, 1, groups=3), "groups=1"),
        (RowParallel, nn.Conv2d(3, 3, 1, padding_mode="reflect"), "padding of zeros"),
        (VocabularyEmbedding, nn.Embedding(9, 2, padding_idx=0), "padding_idx"),
        (RowParallel, nn.LayerNorm(3), "can be split, not LayerNorm"),
        (ParallelGroupedAttention, SelfAttention(8, 4), "3 ranks cannot share 4 heads"),
        (ParallelGroupedAttention, GroupedAttention(12, 6, 2), "share 2 pairs"),
        (VocabularyEmbedding, nn.Embedding(10, 2), "3 ranks cannot share 10"),
    ],
)
def test_what_does_not_divide_gets_a_sentence(kind, layer, words):
    run = d2lpar.run(refused, kind, layer, world_size=3, backend="sim")
    assert all(words in sentence for sentence in run.results)


def frozen():
    """A split layer whose weight is frozen, and whose bias is not."""
    layers = {"column": ColumnParallel, "row": RowParallel}
    found = {}
    for name, kind in layers.items():
        layer = made(nn.Linear, 6, 6)
        layer.weight.requires_grad_(False)
        part = kind(layer, whole=True)
        part(random(2, 6)).sum().backward()
        found[name] = part.weight.grad is None, part.bias.grad is not None
        with torch.no_grad():
            part.bias.zero_()
        found[name] += ((layer.bias != 0).all().item(),)  # the whole is untouched
    whole = made(SelfAttention, 6, 3)
    whole.keys.weight.requires_grad_(False)
    part = ParallelGroupedAttention(whole)
    part(random(2, 2, 6)).sum().backward()
    found["heads"] = (part.keys.weight.grad is None, part.keys.bias.grad is not None)
    return found


def test_what_is_frozen_stays_frozen():
    for found in d2lpar.run(frozen, world_size=3, backend="sim").results:
        assert all(map(all, found.values()))


def trained():
    """Three steps of an embedding, an MLP and a head that is the embedding's weight."""
    n, r = dist.get_world_size(), dist.get_rank()
    words, up, down = _parts()
    tied, rest = VocabularyEmbedding(words), parallel_mlp(up, nn.GELU(), down)
    head = ColumnParallel(_head(words))
    head.weight = tied.weight
    model = nn.ModuleList([tied, rest, head])
    step = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step.zero_grad()
        scores = head(rest(tied(WORDS.flatten())))
        vocabulary_cross_entropy(scores, WORDS.flatten().flip(0)).mean().backward()
        step.step()
    assert tied.weight.shape[0] * n == 12 and r < n
    return {k: (p.detach(), p.grad) for k, p in model.named_parameters()}


def _parts():
    return made(nn.Embedding, 12, 4), made(nn.Linear, 4, 24), made(nn.Linear, 24, 4)


def _head(words):
    head = nn.Linear(4, 12, bias=False).double()
    head.weight = words.weight
    return head


@WORLDS
@pytest.mark.parametrize("n", RANKS)
def test_three_steps_with_a_tied_weight(n, world):
    words, up, down = _parts()
    model = nn.ModuleList([words, nn.Sequential(up, nn.GELU(), down), _head(words)])
    step = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step.zero_grad()
        scores = model[2](model[1](model[0](WORDS.flatten())))
        F.cross_entropy(scores, WORDS.flatten().flip(0)).backward()
        step.step()
    truth = dict(model.named_parameters())
    results = d2lpar.run(trained, world_size=n, backend=world).results
    dims = {"0.weight": 0, "1.0.weight": 0, "1.0.bias": 0, "1.2.weight": 1}
    assert set(results[0]) == set(truth) == {*dims, "1.2.bias"}
    for name, p in truth.items():
        for k, expected in enumerate([p.detach(), p.grad]):
            parts = [mine[name][k] for mine in results]
            if name in dims:
                parts = [torch.cat(parts, dims[name])]
            for part in parts:
                close(part, expected)


def test_an_uneven_attention():
    with pytest.raises(ValueError, match="4 heads cannot share 10 features"):
        SelfAttention(10, 4)
    with pytest.raises(ValueError, match="4 heads cannot share 3 pairs"):
        GroupedAttention(12, 4, 3)


def hidden():
    """A product that takes as long as a message hides it."""
    x = torch.zeros(4096, 8192)
    ring_columns(x, torch.zeros(2048, 8192))


def test_the_ring_hides_its_messages():
    where = {"cluster": Cluster.of("4xA100", launch=0), "device": "meta"}
    run = d2lpar.run(hidden, world_size=4, backend="sim", **where)
    totals = run.timeline.totals(0)
    assert totals["sending"] > 1e-3
    assert run.elapsed == totals["compute"]
