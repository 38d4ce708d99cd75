"""What one process computes to measure a machine: a program for each figure.

Every program is done so often in a row that its beginning does not count.  Products
and operations are those of the course's models; see `here.py`.
"""

import itertools
import time
from functools import partial

import torch

from ..sim.meter import Meter
from . import run as launch
from .rounds import LineUp, take_turns

KB, MB = 2**10, 2**20
SIDES = (8, 32, 64, 128, 256, 512, 1024)  # of square matrices
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MOVED = (KB, 16 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 32 * MB)  # bytes of an argument
POOL = 64 * MB  # bytes from which operands are taken in turn, each of three
COLD = MB  # bytes of operands that a step finds in memory, not in a cache
NEW = (KB, MB, 31 * MB, 32 * MB, 64 * MB)  # glibc gives 32 MB and more back at once
SLOW = 1 / 8  # of float32's rate: a type with slower products is not native
LONG, MANY = 400e-6, 100  # seconds that operations in a row take; how many at most


def compute(seconds):
    """(spans, repetitions, what each key means, operations of the small step, fresh).

    `fresh`: {bytes: seconds of the first touch of new memory, several times}.
    """
    device = launch.device()
    programs, about = {}, {}
    fresh = {size: _fresh(size) for size in NEW if device.type == "cpu"}
    for kind, each in (
        ("products", _products(device)),
        ("operations", _operations(device)),
    ):
        for key, program in each.items():
            name, flops, moved, _ = _recorded(program)[-1]
            what = (key[1], flops) if kind == "products" else (name, moved)
            programs[key], about[key] = program, (kind, *what)
    for key, program in _copies(device).items():
        programs[key], about[key] = program, ("copies", key[1], key[2])
    programs["step"] = _small_step()
    calls = _recorded(programs["step"])
    counts = {key: _repeats(program) for key, program in programs.items()}
    rows = {key: repeated(f, counts[key]) for key, f in programs.items()}
    spans = take_turns(LineUp(rows), seconds, steady=True)
    return spans, counts, about, calls, fresh


def _repeats(program):
    """How often an operation is done in a row, so that it is not all beginning."""
    return max(1, min(MANY, int(LONG / max(_shortest(program), 1e-7))))


def repeated(program, count):
    """A function that does this so often in a row."""

    def repeat():
        for _ in range(count):
            program()

    return repeat


def _recorded(program):
    """[(name, FLOPs, bytes, dtype)] of the operations that a program does."""
    calls = []
    program()
    with Meter(lambda *call: calls.append(call)):
        program()
    return calls


def _products(device):
    """{("product", dtype, side): program}; slow types only up to where that shows."""
    programs = {}
    for dtype in FLOATS:
        for side in SIDES:
            a = torch.ones(side, side, dtype=dtype, device=device)
            programs["product", str(dtype).removeprefix("torch."), side] = lambda a=a: (
                a @ a
            )
            if dtype != torch.float32 and side == 128 and _slow(dtype, device):
                break
    if device.type == "cuda":
        for side in SIDES:
            a = torch.ones(side, side, device=device)
            programs["product", "tf32", side] = lambda a=a: _in_tf32(a)
    return programs


def _in_tf32(a):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ a
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _slow(dtype, device):
    """Whether products of this type run at a fraction of float32's rate."""
    took = []
    for each in (torch.float32, dtype):
        a = torch.ones(128, 128, dtype=each, device=device)
        took.append(_shortest(lambda a=a: a @ a))
    return took[0] / took[1] < SLOW


def _shortest(program):
    seconds = []
    for _ in range(5):
        start = launch.now()
        program()
        seconds.append(launch.now() - start)
    return min(seconds)


def _operations(device):
    """{("operation", name, size): program}; large operands come from memory."""
    programs, aten = {}, torch.ops.aten
    pool = [torch.zeros(POOL // 4, device=device) for _ in range(3)]
    for size in MOVED:
        each = {
            "read": lambda x, y, z: x.sum(),
            "write": lambda x, y, z: z.fill_(0.0),
            "copy": lambda x, y, z: z.copy_(x),
            "add": lambda x, y, z: x + y,
            "add in place": lambda x, y, z: z.add_(y),
        }
        if size <= 4 * MB:  # activations
            each |= {
                "relu": lambda x, y, z: torch.relu(x),
                "relu backward": lambda x, y, z: aten.threshold_backward(x, y, 0),
                "tanh": lambda x, y, z: torch.tanh(x),
                "tanh backward": lambda x, y, z: aten.tanh_backward(x, y),
                "gelu": lambda x, y, z: torch.nn.functional.gelu(x),
                "gelu backward": lambda x, y, z: aten.gelu_backward(x, y),
            }
        operands = _in_turns(pool, size)
        for name, function in each.items():
            key = "operation", name, size
            programs[key] = partial(_applied, function, operands)
    return programs


def _fresh(size):
    """Seconds that writing into new memory takes more than into old, five times.

    The system hands out large pieces page by page, when they are first touched.  A
    piece that was freed is old, unless it is so large that the system gets it back.
    """
    old = torch.zeros(size // 4, device="cpu")
    clock, seconds = time.process_time, []
    for _ in range(7):
        start = clock()
        torch.empty(size // 4, device="cpu").fill_(0.0)
        middle = clock()
        old.fill_(0.0)
        seconds.append(max(2 * middle - start - clock(), 0.0))
    return seconds[2:]


def _in_turns(pool, size):
    """Operands of this size: small ones stay in a cache, of large ones none does."""
    parts = [x.split(size // 4)[: POOL // size if size >= COLD else 1] for x in pool]
    return itertools.cycle(zip(*parts, strict=True))


def _applied(function, operands):
    return function(*next(operands))


def _copies(device):
    """{("copy", kind, bytes): program}, between host and GPU and inside it."""
    programs = {}
    for size in MOVED if device.type == "cuda" else ():
        there = torch.empty(size // 4, device=device)
        also = torch.empty_like(there)
        paged = torch.empty(size // 4, device="cpu")
        each = {"pageable": paged, "pinned": paged.pin_memory(), "inside": also}
        for name, source in each.items():
            copy = lambda a=there, b=source: a.copy_(b, non_blocking=True)
            programs["copy", name, size] = copy
        programs["copy", "allocated", size] = lambda a=there: torch.empty_like(a)
    return programs


def _small_step():
    """A training step whose tensors are so small that only Python takes time."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(6)]
    model = torch.nn.Sequential(*[m for a in layers for m in (a, torch.nn.ReLU())])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.ones(4, 4)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
