"""The course's paths on the GPUs of this machine; `d2lpar doctor --prove` runs them.

A path is a program with its truth: what one device computes.  Every path runs in every
world of `d2lpar.cli.gpu_report`, which says what the ranks are.
"""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from d2lpar import allreduce, scatter
from d2lpar.cli import gpu_report
from d2lpar.experts import ExpertParallel, MoE
from d2lpar.launch import run as launch
from d2lpar.messages import exchange
from d2lpar.overlap import OverlappedDDP
from d2lpar.pipeline import Pipeline, schedule
from d2lpar.report.errors import RankError
from d2lpar.report.units import show_seconds
from d2lpar.sharding import FSDP
from d2lpar.shared.data import digits
from d2lpar.tensor_parallel import parallel_mlp

pytestmark = pytest.mark.gpu
WIDTH, ROWS = 12, 8  # of the nets; of a rank's part of a batch
SIZES = {"nccl": (2**16, 2**20, 2**24, 2**28), "gloo": (2**16, 2**20)}  # bytes


def pytest_generate_tests(metafunc):
    """Every test runs in the worlds of `d2lpar doctor --prove`, or in all there are."""
    chosen = getattr(metafunc.config, "worlds", gpu_report.worlds())
    metafunc.parametrize("world", chosen, ids=lambda each: each.name, scope="module")


def expect(found, wanted, what):
    """Raise unless the tensors are equal, but for rounding in float64."""
    say = lambda text: f"{what}: {' '.join(text.split())}"
    wanted = torch.as_tensor(wanted).to(found)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, msg=say)


# Messages and numbers


def meet(x):
    """What the caller has made, what the rank makes and the digits are together."""
    images, labels = digits()[0]
    y = torch.ones(5)
    expect(x + y, [2.0] * 5, "the caller's ones and the rank's")
    assert x.device == y.device == images.device == labels.device, "several devices"


def draw():
    """A rank draws the numbers of the CPU, and they arrive where it computes."""

    def drawn():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(1, 2, 3))
        numbers = [*net.state_dict().values(), torch.rand(5), torch.randperm(9)]
        numbers.append(torch.randn(9, generator=torch.Generator()))
        return [*numbers, nn.functional.dropout(torch.ones(99))]

    with torch.device("cpu"):
        wanted = drawn()
    for i, (found, numbers) in enumerate(zip(drawn(), wanted, strict=True)):
        assert found.device == torch.get_default_device(), f"number {i}: {found.device}"
        expect(found, numbers, f"random numbers, {i}")


def send_in_a_ring():
    """A token goes round by send and recv, then everybody's tensor by exchange."""
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    token, mine = torch.zeros(1), torch.full((1000,), float(r))
    if r > 0:
        dist.recv(token, left)
        expect(token, [r - 1.0], "the token")
    if r < n - 1:
        dist.send(token.fill_(r), right)
    for k in range(1, n):
        incoming = torch.empty_like(mine)
        exchange(mine, right, incoming, left)
        expect(mine := incoming, torch.full((1000,), float((r - k) % n)), f"hop {k}")


# Collectives


def native_sums():
    """`all_reduce`: every operation and dtype the course uses."""
    n, r = dist.get_world_size(), dist.get_rank()
    terms = torch.arange(1, n + 1, dtype=torch.float64)
    ops = {"SUM": terms.sum(), "MAX": n, "MIN": 1, "PRODUCT": terms.prod()}
    for name, wanted in (ops | {"AVG": terms.mean()}).items():
        x = torch.full((5,), r + 1.0, dtype=torch.float64)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        expect(x, [float(wanted)] * 5, f"all_reduce {name}")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        x = torch.full((5,), r + 1, dtype=dtype)
        dist.all_reduce(x, async_op=True).wait()
        expect(x.double(), [float(terms.sum())] * 5, f"all_reduce of {dtype}")


def table():
    """[n, n, 3]: row i, column j is what rank i has for rank j."""
    n = dist.get_world_size()
    return torch.arange(n * n * 3, dtype=torch.float64).view(n, n, 3)


