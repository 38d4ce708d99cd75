"""A rank that uses what a call of its own still reads or writes is told, and one that
makes another group than the others."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import d2lpar
from d2lpar import MismatchError, RaceError
from d2lpar.cli import main as cli
from d2lpar.messages import start_exchange


def reduced(then, before=None):
    """Each rank does `then(x)` while its all-reduce of x is in flight."""

    def program():
        x = torch.arange(12.0).reshape(3, 4) + dist.get_rank()
        y = before(x) if before else x
        work = dist.all_reduce(x if before is None else y, async_op=True)
        then(x)
        work.wait()
        return x.sum()

    return program


def met(send, receive):
    """Rank 0 does `send(x)` while it sends x[1], rank 1 `receive(x)` meanwhile."""

    def program():
        x, r = torch.arange(12.0).reshape(3, 4), dist.get_rank()
        call = dist.isend if r == 0 else dist.irecv
        work = call(x[1], 1 - r)
        (send if r == 0 else receive)(x)
        work.wait()

    return program


def twice(x):
    dist.all_reduce(x, async_op=True).wait()


def step(x):
    weight = nn.Parameter(torch.zeros_like(x))
    weight.grad = x
    torch.optim.SGD([weight], lr=0.1).step()


nothing = lambda x: None
RACES = {
    "divided": (reduced(lambda x: x.div_(4)), "changed x"),
    "long after it came": (
        reduced(lambda x: d2lpar.sleep(1.0) or x.mul_(2)),
        "changed",
    ),
    "read": (reduced(lambda x: x + 1), "read x"),
    "an item": (reduced(lambda x: x[0, 0].item()), "read"),
    "printed": (reduced(print), "read x"),
    "to numpy": (reduced(lambda x: x.numpy()), "read x"),
    "to a list": (reduced(lambda x: x.tolist()), "read x"),
    "drawn anew": (reduced(lambda x: x.random_()), "changed x"),
    "written by out=": (reduced(lambda x: torch.ones(3, 4, out=x)), "changed x"),
    "a view of it": (reduced(lambda x: x.t()[0].add_(1)), "changed x"),
    "a slice across": (reduced(lambda x: x[:, 2].sum()), "read x"),
    "by an optimizer": (reduced(step), "read"),
    "reduced again": (reduced(twice), "gave all_reduce x"),
    "what is sent is changed": (met(lambda x: x[1].zero_(), nothing), "changed x"),
    "what arrives is read": (met(nothing, lambda x: x.sum()), "read x"),
    "what arrives is changed": (met(nothing, lambda x: x[1:].exp_()), "changed x"),
    "a row across": (met(nothing, lambda x: x[:, 0].sum()), "read x"),
    "arrives where it is sent": (
        met(lambda x: dist.irecv(x[1], 1), lambda x: dist.isend(x[0], 0)),
        "gave recv",
    ),
}
RIGHT = {
    "other rows": met(lambda x: x[2].zero_(), lambda x: x[::2].mul_(2)),
    "what is sent is read": met(lambda x: x.sum(), nothing),
    "views and shapes": reduced(lambda x: (x.t(), x[0], torch.zeros_like(x), x.shape)),
    "a copy is reduced": reduced(lambda x: x.mul_(2), torch.clone),
    "a column copied": reduced(lambda x: x.zero_(), lambda x: x[:, 1].contiguous()),
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_told(name):
    program, words = RACES[name]
    with pytest.raises(RaceError, match=words) as caught:
        d2lpar.run(program, world_size=2, backend="sim")
    text = str(caught.value)
    assert "was in flight. Call wait() on it first." in text.split("\n")[0]
    assert "test_races.py" in caught.value.line


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_no_race_runs(name):
    d2lpar.run(RIGHT[name], world_size=2, backend="sim")


@pytest.mark.parametrize("future", [False, True])
def test_who_has_seen_that_it_is_complete_may_go_on(future):
    def program():
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        seen = work.get_future().done if future else work.is_completed
        while not seen():
            pass
        return x.add_(1).tolist()

    results = d2lpar.run(program, world_size=2, backend="sim").results
    assert results == [[3.0] * 3] * 2


def behind(then, *ends):
    """Each rank does `then(x)` before it needs the future of its all-reduce."""

    def program():
        x = torch.ones(2) + dist.get_rank()
        future = dist.all_reduce(x, async_op=True).get_future()
        then(x)
        for end in ends:
            end(future)
        return x.div_(2).tolist()

    return program


@pytest.mark.parametrize(
    "end",
    [
        lambda future: future.wait(),
        lambda future: future.then(lambda done: done.value()),
        lambda future: future.add_done_callback(lambda done: done.value()),
        lambda future: torch.futures.collect_all([future]).wait(),
        lambda future: torch.futures.wait_all([future]),
    ],
    ids="wait then callback collect_all wait_all".split(),
)
def test_behind_a_future(end):
    run = d2lpar.run(behind(nothing, end), world_size=3, backend="sim")
    assert run.results == [[3.0] * 2] * 3 and not run.warnings
    with pytest.raises(RaceError, match="changed x"):
        d2lpar.run(behind(lambda x: x.mul_(2), end), world_size=2, backend="sim")


def test_behind_a_future_that_nobody_needs():
    with pytest.raises(RaceError, match="changed x"):
        d2lpar.run(behind(nothing), world_size=2, backend="sim")


@pytest.mark.parametrize("waits", [False, True])
def test_a_hook_of_ddp_reduces_by_futures(waits):
    """In backward a future may be waited for, or is done at its end."""

    def halves(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        if waits:
            future.wait()
        return future.then(lambda done: done.value()[0] / 2)

    def program():
        model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
        model.register_comm_hook(None, halves)
        model(torch.ones(1, 3) + dist.get_rank()).sum().backward()
        return model.module.weight.grad.tolist()

    run = d2lpar.run(program, world_size=2, backend="sim")
    assert run.results == [[[1.5] * 3]] * 2


def test_what_a_rank_returns_is_read():
    def program():
        x = torch.ones(3)
        dist.all_reduce(x, async_op=True)
        return {"sums": [x]}

    with pytest.raises(RaceError, match="rank 0 returned a tensor while its"):
        d2lpar.run(program, world_size=2, backend="sim")


def pass_round(wrong):
    """Two buffers in turn, of which one is computed with while the other travels."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine, incoming, total = torch.full((4,), float(r)), torch.zeros(4), torch.zeros(4)
    for _ in range(n):
        works = start_exchange(mine, (r + 1) % n, incoming, (r - 1) % n)
        total += mine
        if wrong:
            mine *= 2
        for work in works:
            work.wait()
        mine, incoming = incoming, mine
    return total.tolist()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_two_buffers_in_turn(n):
    run = d2lpar.run(pass_round, False, world_size=n, backend="sim")
    assert run.results == [[n * (n - 1) / 2] * 4] * n
    with pytest.raises(RaceError, match="changed mine"):
        d2lpar.run(pass_round, True, world_size=n, backend="sim")


