"""`allreduce.half`: numbers of two bytes, and the decisions that all ranks share."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import d2lpar
from conftest import RANKS
from d2lpar.allreduce import (
    halving_doubling_allreduce,
    naive_allreduce,
    ring_allreduce,
    tree_allreduce,
)
from d2lpar.allreduce.costs import ring_cost
from d2lpar.allreduce.half import (
    LARGEST,
    LEAST,
    LossScale,
    NarrowSum,
    unscale,
    wide_allreduce,
)
from d2lpar.mesh import Config, Mesh, MeshModel
from d2lpar.overlap import OverlappedDDP
from d2lpar.sharding import FSDP, ZeRO1, ZeRO2
from d2lpar.shared.footprint import held, memory

HALVES = torch.bfloat16, torch.float16
ORDERS = naive_allreduce, ring_allreduce, tree_allreduce, wide_allreduce
run = partial(d2lpar.run, backend="sim")


def term(r, size, dtype=torch.float64):
    """The term of rank r: numbers of bfloat16, so that no dtype rounds them."""
    maker = torch.Generator().manual_seed(r)
    return torch.randn(size, generator=maker).bfloat16().to(dtype)


def summed(allreduce, shape, dtype):
    x = term(dist.get_rank(), shape, dtype)
    allreduce(x)
    return x


def truth(n, size):
    return sum(term(r, size) for r in range(n))


def error(found, exact):
    """The root of the mean squared error, relative to that of the exact sums."""
    off = (found.double() - exact).square().mean() / exact.square().mean()
    return off.sqrt().item()


# The order of the additions


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", RANKS)
def test_a_wide_sum_is_rounded_once_and_costs_what_a_ring_costs(n, dtype):
    exact = truth(n, 40)  # so exact that rounding it is the best possible
    wide = run(summed, wide_allreduce, 40, dtype, world_size=n)
    for came in wide.results:
        if dtype in HALVES:
            assert torch.equal(came, exact.to(dtype))
        else:
            assert torch.allclose(came.double(), exact, atol=1e-5)
    cost = ring_cost(40, n, dtype.itemsize)
    assert max(wide.bytes_sent) == cost.busiest
    assert (wide.rounds, sum(wide.messages)) == (cost.rounds, cost.messages)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("allreduce", ORDERS)
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_every_order_leaves_the_same_bits_on_all_ranks(n, allreduce, dtype):
    results = run(summed, allreduce, (3, 11), dtype, world_size=n).results
    assert all(torch.equal(came, results[0]) for came in results)
    assert error(results[0], truth(n, (3, 11))) < 0.02


def test_an_order_decides_how_the_error_grows():
    n, size = 32, 4096
    exact = truth(n, size)
    once = error(exact.bfloat16(), exact)
    grows = {ring_allreduce: (n + 1) / 2 - 1 / n, tree_allreduce: math.log2(n)}
    grows |= {halving_doubling_allreduce: math.log2(n), wide_allreduce: 1}
    for allreduce, times in grows.items():
        came = run(summed, allreduce, size, torch.bfloat16, world_size=n).results[0]
        assert error(came, exact) == pytest.approx(once * times**0.5, rel=0.15)


def test_a_wide_sum_of_anything():
    def of(x):
        wide_allreduce(x)
        return x

    turned = torch.arange(12.0).view(3, 4).t().bfloat16()
    large = torch.tensor([2**53 + 1])  # no float32, and no float64
    for x in (turned, large, torch.empty(0), torch.tensor(2.0)):
        assert torch.equal(run(of, x, world_size=3).results[2], 3 * x)
    with pytest.raises(d2lpar.RankError, match="needs a tensor, not int"):
        run(of, 3, world_size=2)


def test_on_processes():
    real = partial(d2lpar.run, world_size=2, backend="gloo")
    for came in real(summed, wide_allreduce, 37, torch.bfloat16).results:
        assert torch.equal(came, truth(2, 37).bfloat16())
    found = real(poisoned_steps, {2: 1}).results
    assert found[0] == found[1] and found[0][0] == poisoned_steps({2: 1})[0]
    assert torch.equal(*[grads[0] for grads in real(narrow_step, ours).results])


# Half the bytes on the wire


def net(dtype=None):
    torch.manual_seed(0)
    layers = nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)
    return nn.Sequential(*layers).to(dtype)


def ours(model):
    return OverlappedDDP(model, allreduce=NarrowSum)


def in_bfloat16(state, bucket):  # torch refuses the hook on a CPU by its name
    return default_hooks.bf16_compress_hook(state, bucket)


def torchs(model):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, in_bfloat16)
    return ddp


def narrow_step(make, steps=1):
    ddp, r = make(net()), dist.get_rank()
    x = term(r, (5, 6), torch.float32)
    for _ in range(steps):
        ddp.zero_grad()
        ddp(x).square().mean().backward()
        if isinstance(ddp, OverlappedDDP):
            ddp.finish()
    return [p.grad for p in ddp.parameters()]


@pytest.mark.parametrize("n", RANKS)
def test_narrow_sums_are_those_of_torchs_hook(n):
    mine, theirs = (
        run(narrow_step, make, world_size=n).results for make in (ours, torchs)
    )
    wide = run(narrow_step, OverlappedDDP, world_size=n).results[0]
    for a, b, exact in zip(mine[0], theirs[0], wide, strict=True):
        most = exact.abs().max().item()
        assert a.dtype == torch.float32
        assert torch.allclose(a, b, rtol=0, atol=0.01 * most)
        assert torch.allclose(a, exact, rtol=0, atol=0.02 * most)
    for results in (mine, theirs):
        assert all(map(torch.equal, results[0], results[-1]))


def test_a_narrow_step_sends_the_bytes_of_torchs_hook():
    def more(make, n):  # later steps: torch plans its buckets anew before
        sent = [run(narrow_step, make, k, world_size=n).bytes_sent[0] for k in (3, 5)]
        return (sent[1] - sent[0]) / 2

    P, flags = sum(p.numel() for p in net().parameters()), 4
    for n in (2, 5):
        theirs, mine, wide = (more(make, n) for make in (torchs, ours, OverlappedDDP))
        assert mine == wide / 2
        assert theirs == pytest.approx(2 * (n - 1) / n * 2 * P, abs=4)
        assert mine == pytest.approx(2 * (n - 1) / n * 2 * (P + flags), abs=4)


# A scale that all ranks share


def poison(optimizer, bad):
    if bad:
        optimizer.param_groups[0]["params"][0].grad[0, 0] = math.inf


def with_gradients(bad=False, dtype=None):
    """An optimizer whose parameters have gradients, of which one may be infinite."""
    model = net(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 6, dtype=dtype)).sum().backward()
    poison(optimizer, bad)
    return optimizer


def poisoned_steps(when, steps=6):
    """[(stepped, scale)] of steps; `when` maps a step to the rank that overflows."""
    model, scale = net(), LossScale(2.0**10, interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    r, found = dist.get_rank() if dist.is_initialized() else None, []
    for s in range(steps):
        optimizer.zero_grad()
        scale.scale(model(term(s, (5, 6), torch.float32)).square().mean()).backward()
        poison(optimizer, s in when and r in (None, when[s]))  # alone, every time
        found.append((scale.step(optimizer), scale.value))
    return found, [p.sum().item() for p in model.parameters()]


@pytest.mark.parametrize("n", RANKS)
def test_one_overflow_stops_all_ranks(n):
    when = {0: n - 1, 3: 0, 4: n // 2}
    results = run(poisoned_steps, when, world_size=n).results
    assert all(came == results[0] == poisoned_steps(when) for came in results)
    assert [stepped for stepped, _ in results[0][0]] == [0, 1, 1, 0, 0, 1]
    assert [v / 2**10 for _, v in results[0][0]] == [0.5, 0.5, 1, 0.5, 0.25, 0.25]


def test_the_decision_is_made_inside_a_group():
    def halves():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        optimizer, scale = with_gradients(dist.get_rank() == 3), LossScale(8)
        return scale.step(optimizer, groups[dist.get_rank() // 2]), scale.value

    assert run(halves, world_size=4).results == [(True, 8)] * 2 + [(False, 4)] * 2


def test_one_rank_does_what_torchs_scaler_does():
    options = {"growth_interval": 2, "growth_factor": 3.0, "backoff_factor": 0.3}
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**10, **options)
    mine = LossScale(2.0**10, 3.0, 0.3, 2)
    models = net(), net()
    adams = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    bad = [s in (0, 3, 4, 9) for s in range(40)]
    for s, spoil in enumerate(bad):
        x = term(s, (5, 6), torch.float32)
        for model, adam, scaler in zip(models, adams, (theirs, mine), strict=True):
            adam.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            poison(adam, spoil)
            scaler.step(adam)
        theirs.update()
        assert mine.value == pytest.approx(theirs.get_scale(), rel=1e-6)
    same = zip(*(model.parameters() for model in models), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in same)


def test_scales_of_powers_of_two_are_torchs_up_to_the_largest_float():
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=1)
    mine, weight = LossScale(2.0**120, interval=1), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(12):
        for scaler in (theirs, mine):
            optimizer.zero_grad()
            scaler.scale(0 * weight.sum()).backward()
            scaler.step(optimizer)
        theirs.update()
        assert mine.value == theirs.get_scale() <= LARGEST
    assert mine.value == LARGEST


def test_a_loss_of_two_bytes_is_scaled_in_four():
    loss = torch.tensor(2.0, dtype=torch.float16)
    assert LossScale(2.0**16).scale(loss).item() == 2.0**17
    assert LossScale().scale(loss.double()).dtype == torch.float64


def test_a_nan_that_no_scale_cures_is_an_error_on_all_ranks():
    def forever():
        optimizer, scale = with_gradients(dist.get_rank() == 1), LossScale(4)
        for _ in range(100):
            scale.step(optimizer)

    with pytest.raises(d2lpar.RankError, match="Look for an infinity") as error:
        run(forever, world_size=2)
    assert f"{LEAST / 2:.1e}" in str(error.value)


def test_gradients_of_two_bytes_are_refused_and_none_is_no_overflow():
    with pytest.raises(TypeError, match="float16, and divided"):
        LossScale().step(with_gradients(dtype=torch.float16))
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    assert unscale(optimizer, 2.0).item() == 0


@pytest.mark.parametrize(
    "bad", [(0,), (math.inf,), (1, 0.5), (1, 2, 1.0), (1, 2, 0.5, 0)]
)
def test_a_scale_of_bad_numbers_is_refused(bad):
    with pytest.raises(ValueError, match="A loss scale needs 0 < value"):
        LossScale(*bad)
    LossScale(LARGEST, 1, 0.5, 1)  # at the edges


# Ranks that hold parts


@pytest.mark.parametrize("kind", [ZeRO1, ZeRO2, FSDP])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_ranks_with_shards_decide_together(n, kind):
    """Rank 1 overflows in the first step.  Chapter 10 compares with torch's scalers."""

    def steps():
        model, scale = kind(net(), dtype=torch.float16), LossScale(2.0**8)
        optimizer = torch.optim.SGD(model.shards, lr=0.01)
        step = SimpleNamespace(step=partial(scale.step, optimizer))
        for s in range(3):
            x = term(s, (5, 6), torch.float16)
            scale.scale(model(x).float().square().mean()).backward()
            model.finish()
            if s == 0 and dist.get_rank() == 1:
                model.trained[0].grad[0] = math.inf
            before = [shard.detach().clone() for shard in model.shards]
            model.step(step)
            yield scale.value, not all(map(torch.equal, before, model.shards))

    found = run(lambda: [*steps()], world_size=n).results
    assert found == [[(128, False), (128, True), (128, True)]] * n