def moves(home):
    """broadcast, scatter, gather and their relatives, torch's or chapter 05's."""
    n, r, t = dist.get_world_size(), dist.get_rank(), table()
    mine, one, part = t[r].clone(), torch.empty_like(t[0, 0]), torch.empty_like(t[0])
    for root in {0, n - 1}:
        at_root = lambda x, root=root: x if r == root else None
        for kind in ("flat_", "tree_") if home is scatter else ("",):
            x, y = t[r].clone(), t[r].clone()
            getattr(home, f"{kind}broadcast")(x, root)
            expect(x, t[root], f"{kind}broadcast")
            getattr(home, f"{kind}reduce")(y, root)
            if r == root:
                expect(y, t.sum(0), f"{kind}reduce")
        home.scatter(one, at_root(list(t[root])), root)
        expect(one, t[root, r], "scatter")
        every = list(torch.empty_like(t))
        home.gather(mine, at_root(every), root)
        if r == root:
            expect(torch.stack(every), t, "gather")
    every = list(torch.empty_like(t))
    home.all_gather(every, mine)
    expect(torch.stack(every), t, "all_gather")
    home.reduce_scatter(one, list(mine))
    expect(one, t[:, r].sum(0), "reduce_scatter")
    home.all_to_all(list(part), list(mine))
    expect(part, t[:, r], "all_to_all")


def native_moves():
    """The calls of torch that have no list, and the barrier."""
    r, t = dist.get_rank(), table()
    whole, part, mine = torch.empty_like(t), torch.empty_like(t[0]), t[r].contiguous()
    dist.all_gather_into_tensor(whole, mine)
    expect(whole, t, "all_gather_into_tensor")
    dist.reduce_scatter_tensor(part[:1], mine)
    expect(part[0], t[:, r].sum(0), "reduce_scatter_tensor")
    dist.all_to_all_single(part, mine)
    expect(part, t[:, r], "all_to_all_single")
    dist.barrier()


def sums_from_scratch():
    """The all-reduces of chapter 06, of sizes that divide and that do not."""
    n, r = dist.get_world_size(), dist.get_rank()
    names = "naive tree direct ring segmented_ring recursive_doubling halving_doubling"
    groups = dict.fromkeys(names.split())
    groups["hierarchical"] = allreduce.node_groups(2 if n % 2 == 0 else 1)
    for name, group in groups.items():
        for size in (1, 7, 1000):
            terms = torch.arange(size, dtype=torch.float64)
            x = terms * (r + 1)
            getattr(allreduce, f"{name}_allreduce")(x, group)
            expect(x, terms * (n * (n + 1) // 2), f"{name}_allreduce of size {size}")


# Training


def train(model, x):
    """The outputs after two steps; our models have a `finish` and a `step`."""
    weights = getattr(model, "shards", None) or model.parameters()
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        getattr(model, "finish", int)()
        getattr(model, "step", torch.optim.SGD.step)(optimizer)
    with torch.no_grad():
        return model(x)


def torchs_fsdp(net):
    """PyTorch's `fully_shard`."""
    for module in (*net[::2], net):
        fully_shard(module)
    return net


def data_parallel(wrap):
    """Two steps on the ranks' shares, against two with the whole batch."""
    n, r = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    x, net = torch.randn(n, ROWS, WIDTH).double(), nn.Sequential(*layers).double()
    wanted = train(copy.deepcopy(net), x)[r]
    expect(train(wrap(net), x[r]), wanted, "the outputs after two steps")


def split_mlp():
    """Two steps of an MLP, its hidden features split over the ranks."""
    n = dist.get_world_size()
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, 4 * n), nn.Linear(4 * n, WIDTH)
    one = nn.Sequential(up, nn.GELU(), down).double()
    split = parallel_mlp(*copy.deepcopy(one))
    theirs = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    ours = theirs.detach().clone().requires_grad_()
    expect(train(split, ours), train(one, theirs), "the outputs after two steps")
    expect(ours.grad, theirs.grad, "the gradient of the input")


def pipelined(name):
    """The gradients of this rank's stage, against those of the whole net."""
    n, r = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(n)]
    one = nn.Sequential(*stages).double()
    x, y = torch.randn(2, 2 * n + 1, WIDTH, dtype=torch.float64)
    mine, squares = copy.deepcopy(one[r]), lambda out, y: (out - y).square().sum()
    (squares(one(x), y) / len(x)).backward()
    drive = Pipeline(schedule.make(name, n, 2 * n), [mine], squares)
    for step in (1, 2):  # the second knows all shapes
        mine.zero_grad()
        drive.step(x, y)
        for key, p in mine.named_parameters():
            wanted = one[r].get_parameter(key).grad
            expect(p.grad, wanted, f"{name}, step {step}, {key}")