def bucketed(early):
    """Gradients in two buckets, each reduced while the other is computed."""
    buckets = [torch.ones(3), torch.ones(5)]
    works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
    for work, bucket in zip(works, buckets, strict=True):
        if early and bucket is buckets[1]:
            bucket /= dist.get_world_size()
        work.wait()
        if not early:
            bucket /= dist.get_world_size()
    return [bucket.tolist() for bucket in buckets]


def test_buckets_in_flight():
    run = d2lpar.run(bucketed, False, world_size=4, backend="sim")
    assert run.results == [[[1.0] * 3, [1.0] * 5]] * 4
    with pytest.raises(RaceError, match="changed bucket"):
        d2lpar.run(bucketed, True, world_size=4, backend="sim")


def accumulate(ddp):
    """Two backward passes, of which the second sends."""
    net = DistributedDataParallel(nn.Linear(4, 2)) if ddp else nn.Linear(4, 2)
    for k in range(2):
        with net.no_sync() if ddp and k == 0 else torch.enable_grad():
            net(torch.ones(3, 4)).sum().backward()
    works = [dist.all_reduce(p.grad, async_op=True) for p in net.parameters()]
    for work in works:
        work.wait()
    torch.optim.Adam(net.parameters()).step()


@pytest.mark.parametrize("ddp", [False, True])
def test_gradients_that_accumulate(ddp):
    d2lpar.run(accumulate, ddp, world_size=3, backend="sim")


