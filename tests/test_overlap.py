"""`d2lpar.overlap`: every DDP leaves one device's gradients, whenever it sends them."""

import contextlib
import gc
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import d2lpar
from conftest import Takes
from d2lpar import overlap
from d2lpar.allreduce import costs, ring_allreduce
from d2lpar.allreduce.shared_memory import shared_memory_allreduce
from d2lpar.checks.solutions import ex_08_2
from d2lpar.overlap import BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP

SMALL = 500  # bytes: a few buckets for the models below
small = partial(partial, bucket_bytes=SMALL)
OURS = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "bucketed": small(BucketedDDP),
    "overlapped": small(OverlappedDDP),
    "one by one": partial(OverlappedDDP, bucket_bytes=0),
    "usual buckets": OverlappedDDP,
    "own ring": small(OverlappedDDP, allreduce=ring_allreduce),
}
theirs = partial(partial, DistributedDataParallel, bucket_cap_mb=SMALL / 2**20)
THEIRS = {"torch": theirs(), "torch, views": theirs(gradient_as_bucket_view=True)}
SHARED = partial(BucketedDDP, allreduce=shared_memory_allreduce)
ALL = OURS | THEIRS | {"shared memory": SHARED}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
EVERYWHERE = pytest.mark.parametrize(
    ("kind", "world"),
    [*((kind, "sim") for kind in OURS), ("flat", "gloo"), ("overlapped", "gloo")],
)


def run(fn, *args, n=2, world="sim", **how):
    return d2lpar.run(fn, *args, world_size=n, backend=world, **how)


class Tied(nn.Module):
    """Two layers share a weight, a third is frozen, a fourth is used where told."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.sometimes = (nn.Linear(6, 6) for _ in range(3))
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 2)

    def forward(self, x, extra=True):
        x = torch.tanh(self.second(torch.tanh(self.frozen(self.first(x)))))
        if extra:
            x = x + torch.tanh(self.sometimes(x))
        return self.last(x)


def tied(seed=1):
    torch.manual_seed(seed)
    return Tied().double()


def batches(N):
    """Three batches (x, y) of N rows."""
    torch.manual_seed(2)
    x, y = torch.randn(3, N, 6).double(), torch.randn(3, N, 2).double()
    return list(zip(x, y, strict=True))


X, Y = batches(12)[0]


def loss_of(model, x, y, i=0, n=1, *extra):
    """Shard i's part of the mean over all rows, times n: ranks are averaged."""
    mine, target = (each.tensor_split(n)[i] for each in (x, y))
    return F.mse_loss(model(mine, *extra), target, reduction="sum") / y.numel() * n


def place(group=None):
    return dist.get_rank(group), dist.get_world_size(group)


def state(model):
    """Parameters and gradients, also those that are None."""
    return [(p.detach(), p.grad) for p in model.parameters()]


ALWAYS = ((True,),) * 3


def serial(optimizer, N, n, extras):
    """One device, the whole batch, in whose shards a layer is used or not."""
    model = tied()
    opt = OPTIMIZERS[optimizer](model.parameters())
    for (x, y), who in zip(batches(N), extras, strict=True):
        opt.zero_grad()
        parts = [loss_of(model, x, y, i, n, who[i % len(who)]) for i in range(n)]
        (sum(parts) / n).backward()
        opt.step()
    return state(model)


