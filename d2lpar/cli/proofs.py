"""Programs of a rank for `d2lpar doctor --prove`, each with its truth.

Each raises Wrong where a result is not what one device computes.
"""

import copy
import time

import torch
import torch.distributed as dist
from torch import nn

from .. import allreduce, scatter
from ..experts import ExpertParallel, MoE
from ..messages import exchange
from ..overlap import OverlappedDDP
from ..pipeline import Pipeline, schedule
from ..sharding import FSDP
from ..shared.data import digits
from ..tensor_parallel import parallel_mlp
from .bench.allreduces import NAMES

WIDTH, ROWS = 12, 8  # of the nets; of a rank's part of a batch


class Wrong(AssertionError):
    """Ranks that computed something else than one device."""


def expect(found, wanted, what):
    """Raise Wrong unless the tensors are equal, but for rounding in float64."""
    wanted = torch.as_tensor(wanted).to(found)
    if found.shape != wanted.shape:
        raise Wrong(f"{what}: shape {list(found.shape)}, not {list(wanted.shape)}")
    if not torch.allclose(found, wanted, rtol=1e-9, atol=1e-9):
        gap = (found - wanted).abs().max().item()
        raise Wrong(f"{what}: off by {gap:g} on rank {dist.get_rank()}")


def send_in_a_ring():
    """A token goes round by send and recv, then everybody's tensor by exchange."""
    n, r = dist.get_world_size(), dist.get_rank()
    token, right, left = torch.zeros(1), (r + 1) % n, (r - 1) % n
    if n > 1 and r == 0:
        dist.send(token, right)
        dist.recv(token, left)
        expect(token, [n - 1.0], "the token")
    elif n > 1:
        dist.recv(token, left)
        token += 1
        dist.send(token, right)
    mine = torch.full((1000,), float(r))
    incoming = torch.empty_like(mine)
    for k in range(1, n):
        exchange(mine, right, incoming, left)
        mine, incoming = incoming, mine
        expect(mine, torch.full((1000,), float((r - k) % n)), f"hop {k}")


def meet(x):
    """What the caller has made, what the rank makes and the digits are together."""
    images, labels = digits()[0]
    y = torch.ones(5)
    expect(x + y, [2.0] * 5, "the caller's ones and the rank's")
    if not x.device == y.device == images.device == labels.device:
        raise Wrong(f"{x.device}, {y.device} and {images.device} are not one device")


def drawn():
    """What a seed gives: a net's weights, numbers, places and a mask of dropout."""
    torch.manual_seed(0)
    shuffled = torch.randperm(9), torch.randn(9, generator=torch.Generator())
    return [
        *nn.Sequential(nn.Linear(4, 3), nn.Conv2d(1, 2, 3)).state_dict().values(),
        *(torch.rand(5), *shuffled, nn.functional.dropout(torch.ones(99))),
    ]


def draw():
    """A rank draws the numbers of the CPU, and they arrive where it computes."""
    with torch.device("cpu"):
        wanted = drawn()
    for i, (found, numbers) in enumerate(zip(drawn(), wanted, strict=True)):
        if found.device != torch.get_default_device():
            raise Wrong(f"number {i} is on {found.device}")
        expect(found, numbers, f"random numbers, {i}")


def native_sums():
    """`all_reduce` and `reduce`: every operation and dtype the course uses."""
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
    x = torch.full((5,), r + 1.0)
    dist.reduce(x, n - 1)
    if r == n - 1:
        expect(x, [float(terms.sum())] * 5, "reduce")


def table():
    """[n, n, 3]: row i, column j is what rank i has for rank j."""
    n = dist.get_world_size()
    return torch.arange(n * n * 3, dtype=torch.float64).view(n, n, 3)


def native_moves():
    """broadcast, scatter, gather and their relatives, as torch has them."""
    n, r, t = dist.get_world_size(), dist.get_rank(), table()
    x = t[r].clone()
    dist.broadcast(x, n - 1)
    expect(x, t[n - 1], "broadcast")
    one, every = torch.empty_like(t[0, 0]), [torch.empty_like(t[0]) for _ in range(n)]
    dist.scatter(one, list(t[0]) if r == 0 else None, 0)
    expect(one, t[0, r], "scatter")
    dist.gather(t[r], every if r == 0 else None, 0)
    if r == 0:
        expect(torch.stack(every), t, "gather")
    dist.all_gather(every, t[r])
    expect(torch.stack(every), t, "all_gather")
    whole, part = torch.empty_like(t), torch.empty_like(t[0])
    dist.all_gather_into_tensor(whole, t[r].contiguous())
    expect(whole, t, "all_gather_into_tensor")
    dist.reduce_scatter(one, list(t[r]))
    expect(one, t[:, r].sum(0), "reduce_scatter")
    dist.reduce_scatter_tensor(one.zero_().unsqueeze(0), t[r].contiguous())
    expect(one, t[:, r].sum(0), "reduce_scatter_tensor")
    dist.all_to_all(list(part), list(t[r]))
    expect(part, t[:, r], "all_to_all")
    dist.all_to_all_single(part.zero_(), t[r].contiguous())
    expect(part, t[:, r], "all_to_all_single")
    dist.barrier()