def test_without_values_memory_is_told_apart():
    def program():
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        work = dist.all_reduce(x[1], async_op=True)
        y[1].add_(1)  # at the same place of other memory
        x[0].add_(1)
        work.wait()

    d2lpar.run(program, world_size=2, backend="sim", device="meta")
    with pytest.raises(RaceError):
        d2lpar.run(reduced(torch.neg), world_size=2, backend="sim", device="meta")


# Groups: all ranks make them, in one order


def groups_of(*lists_of):
    """Each rank makes the groups of its list, and sums over its own."""

    def program():
        r = dist.get_rank()
        made = {tuple(ranks): dist.new_group(ranks) for ranks in lists_of[r % 2]}
        x = torch.ones(1)
        dist.all_reduce(x, group=next(g for ranks, g in made.items() if r in ranks))
        return x.item()

    return program


def local():
    r = dist.get_rank()
    group = dist.new_group([r % 2, r % 2 + 2], use_local_synchronization=True)
    dist.barrier(group)


def another_mesh():
    init_device_mesh("cpu", (2, 2) if dist.get_rank() < 3 else (4, 1))


EVEN, ODD = [0, 2], [1, 3]
DIFFERENT = {
    "only the own group": groups_of([EVEN], [ODD]),
    "another order": groups_of([EVEN, ODD], [ODD, EVEN]),
    "another mesh": another_mesh,
}


@pytest.mark.parametrize("backend", ["sim", "gloo"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_groups_that_differ_are_told(name, backend):
    with pytest.raises(MismatchError, match="All ranks make all groups") as caught:
        d2lpar.run(DIFFERENT[name], world_size=4, backend=backend)
    first = str(caught.value).split("\n")[0]
    assert first.count("new_group([") == 2 and "where rank" in first


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_the_same_groups_in_one_order(backend):
    both = groups_of([EVEN, ODD], [EVEN, ODD])
    run = d2lpar.run(both, world_size=4, backend=backend)
    assert run.results == [2.0] * 4
    d2lpar.run(local, world_size=4, backend=backend)


def test_a_rank_that_makes_no_group_is_told():
    program = groups_of([EVEN], [])
    some = lambda: program() if dist.get_rank() % 2 == 0 else None
    with pytest.raises(MismatchError, match=r"rank 1 calls nothing where rank 0 calls"):
        d2lpar.run(some, world_size=4, backend="sim")


# A script's GPUs: what NCCL does, and plain `run` does not

ON_GPUS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

if sys.argv[1] == "mesh":
    init_device_mesh("cuda", (2,))
dist.init_process_group(sys.argv[2])
r, x, y = dist.get_rank(), torch.ones(4).cuda(), torch.empty(4, pin_memory=True).cuda()
if sys.argv[1] == "batch":
    ends = [dist.P2POp(dist.irecv, y, 1 - r), dist.P2POp(dist.isend, x, 1 - r)]
    dist.batch_isend_irecv(ends).pop().wait()
    x.zero_()
else:
    y.copy_(x)
    work = dist.all_reduce(y, async_op=True)
    y.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    y.sub_(1)
print(y.tolist())
"""


@pytest.mark.parametrize("world", [["-n", "2"], ["-n", "2", "--gloo"]])
@pytest.mark.parametrize("name", ["synchronize", "mesh", "batch"])
def test_what_waits_in_a_script(name, world, tmp_path, monkeypatch):
    """`synchronize` waits for all calls, and a batch of messages has one Work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ON_GPUS)
    call = lambda *more: CliRunner().invoke(
        cli.app, ["simulate", *world, "train.py", name, *more]
    )
    result = call("nccl")
    assert result.exit_code == 0, result.stderr
    assert "[rank 1] [1.0, 1.0, 1.0, 1.0]" in result.stdout
    assert "never waited" not in result.stdout + result.stderr
    if "--gloo" not in world:
        result = call("gloo")  # whose messages are none of the GPU's
        assert result.exit_code == 1 and "in flight" in result.stderr