def parallel(kind, optimizer, N, extras, clear=True, by_bucket=False, members=None):
    """The same with a shard on each rank; rank 0 has the weights of the truth."""
    group = dist.new_group(members) if members else None
    r, n = place(group)
    if r < 0:
        return None
    ddp, done = ALL[kind](tied(seed=1 + r), group), []
    sets = [b.weights for b in ddp.buckets] if by_bucket else [ddp.parameters()]
    optimizers = [OPTIMIZERS[optimizer](some) for some in sets]

    def step(k):
        done.append(k)
        optimizers[k].step()

    for (x, y), who in zip(batches(N), extras, strict=True):
        ddp.zero_grad(set_to_none=clear)
        loss_of(ddp, x, y, r, n, who[r % len(who)]).backward()
        if kind not in THEIRS:
            ddp.finish(then=step if by_bucket else None)
            for bucket in ddp.buckets:  # gradients are views of it
                grads = [p.grad for p in bucket.weights if p.grad is not None]
                places = {g.untyped_storage().data_ptr() for g in grads}
                assert places <= {bucket.flat.untyped_storage().data_ptr()}
        if not by_bucket:
            step(0)
    assert done == list(range(len(sets))) * 3
    return state(ddp.module)


def check(kind, optimizer="sgd", N=10, n=3, world="sim", extras=ALWAYS, **how):
    """Three steps leave what those of one device leave."""
    made = run(parallel, kind, optimizer, N, extras, n=n, world=world, **how)
    members = how.get("members", range(n))
    truth = serial(optimizer, N, len(members), extras)
    close([made.results[r] for r in members], [truth] * len(members))
    assert made.warnings == []
    return made


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("n", "N", "world"),
    [*((n, 10, "sim") for n in (1, 2, 3, 4, 5)), (5, 3, "sim"), (3, 10, "gloo")],
)
@pytest.mark.parametrize("kind", OURS | THEIRS)
def test_three_steps_equal_one_device(kind, n, N, world, optimizer):
    """Also where a rank has no rows, as with three on five ranks."""
    check(kind, optimizer, N, n, world)


@pytest.mark.parametrize(
    "how",
    [
        {"clear": False},  # gradients are zeroed in place
        # Momentum and weight decay move what no rank uses, if its gradient is 0.
        {"n": 2, "extras": ((True,), (False,), (True,))},
        {"n": 4, "optimizer": "adam", "extras": ((True,), (True,), (False,))},
        {"N": 8, "extras": ((True,), *((True, False, False),) * 2)},
        {"N": 8, "extras": ((True,), *((False, False, True),) * 2)},
        {"N": 8, "extras": ((True,), *((True, False, True),) * 2)},
        {"n": 2, "optimizer": "adam", "by_bucket": True},
        {"n": 4, "members": [1, 3]},
    ],
    ids=str,
)
@EVERYWHERE
def test_also_with_unused_parameters_and_by_bucket_and_in_a_group(kind, world, how):
    check(kind, world=world, **how)


def test_the_all_reduce_is_an_argument():
    made = check("shared memory", n=2, world="gloo")
    assert made.messages[0] < 10  # the state and the board; the gradients are not sent


# Gradient accumulation


def accumulate(kind, n_parts, ways):
    """Parts of a shard, one after another: without a sum over ranks, and with one."""
    ddp, (r, n) = ALL[kind](tied()), place()
    for k, way in enumerate(ways):
        with ddp.no_sync() if way != "summed" else contextlib.nullcontext():
            i = r * n_parts + k % n_parts
            (loss_of(ddp, X, Y, i, n * n_parts) / n_parts).backward()
            if way == "apart":
                ddp.finish()  # nothing happens
        if way != "apart":
            ddp.finish()
    return state(ddp.module), [bucket.flat.numel() for bucket in ddp.buckets]


