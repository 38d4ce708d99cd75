"""PyTorch's own simulator beside ours: `LocalTensorMode`, private, since torch 2.10.

It runs a program once, on tensors that hold the values of all ranks, where we run a
thread per rank.  Both do the same steps in one process, in turn, on one thread.  Wrong
programs, and those of torch's wrappers, have a process each: some hang.
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
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from d2lpar.launch import run as launch
from d2lpar.report.units import show_seconds
from d2lpar.sim.patching import patched
from d2lpar.tensor_parallel import products

from .mesh import split_by_torch
from .race import MOST, row, step_of
from .training import MICRO, ROWS, squares, torchs_step

TITLE = "Beside LocalTensorMode: our part of its seconds, a step on one thread"
OURS, THEIRS = "our simulator", "LocalTensorMode"


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
    wait = lambda work: work.wait()
    return program(World(*mine, dist.isend, dist.irecv, wait), *arguments)


def theirs():
    """Return what of torch's is private: ImportError where it is not there."""
    import torch.distributed._local_tensor as local
    from torch.distributed._local_tensor import _c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not hasattr(_c10d, "local_p2p_op") or not hasattr(local, "LocalRunnerMode"):
        raise ImportError("an older LocalTensorMode, which cannot send")
    return local, _c10d.local_p2p_op, _c10d.wait_all, FakeStore()


def in_theirs(n, program, *arguments):
    """Call program(world, *arguments) once, for n ranks, and return what it returns."""
    local, p2p, wait_all, store = theirs()
    numbers = lambda k: local.LocalIntNode({r: (r + k) % n for r in range(n)})
    act = lambda name: lambda x, peer: p2p(peer, x, getattr(dist, name))
    rest = lambda k: torch.SymInt(numbers(k)), act("isend"), act("irecv"), wait_all
    found, threads = [], torch.get_num_threads()

    def call(_):
        torch.set_num_threads(threads)  # OpenMP keeps it per thread
        with local.LocalTensorMode(n) as mode:
            found.append(program(World(mode.rank_map, *rest), *arguments))

    dist.init_process_group("fake", rank=0, world_size=n, store=store)
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
    layers = [nn.Linear(width, 4 * width, bias=False), nn.ReLU()]
    layers.append(nn.Linear(4 * width, width, bias=False))
    return nn.Sequential(*layers), torch.randn(ROWS, width)


def dtensors(world, width):
    """Make a step of an MLP that `parallelize_module` splits."""
    model, x = mlp(width)
    model = split_by_torch(model)
    return step_of(model, lambda: model(x).square().mean().backward())


def by_hand(world, width):
    """Make a step of the same MLP from shares of its weights and chapter 12's moves."""
    whole = lambda k: mlp(width)[0][k].weight.detach()
    part = lambda k, dim, r: whole(k).chunk(dist.get_world_size(), dim)[r].clone()
    makers = partial(part, 0, 0), partial(part, 2, 1), lambda _: mlp(width)[1]
    first, second, x = (world.share(make).requires_grad_() for make in makers)

    def step():
        first.grad = second.grad = x.grad = None
        h = F.relu(F.linear(products.Enter.apply(x), first))
        products.Add.apply(F.linear(h, second)).square().mean().backward()
        return [first.grad, second.grad, x.grad]

    return step


def ring(world, size):
    """Make a step in which messages of `size` bytes go round, and all add them up."""

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
    """Return (seconds, tensors) of `count` steps, from a barrier to a barrier."""
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
    """Call `steps` in our simulator: seconds, and the tensors of all ranks."""
    run = launch.run(in_ours, steps, *given, world_size=n, backend="sim")
    return run.results[0][0], [x for _, tensors in run.results for x in tensors]


def their_steps(n, *given):
    """Call `steps` in LocalTensorMode, with the same outcome."""
    took, tensors = in_theirs(n, steps, *given)
    return took, [x._local_tensors[r] for r in range(n) for x in tensors]


def measure(n, name, rounds):
    """A row of one program on n ranks; `rounds` times each takes its turn."""
    threads, both = torch.get_num_threads(), (our_steps, their_steps)
    torch.set_num_threads(1)
    native = lambda _: lambda x, group: dist.all_reduce(x, group=group)
    try:
        with patched((products, "allreduce", native)):  # chapter 12's moves
            first, tensors = zip(*(each(n, name, 1) for each in both), strict=True)
            torch.testing.assert_close(*tensors, rtol=1e-3, atol=1e-5)
            count = max(1, min(MOST, int(0.5 / max(first))))
            turns = [[each(n, name, count)[0] for each in both] for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    ratio = statistics.median(mine / yours for mine, yours in turns)
    took, other = (statistics.median(x) / count for x in zip(*turns, strict=True))
    shown = f"{ratio:.2f} of {show_seconds(float(f'{other:.3g}'))}"
    figures = {"ratio": ratio, "seconds": took, "theirs": other, "rounds": rounds}
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
    world.wait(world.irecv(y, world.peer(-1)))
    world.wait(sent)
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


def pipelined(world):
    """Gradients of the first of two stages, and the same without a pipeline."""
    (stage, last), x = (mlp(16)[0] for _ in range(2)), torch.ones(MICRO, 16)
    one, y = copy.deepcopy(stage), torch.zeros(MICRO, 16)
    (squares(last(one(x)), y) / MICRO).backward()
    last.zero_grad()
    torchs_step(last if dist.get_rank() else stage, x, y)()
    return next(stage.parameters()).grad, next(one.parameters()).grad


WRONG = {
    "mismatched collectives": mismatched,
    "a cycle of receives": cycle,
    "a buffer reused after its isend": reused,
    "DDP": partial(wrapped, wrap=nn.parallel.DistributedDataParallel),
    "FSDP2": partial(wrapped, wrap=fully_shard),
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
        said = {1: "names the line", 2: "names both lines"}.get(lines, words)
        print(f"{type(error).__name__}: {said}")
    else:
        if right is None:
            print(f"returns {found.item():g} without a word")
        else:
            same = found is not None and torch.allclose(found, right, atol=1e-6)
            print(f"runs, and is {'right' if same else 'wrong'}")


def outcomes(name, limit=20.0):
    """Two rows: what each does with this program, in a process of so many seconds."""
    for who in (THEIRS, OURS):
        code = f"from bench.local_tensor import tell; tell({who!r}, {name!r})"
        command, root = [sys.executable, "-c", code], Path(__file__).parents[1]
        given = {"cwd": root, "capture_output": True, "text": True, "timeout": limit}
        try:
            done = subprocess.run(command, **given)
            said = [f"ends with {done.returncode}", *done.stdout.splitlines()][-1]
        except subprocess.TimeoutExpired:
            said = f"hangs for {limit:g} s"
        yield row("Beside LocalTensorMode: what goes wrong", name, who, said)


def plan(ranks, quick):
    """Functions that return rows, or one that says why there are none."""
    try:
        theirs()
    except ImportError:
        said = f"left out: torch {torch.__version__} does not have it"
        return [partial(lambda: [row(TITLE, THEIRS, "", said)])]
    names, wrong = list(PROGRAMS)[: 3 if quick else None], list(WRONG)
    pairs = itertools.product(ranks or ([2] if quick else [2, 4, 8, 16]), names)
    races = [partial(measure, *pair, 3 if quick else 9) for pair in pairs]
    return races + [partial(outcomes, name) for name in wrong[: 1 if quick else None]]