def test_a_mesh_decides_together():
    def step():
        config = Config(D=8, depth=4, heads=2, context=8, vocabulary=16)
        mesh = Mesh(data=2, pipeline=2, tensor=2)
        model, scale = MeshModel(config, mesh, micro_batches=2), LossScale(4)
        optimizer, decisions = torch.optim.SGD(model.parameters(), lr=0.1), []
        for s in range(2):
            tokens = torch.zeros(4, 8, dtype=torch.int64)
            model.step(tokens, tokens)
            if s == 0 and dist.get_rank() == 5:  # one stage, one part of a split
                next(iter(model.parameters())).grad.fill_(math.nan)
            decisions.append(scale.step(optimizer))
            optimizer.zero_grad()
        return decisions, scale.value

    assert run(step, world_size=8).results == [([False, True], 2)] * 8


# Bytes


WAYS = {  # dtype of the model, of the wide copy: bytes of each part
    "float32": (torch.float32, None, (4, 4, 8)),
    "mixed": (torch.float32, torch.bfloat16, (2, 2, 12)),
    "pure bfloat16": (torch.bfloat16, None, (2, 2, 4)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_bytes_per_parameter(n, way):
    wide, narrow, bytes_each = WAYS[way]

    def count():
        model = ZeRO1(net(wide), dtype=narrow)
        adam = torch.optim.Adam(model.shards)
        model(torch.ones(1, 6, dtype=narrow or wide)).float().sum().backward()
        model.finish()
        before = held(model, adam)
        model.step(adam)
        return before._replace(optimizer=held(model, adam).optimizer)

    sizes = [sum(p.numel() for p in layer.parameters()) for layer in net()[::2]]
    form = memory(sizes, n, 1, *bytes_each)
    counters = 4 * len(sizes)  # of Adam's steps
    wanted = form._replace(optimizer=form.optimizer + counters)
    assert run(count, world_size=n).results[-1] == wanted