@pytest.mark.parametrize(
    ("n_parts", "ways", "times"),
    [
        (3, ["apart", "apart", "summed"], 1),
        (1, ["finished outside"], 1),
        (1, ["summed", "summed"], 2),
    ],
)
@pytest.mark.parametrize("n", [2, 3, 4])
@EVERYWHERE
def test_accumulation_equals_one_batch_and_each_finish_sends_each_gradient_once(
    kind, world, n, n_parts, ways, times
):
    """With a flag for each gradient."""
    none, made = (
        run(accumulate, kind, n_parts, w, n=n, world=world) for w in ([], ways)
    )
    model = tied()
    (times * loss_of(model, X, Y)).backward()
    close([left for left, _ in made.results], [state(model)] * n)
    sizes = made.results[0][1]
    trained = {p for p in model.parameters() if p.requires_grad}
    assert sum(sizes) == sum(p.numel() + 1 for p in trained)
    messages = sum(made.messages) - sum(none.messages)
    assert messages == times * sum(costs.ring_cost(x, n, 8).messages for x in sizes)
    sent = sum(made.bytes_sent) - sum(none.bytes_sent)
    assert sent == times * 2 * (n - 1) * 8 * sum(sizes)


class Mixed(nn.Module):
    """Half of it in float32, and complex and half-precision weights beside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.d = nn.Linear(6, 6).double(), nn.Linear(6, 2).double()
        self.b = nn.Linear(6, 6)
        self.c = nn.Parameter(torch.ones(6, dtype=torch.complex128))
        self.e = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def forward(self, x):
        x = self.b(self.a(x).float()).double()
        return self.d((x * self.c).abs()) * self.e


@EVERYWHERE
def test_every_dtype_has_its_buckets(kind, world):
    def step():
        ddp = ALL[kind](Mixed())
        loss_of(ddp, X, Y, *place()).backward()
        ddp.finish()
        for bucket in ddp.buckets:
            assert {p.dtype for p in bucket.weights} == {bucket.flat.dtype}
        return [p.grad for p in ddp.module.parameters()]

    model = Mixed()
    loss_of(model, X, Y).backward()
    near = {torch.bfloat16: 1e-2}  # and one layer is float32, so all is about as exact
    for grads in run(step, n=3, world=world).results:
        for a, p in zip(grads, model.parameters(), strict=True):
            close(a, p.grad, atol=near.get(p.dtype, 1e-6))


# The plan


def tensors(sizes, letters):
    """Tensors of these sizes: i is int64, f is float32, d is float64."""
    dtypes = {"i": torch.int64, "f": torch.float32, "d": torch.float64}
    pairs = zip(sizes, letters, strict=True)
    return [torch.zeros(size, dtype=dtypes[letter]) for size, letter in pairs]


@pytest.mark.parametrize(
    ("sizes", "dtypes", "limit", "plan"),
    [
        ([4, 5, 6, 7], "ffff", 0, [[7], [6], [5], [4]]),
        ([4, 5, 6, 7], "ffff", 28, [[7], [6, 5], [4]]),
        ([4, 5, 6, 7], "ffff", 29, [[7, 6], [5, 4]]),
        ([4, 5, 6, 7], "ffff", math.inf, [[7, 6, 5, 4]]),
        ([1, 2, 3, 4, 5], "fdfdd", None, [[5, 4, 2], [3, 1]]),
        ([1, 2, 3, 4, 5], "fdfdd", 40, [[5], [4, 2], [3, 1]]),
        ([1, 2, 3, 9], "fffd", 16, [[9], [3, 2], [1]]),
        ([], "", None, []),
    ],
)
def test_buckets_fill_from_the_end_by_dtype(sizes, dtypes, limit, plan):
    how = {} if limit is None else {"bucket_bytes": limit}
    found = overlap.plan_buckets(iter(tensors(sizes, dtypes)), **how)
    assert [[len(x) for x in bucket] for bucket in found] == plan


@pytest.mark.parametrize("size", [-1, math.nan])
def test_a_bucket_has_no_negative_size(size):
    with pytest.raises(ValueError, match="bucket_bytes is 0 or more, not"):
        overlap.plan_buckets([], size)


# State


class Normed(nn.Module):
    """It has buffers of two dtypes."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.norm.running_mean += seed
        self.norm.num_batches_tracked += seed
        self.norm.weight.requires_grad_(False).fill_(seed + 5.0)

    def forward(self, x):
        return self.last(self.norm(x))


