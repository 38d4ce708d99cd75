"""PyTorch's own simulator beside ours: `LocalTensorMode`, private, since torch 2.10.

It runs a program once, on tensors that hold the values of all ranks, where we run a
thread per rank.  Both do the same steps in one process, in turn, on one thread.  Wrong
programs and those of torch's wrappers have a process each, which may hang.
"""

import copy
import itertools
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from d2lpar.launch import run as launch
from d2lpar.report.units import show_seconds

from .mesh import split_by_torch
from .race import MOST, row, step_of
from .training import MICRO, squares, torchs_step

TITLE = "Beside LocalTensorMode: our part of its seconds, a step on one thread"
OURS, THEIRS = "our simulator", "LocalTensorMode"
ROWS, LIMIT = 64, 20.0  # of a batch; seconds for a wrong program


class World(NamedTuple):
    """What differs between the two: who has which values, and who is a neighbour."""

    share: Callable  # (r -> tensor) -> the tensor of this rank, or of all
    peer: Callable  # k -> rank r + k
    isend: Callable
    irecv: Callable
    wait: Callable


def in_ours(program, *arguments):
    """Call program(world, *arguments) on this rank."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine = lambda make: make(r), lambda k: (r + k) % n
    waited = lambda work: work.wait()
    return program(World(*mine, dist.isend, dist.irecv, waited), *arguments)


def in_theirs(n, program, *arguments):
    """Call program(world, *arguments) once, for n ranks, and return what it returns."""
    from torch.distributed import _local_tensor as local
    from torch.distributed._local_tensor._c10d import local_p2p_op, wait_all
    from torch.testing._internal.distributed.fake_pg import FakeStore

    peers = lambda k: local.LocalIntNode({r: (r + k) % n for r in range(n)})
    peer = lambda k: torch.SymInt(peers(k))
    isend, irecv = (
        lambda x, peer, act=act: local_p2p_op(peer, x, act)
        for act in (dist.isend, dist.irecv)
    )

    def call(_):
        with local.LocalTensorMode(n) as mode:
            found.append(
                program(World(mode.rank_map, peer, isend, irecv, wait_all), *arguments)
            )

    found = []
    dist.init_process_group("fake", rank=0, world_size=n, store=FakeStore())
    try:
        with local.LocalRunnerMode(n, 1, call):  # without it nobody sends
            pass
    finally:
        dist.destroy_process_group()
    return found[0]


# Programs that both run: (world, size) -> a step, which returns tensors


def mlp(width):
    """An MLP of the same values everywhere, and its batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU())
    model.append(nn.Linear(4 * width, width))
    return model, torch.randn(ROWS, width)


def dtensors(world, width):
    """A step of an MLP that `parallelize_module` splits."""
    model, x = mlp(width)
    model = split_by_torch(model)
    return step_of(model, lambda: model(x).square().mean().backward())


class Megatron(torch.autograd.Function):
    """An all-reduce forward and nothing backward (g), or the other way round (f)."""

    @staticmethod
    def forward(ctx, x, forward):
        ctx.forward, y = forward, x.clone()
        if forward:
            dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        dx = dy.clone()
        if not ctx.forward:
            dist.all_reduce(dx)
        return dx, None


def by_hand(world, width):
    """A step of the same MLP, with shares of its weights and Megatron's functions."""

    def share(name, dim=None):
        whole = lambda: mlp(width)[0].get_parameter(name).detach()
        part = lambda r: whole().chunk(dist.get_world_size(), dim)[r].clone()
        mine = world.share((lambda _: whole()) if dim is None else part)
        return mine.requires_grad_()

    shares = share("0.weight", 0), share("0.bias", 0), share("2.weight", 1)
    last, x = share("2.bias"), world.share(lambda _: mlp(width)[1]).requires_grad_()

    def step():
        columns, bias, rows = shares
        for tensor in (x, last, *shares):
            tensor.grad = None
        h = F.relu(F.linear(Megatron.apply(x, False), columns, bias))
        y = Megatron.apply(F.linear(h, rows), True) + last
        y.square().mean().backward()
        return [tensor.grad for tensor in (x, last, *shares)]

    return step