def experts_on_ranks():
    """Each rank's tokens, and the gradients of its experts."""
    n, r = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    one = MoE(WIDTH, 4, 2 * n, k=2).double()
    split = ExpertParallel(one)
    x = torch.randn(ROWS * n, WIDTH, dtype=torch.float64)
    y, out = one(x), split(x.chunk(n)[r])
    y.square().sum().backward()
    out.square().sum().backward()
    expect(out.detach(), y.detach().chunk(n)[r], "the results")
    for k, p in enumerate(split.experts.parameters()):
        wanted = list(one.experts[2 * r : 2 * r + 2].parameters())[k].grad
        expect(p.grad, wanted, f"the gradient of parameter {k} of the experts")


def one_fails():
    """Rank 1 raises; the others wait for it."""
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.all_reduce(torch.ones(1))


def one_is_missing():
    """Rank 0 waits for a message that rank 1 does not send."""
    if dist.get_rank() == 0:
        x = torch.zeros(1)
        dist.recv(x, 1)
        x.item()  # a GPU lags behind its rank


def time_sums(sizes):
    """{(name, bytes): seconds of one all-reduce on this rank}, the best of some."""
    rivals = {"native": dist.all_reduce, "ring": allreduce.ring_allreduce}
    seconds = {}
    for size in sizes:
        x = torch.zeros(size // 4)
        for name, add_up in rivals.items():
            times = []
            for _ in range(6):
                dist.barrier()
                start = launch.now()  # a GPU has caught up
                add_up(x)
                times.append(launch.now() - start)
            seconds[name, size] = min(times[1:])
    return seconds


# The tests: a row of the report each


def path(program, *args):
    """A test that runs the program on all ranks."""

    def test(world):
        world.run(program, *args)

    return test


def failing(program, **options):
    """A test that the program fails, and that the error names rank 1 as the cause."""

    def test(world, record_property):
        if world.n < 2:
            pytest.skip("needs two ranks")
        with pytest.raises(RankError) as caught:
            world.run(program, **options)
        text = str(caught.value).strip()
        assert caught.value.rank == 1, f"rank {caught.value.rank} is named: {text}"
        record_property("remark", text.splitlines()[0])

    return test


test_tensors_of_the_caller_and_of_the_rank = path(meet, torch.ones(5))
test_random_numbers = path(draw)
test_send_recv_and_exchange_in_a_ring = path(send_in_a_ring)
test_native_all_reduce = path(native_sums)
test_native_broadcast_to_all_to_all = path(moves, dist)
test_native_calls_without_lists = path(native_moves)
test_chapter_05_from_scratch = path(moves, scatter)
test_chapter_06_from_scratch = path(sums_from_scratch)
test_chapter_08_DDP = path(data_parallel, partial(OverlappedDDP, bucket_bytes=2000))
test_torch_DDP = path(data_parallel, nn.parallel.DistributedDataParallel)
test_chapter_10_FSDP = path(data_parallel, FSDP)
test_torch_fully_shard = path(data_parallel, torchs_fsdp)
test_chapter_12_split_MLP = path(split_mlp)
test_chapter_13_1F1B = path(pipelined, "1f1b")
test_chapter_13_zero_bubble = path(pipelined, "zb-h1")
test_chapter_18_experts = path(experts_on_ranks)
test_a_rank_that_fails_is_named = failing(one_fails)
test_a_rank_that_does_not_send_is_named = failing(one_is_missing, timeout=5.0)


def test_bandwidth_of_all_reduces(world, record_property):
    """Bytes that each rank sends in a second, as a ring would: 2(n-1)/n S / time."""
    if world.backend == "sim" or world.n < 2:
        pytest.skip("its clock is virtual" if world.n > 1 else "needs two ranks")
    results = world.run(time_sums, SIZES[world.backend]).results
    share, parts = 2 * (world.n - 1) / world.n, []
    for name, size in results[0]:
        seconds = max(each[name, size] for each in results)
        rate = f"{share * size / seconds / 1e9:.3g} GB/s"
        took = show_seconds(float(f"{seconds:.3g}"))
        parts.append(f"{name} {size // 1024} KB: {took}, {rate}")
    record_property("remark", "; ".join(parts))