@EVERYWHERE
def test_all_begin_with_the_state_of_the_first_rank(kind, world):
    def start():
        model = Normed(seed=dist.get_rank())
        ALL[kind](model)
        return list(model.state_dict().values())

    truth = list(Normed(seed=0).state_dict().values())
    for values in run(start, n=3, world=world).results:
        torch.testing.assert_close(values, truth, rtol=0, atol=0)


def test_the_state_travels_in_one_message_a_dtype():
    made = run(lambda: overlap.broadcast_state(tensors([3, 4, 5], "fif")))
    assert made.bytes_sent == [8 * 4 + 4 * 8, 0] and made.messages == [2, 0]


@pytest.mark.parametrize(
    ("kind", "keep", "broadcast"),
    [*((kind, False, True) for kind in OURS)]
    + [("overlapped", True, True), ("overlapped", False, False)],
)
def test_a_forward_pass_begins_with_the_first_ranks_buffers(kind, keep, broadcast):
    def buffers():
        ddp = ALL[kind](Normed(seed=0), broadcast_buffers=broadcast)
        for step in range(2):
            ddp(torch.randn(4, 6) + dist.get_rank() + step).sum().backward()
            ddp.finish()
        middle = ddp.module.norm.running_mean.clone()
        with ddp.no_sync() if keep else contextlib.nullcontext():
            ddp(torch.ones(4, 6))  # all see the same rows
        return middle, ddp.module.norm.running_mean

    (middle, after), *others = run(buffers, n=3).results
    for mine, then in others:
        assert not torch.equal(mine, middle)
        assert torch.equal(then, after) == (broadcast and not keep)


def test_one_rank_alone_may_evaluate():
    def evaluate():
        ddp = OverlappedDDP(Normed(seed=0)).eval()
        if dist.get_rank() == 1:
            ddp(torch.ones(2, 6))

    assert sum(run(evaluate).messages) == 2  # the state, in two dtypes


# When it travels


def deep(width):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(6)])


def one_step(make, width=64, rows=64, step=None):
    """Where told, an Adam for each bucket makes a step in `finish` or after it."""
    ddp = make(deep(width))
    parts = [torch.optim.Adam(b.weights) for b in ddp.buckets] if step else []
    dist.barrier()
    ddp(torch.ones(rows, width)).sum().backward()
    ddp.finish(then=(lambda k: parts[k].step()) if step == "in" else None)
    for part in parts if step == "after" else ():
        part.step()


each_alone = partial(partial, bucket_bytes=1)


@pytest.mark.parametrize(
    ("make", "sums", "early"),
    [
        (NaiveDDP, 12, [0]),
        (FlatDDP, 1, [0]),
        (each_alone(BucketedDDP), 12, [0]),
        (each_alone(OverlappedDDP), 12, range(8, 13)),
    ],
)
def test_only_the_overlapped_one_sends_during_backward(make, sums, early):
    made = run(one_step, make, cluster="2xK80")
    meta = run(one_step, make, cluster="2xK80", device="meta")
    assert meta.elapsed == made.elapsed and meta.bytes_sent == made.bytes_sent
    mine = [e for e in made.timeline if e.rank == 0]
    last = max(e.start for e in mine if e.kind == "compute" and e.name == "mm")
    starts = [e.start for e in mine if e.name == "all_reduce"]
    assert len(starts) == sums
    assert sum(start < last for start in starts) in early


def test_optimizers_work_while_later_buckets_travel():
    step = partial(run, one_step, each_alone(BucketedDDP), 512, cluster="2xK80")
    hidden, after = (step(step=when) for when in ("in", "after"))
    assert hidden.elapsed < 0.95 * after.elapsed
    assert hidden.bytes_sent == after.bytes_sent