def ring(world, size):
    """A step in which every message of `size` bytes goes round, and all add them up."""

    def step():
        x = world.share(lambda r: torch.full((size // 4,), r + 1.0))
        total = x.clone()
        for _ in range(dist.get_world_size() - 1):
            y = torch.empty_like(x)
            works = world.isend(x, world.peer(1)), world.irecv(y, world.peer(-1))
            for work in works:
                world.wait(work)
            total += y
            x = y
        return [total]

    return step


PROGRAMS = {
    "DTensor MLP, 64 features": (dtensors, 64),
    "MLP by hand, 64 features": (by_hand, 64),
    "ring, 4 kB": (ring, 4096),
    "DTensor MLP, 1,024 features": (dtensors, 1024),
    "MLP by hand, 1,024 features": (by_hand, 1024),
    "ring, 4 MB": (ring, 2**22),
}


def steps(world, name, count):
    """(seconds, tensors) of `count` steps, from a barrier to the next."""
    make, size = PROGRAMS[name]
    step = make(world, size)
    step()  # warms up
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        tensors = step()
    dist.barrier()
    took = time.perf_counter() - start
    return took, [getattr(x, "to_local", lambda x=x: x)().detach() for x in tensors]


def our_steps(n, *given):
    """Call `steps` in our simulator: seconds, and a list of tensors per rank."""
    run = launch.run(in_ours, steps, *given, world_size=n, backend="sim")
    return run.results[0][0], [tensors for _, tensors in run.results]


def their_steps(n, *given):
    """Call `steps` in LocalTensorMode, with the same outcome."""
    took, tensors = in_theirs(n, steps, *given)
    return took, [[x._local_tensors[r] for x in tensors] for r in range(n)]


def measure(n, name, seconds):
    """A row of one program on n ranks: our seconds of a step over theirs.

    Both take turns, at least three times; the ratio is the median of the turns'.
    """
    threads, times = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        (took, ours), (other, theirs) = our_steps(n, name, 1), their_steps(n, name, 1)
        for mine, yours in zip(sum(ours, []), sum(theirs, []), strict=True):
            torch.testing.assert_close(mine, yours, rtol=1e-3, atol=1e-5)
        count = max(1, min(MOST, int(seconds / 6 / max(took, other))))
        start = time.perf_counter()
        while len(times) < 3 or (
            len(times) < MOST and time.perf_counter() - start < seconds
        ):
            pair = our_steps(n, name, count)[0], their_steps(n, name, count)[0]
            times.append([took / count for took in pair])
    finally:
        torch.set_num_threads(threads)
    ratio = statistics.median(a / b for a, b in times)
    took, other = map(statistics.median, zip(*times, strict=True))
    figures = {"ratio": ratio, "seconds": took, "theirs": other, "rounds": len(times)}
    shown = f"{ratio:.2f} of {show_seconds(float(f'{other:.3g}'))}"
    return [row(TITLE, name, f"{n} ranks", shown, **figures)]


# Programs that go wrong, and torch's wrappers: what they compute, and what is right


def mismatched(world):
    """Rank 0 calls an all-reduce, and the others a broadcast."""
    x = world.share(lambda r: torch.ones(1))
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)
    return x, None


def cycle(world):
    """Every rank waits for a message before it sends one."""
    x, y = (world.share(lambda r: torch.ones(1)) for _ in range(2))
    world.wait(world.irecv(y, world.peer(-1)))
    world.wait(world.isend(x, world.peer(1)))
    return y, None


def reused(world):
    """Every rank sends 1, and writes 9 into the buffer before it waits for the send."""
    x, y = (world.share(lambda r: torch.ones(1)) for _ in range(2))
    sent = world.isend(x, world.peer(1))
    x.fill_(9)
    received = world.irecv(y, world.peer(-1))
    for work in (sent, received):
        world.wait(work)
    return y, None


def wrapped(world, wrap):
    """Gradients with a part of the batch each, and those of the whole batch."""
    model, batch = mlp(16)
    one = copy.deepcopy(model)
    x = world.share(lambda r: mlp(16)[1].chunk(dist.get_world_size())[r])
    model = wrap(model)
    for each, rows in ((model, x), (one, batch)):
        each(rows).square().mean().backward()
    grad = next(model.parameters()).grad
    return getattr(grad, "full_tensor", lambda: grad)(), next(one.parameters()).grad


def fully_sharded(model):
    """Wrap it as FSDP2 does."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def pipelined(world):
    """Gradients of the first of two stages, and the same without a pipeline."""
    (stage, last), x = (mlp(16)[0] for _ in range(2)), torch.ones(MICRO, 16)
    r, y = dist.get_rank(), torch.zeros(MICRO, 16)
    one = copy.deepcopy(stage)
    (squares(last(one(x)), y) / MICRO).backward()
    last.zero_grad()
    torchs_step(stage if r == 0 else last, x, y)()
    return next(stage.parameters()).grad, next(one.parameters()).grad


WRONG = {
    "mismatched collectives": mismatched,
    "a cycle of receives": cycle,
    "a buffer reused after its isend": reused,
    "DDP": partial(wrapped, wrap=nn.parallel.DistributedDataParallel),
    "FSDP2": partial(wrapped, wrap=fully_sharded),
    "Schedule1F1B": pipelined,
}


def tell(who, name):
    """Print what becomes of a program on two ranks: what it returns, or its error."""
    try:
        if who == OURS:
            run = launch.run(in_ours, WRONG[name], world_size=2, backend="sim")
            found, right = run.results[0]
        else:
            pair = in_theirs(2, WRONG[name])
            found, right = (getattr(x, "_local_tensors", {0: x})[0] for x in pair)
    except Exception as error:
        lines = len(set(re.findall(r"\w\.py:\d+", str(error))))
        words = (str(error).strip() or "no words").splitlines()[0][:60]
        said = f"names {lines} lines" if lines > 1 else words
        print(f"{type(error).__name__}: {said}")
    else:
        if right is None:
            print(f"returns {found.item():g} without a word")
        else:
            same = found is not None and torch.allclose(found, right, atol=1e-6)
            print("runs, and is right" if same else "runs, and is wrong")


def outcomes(name, limit=LIMIT):
    """Two rows: what each does with this program, in a process with a time limit."""
    for who in (THEIRS, OURS):
        code = f"from bench.local_tensor import tell; tell({who!r}, {name!r})"
        given = {"cwd": Path(__file__).parents[1], "capture_output": True, "text": True}
        try:
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, timeout=limit, **given)
            *_, said = done.stdout.splitlines() or [f"ends with {done.returncode}"]
        except subprocess.TimeoutExpired:
            said = f"hangs for {limit:g} s"
        yield row("Beside LocalTensorMode: what goes wrong", name, who, said)


def plan(ranks, quick):
    """Functions that return rows, or one that says why there are none."""
    try:
        from torch.distributed import _local_tensor  # noqa: F401
    except ImportError:
        said = f"left out: torch {torch.__version__} has none, or another"
        return [partial(lambda: [row(TITLE, THEIRS, "", said)])]
    names = list(PROGRAMS)[: 3 if quick else None]
    pairs = itertools.product(names, ranks or ([2] if quick else [2, 4, 8, 16]))
    found = [partial(measure, n, name, 0.2 if quick else 6.0) for name, n in pairs]
    return found + [
        partial(outcomes, name) for name in list(WRONG)[: 1 if quick else None]
    ]