def moves_from_scratch():
    """The same by the functions of chapter 05."""
    n, r, t = dist.get_world_size(), dist.get_rank(), table()
    for root in {0, n - 1}:
        for broadcast in (scatter.flat_broadcast, scatter.tree_broadcast):
            x = t[r].clone()
            broadcast(x, root)
            expect(x, t[root], broadcast.__name__)
        for reduce in (scatter.flat_reduce, scatter.tree_reduce):
            x = t[r].clone()
            reduce(x, root)
            if r == root:
                expect(x, t.sum(0), reduce.__name__)
        one = torch.empty_like(t[0, 0])
        scatter.scatter(one, list(t[root]) if r == root else None, root)
        expect(one, t[root, r], "scatter")
        every = list(torch.empty_like(t)) if r == root else None
        scatter.gather(t[r], every, root)
        if r == root:
            expect(torch.stack(every), t, "gather")
    every, part = list(torch.empty_like(t)), torch.empty_like(t[0])
    scatter.all_gather(every, t[r])
    expect(torch.stack(every), t, "all_gather")
    scatter.reduce_scatter(one, list(t[r]))
    expect(one, t[:, r].sum(0), "reduce_scatter")
    scatter.all_to_all(list(part), list(t[r]))
    expect(part, t[:, r], "all_to_all")


def sums_from_scratch():
    """The all-reduces of chapter 06, of sizes that divide and that do not."""
    n, r = dist.get_world_size(), dist.get_rank()
    nodes = allreduce.node_groups(2 if n % 2 == 0 else 1)
    programs = {f"{x}_allreduce": None for x in NAMES.split()}
    for name, group in (programs | {"hierarchical_allreduce": nodes}).items():
        for size in (1, 7, 1000):
            x = torch.arange(size, dtype=torch.float64)
            wanted = x * (n * (n + 1) // 2)
            x *= r + 1
            getattr(allreduce, name)(x, group)
            expect(x, wanted, f"{name} of size {size}")


def make_net():
    """Four layers in float64, the same on every rank, and their batch [N, D]."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    x = torch.randn(ROWS * dist.get_world_size(), WIDTH, dtype=torch.float64)
    return nn.Sequential(*layers).double(), x


def train(net, weights, x, after_backward=None, step=None):
    """Two steps on the mean of the squares of the outputs."""
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        if after_backward is not None:
            after_backward()
        (step or torch.optim.SGD.step)(optimizer)


def data_parallel(trainer):
    """Two steps on the ranks' shares, against two with the whole batch."""
    net, x = make_net()
    one = copy.deepcopy(net)
    train(one, one.parameters(), x)
    mine = x[dist.get_rank() * ROWS :][:ROWS]
    out = trainer(net, mine)
    with torch.no_grad():
        expect(out(x), one(x), trainer.__name__)


def our_ddp(net, mine):
    """Chapter 08's, which sends while backward goes on."""
    ddp = OverlappedDDP(net, bucket_bytes=2000)
    train(ddp, ddp.parameters(), mine, ddp.finish)
    return ddp


def torchs_ddp(net, mine):
    """PyTorch's."""
    ddp = nn.parallel.DistributedDataParallel(net)
    train(ddp, ddp.parameters(), mine)
    return ddp.module


def our_fsdp(net, mine):
    """Chapter 10's, parameters, gradients and state in shards."""
    fsdp = FSDP(net)
    train(fsdp, fsdp.shards, mine, fsdp.finish, fsdp.step)
    return fsdp


def torchs_fsdp(net, mine):
    """PyTorch's `fully_shard`."""
    from torch.distributed.fsdp import fully_shard

    for layer in net[::2]:
        fully_shard(layer)
    fully_shard(net)
    train(net, net.parameters(), mine)
    return net


def split_mlp():
    """A step of chapter 12's MLP, its hidden features split over the ranks."""
    n = dist.get_world_size()
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, 4 * n), nn.Linear(4 * n, WIDTH)
    one = nn.Sequential(up, nn.GELU(), down).double()
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    split, gradients, outputs = parallel_mlp(*copy.deepcopy(one)), [], []
    for net in (one, split):
        leaf = x.clone().requires_grad_()
        train(net, net.parameters(), leaf)
        gradients.append(leaf.grad)
        outputs.append(net(x).detach())
    expect(gradients[1], gradients[0], "the gradient of the input")
    expect(outputs[1], outputs[0], "the outputs after two steps")


def experts_on_ranks():
    """Chapter 18's layer: each rank's tokens, and the gradients of its experts."""
    n, r = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    one = MoE(WIDTH, 4, 2 * n, k=2).double()
    split = ExpertParallel(one)
    x = torch.randn(ROWS * n, WIDTH, dtype=torch.float64)
    mine = slice(r * ROWS, (r + 1) * ROWS)
    y, out = one(x), split(x[mine])
    y.square().sum().backward()
    out.square().sum().backward()
    expect(out.detach(), y[mine].detach(), "the results")
    for k, p in enumerate(split.experts.parameters()):
        wanted = list(one.experts[2 * r : 2 * r + 2].parameters())[k].grad
        expect(p.grad, wanted, f"the gradient of parameter {k} of the experts")


def pipelined(name):
    """The gradients of this rank's stage, against those of the whole net."""
    n, r = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(n)]
    one = nn.Sequential(*stages).double()
    x = torch.randn(2 * n + 1, WIDTH, dtype=torch.float64)
    y = torch.randn(2 * n + 1, WIDTH, dtype=torch.float64)
    mine, squares = copy.deepcopy(one[r]), lambda out, y: (out - y).square().sum()
    (squares(one(x), y) / len(x)).backward()
    drive = Pipeline(schedule.make(name, n, 2 * n), [mine], squares)
    for step in (1, 2):  # the second knows all shapes
        mine.zero_grad()
        drive.step(x, y)
        for key, p in mine.named_parameters():
            wanted = one[r].get_parameter(key).grad
            expect(p.grad, wanted, f"{name}, step {step}, {key}")


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
                _synchronise(x)
                start = time.perf_counter()
                add_up(x)
                _synchronise(x)
                times.append(time.perf_counter() - start)
            seconds[name, size] = min(times[1:])
    return seconds


def _synchronise(x):
    if x.is_cuda:
        torch.cuda.synchronize()