def test_hooks_save_the_memory_of_the_gradients():
    size = sum(p.nbytes for p in deep(256).parameters())
    late = run(one_step, BucketedDDP, 256, 1).peak_memory[0]
    early = run(one_step, OverlappedDDP, 256, 1).peak_memory[0]
    assert 3 * size < late < 3.05 * size  # weights, buckets, gradients
    assert 2.1 * size < early < 2.3 * size  # the gradient of one layer at a time


class Busy(nn.Module):
    """Layers (forward seconds, backward seconds, bytes of its weight or 0)."""

    def __init__(self, layers):
        super().__init__()
        self.times = [times for *times, _ in layers]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(x // 4), requires_grad=x > 0) for *_, x in layers
        )

    def forward(self, x):
        for weight, times in zip(self.weights, self.times, strict=True):
            x = Takes.apply(x + weight.sum(), *times)
        return x


def busy_step(layers, bucket_bytes):
    ddp = OverlappedDDP(Busy(layers), bucket_bytes=bucket_bytes)
    dist.barrier()
    start = d2lpar.now()
    ddp(torch.ones((), requires_grad=True)).backward()
    ddp.finish()
    return start, d2lpar.now()


@pytest.mark.parametrize("seed", [0, 82])
def test_exercise_08_2_predicts_what_is_exposed(seed):
    alpha, n = 2e-5, 2
    for case in ex_08_2.cases(np.random.default_rng(seed)):
        layers, limit, seconds = case.inputs[0]
        if not any(size for *_, size in layers):
            continue  # there is nothing to wrap
        beta = (seconds(2e6) - seconds(1e6)) / 1e6
        cluster = d2lpar.Cluster.ideal(n, alpha, beta)
        made = run(busy_step, layers, limit, cluster=cluster)
        ring = lambda size, beta=beta: 2 * (n - 1) * (alpha + beta * size / n)
        step, hidden = ex_08_2.timing(layers, limit, ring)
        start, end = made.results[0]
        assert end - start == pytest.approx(step, rel=1e-4)
        part = made.timeline.between(start, end)
        assert part.exposed(0) == pytest.approx(hidden, rel=1e-3, abs=1e-6)


# What goes wrong

TWICE = "last.bias has got a second gradient before finish(): call finish() after each"
SPARSE = "sparse_coo: make the embedding with sparse=False"


@pytest.mark.parametrize(
    ("kinds", "make", "error", "sentence"),
    [
        (OURS, lambda: 3, TypeError, "wraps a torch.nn.Module, not a int"),
        (OURS, lambda: NaiveDDP(tied()), TypeError, "not a NaiveDDP"),
        (OURS, nn.ReLU, ValueError, "No parameter of this model requires"),
        (OURS, lambda: tied().requires_grad_(False), ValueError, "No parameter"),
        (OURS, lambda: nn.Embedding(5, 2, sparse=True), TypeError, SPARSE),
        (["overlapped", "usual buckets"], tied, RuntimeError, TWICE),
    ],
)
def test_what_cannot_be_trained_is_refused(kinds, make, error, sentence):
    def step(kind):
        ddp = ALL[kind](make())
        x = torch.tensor([1]) if make is not tied else X
        for _ in range(2):  # the first finish is forgotten
            ddp(x).sum().backward()
        ddp.finish()

    for kind in kinds:
        with pytest.raises(d2lpar.RankError) as caught:
            run(step, kind, n=1, world="gloo")  # in "sim", the last is a RaceError
        cause = caught.value.__cause__
        assert type(cause) is error and sentence in str(cause)


def test_no_sync_ends_also_where_the_inside_fails():
    def program():
        ddp = OverlappedDDP(tied())
        with pytest.raises(KeyError), ddp.no_sync():
            raise KeyError
        return ddp.synchronised

    assert run(program, n=1).results == [True]


def test_nothing_is_left_behind():
    def count():
        gc.collect()
        return sum(type(x) is overlap.Bucket for x in gc.get_objects())

    before = count()
    run(one_step, OverlappedDDP)
    assert count() == before
