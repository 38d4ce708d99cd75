"""Requirements that many exercises share: each is a row of the report."""

from functools import partial

import torch

from ..report.units import show_bytes, show_seconds
from .equality import leaves, same
from .judging import Requirement

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "matmul"}
NATIVE = "native collectives called"  # the row of exercises that are about messages
UNTOUCHED = "ranks whose input changed"


# Rows of figures: (allowed, exactly), where `allowed(case)` is a number, or a list with
# one for each rank.  In a traced case memory is not of tensors only, and the exercise
# adds `case.noise`.
bytes_sent = partial(
    Requirement, "bytes sent by a rank", lambda a: a.run.bytes_sent, show=show_bytes
)
messages = partial(Requirement, "messages of all ranks", lambda a: sum(a.run.messages))
rounds = partial(Requirement, "rounds", lambda a: a.run.rounds)
extra_memory = partial(
    Requirement,
    "extra memory of a rank",
    lambda a: a.run.peak_memory,
    exactly=False,
    show=show_bytes,
)
seconds = partial(Requirement, "time", lambda a: a.run.elapsed, show=show_seconds)
NONE = lambda case: 0  # of what is counted, none is allowed


def from_messages():
    """No native collective is called: the answer is made of messages."""
    work = lambda attempt: {*collectives(attempt.run)} - {"barrier"}
    return Requirement(NATIVE, lambda a: len(collectives(a.run)), NONE, instead=work)


def untouched(k=0):
    """Argument k is on every rank as it was before."""
    return Requirement(UNTOUCHED, partial(changed, k=k), NONE)


def changed(attempt, k):
    """The number of ranks on which argument k is another one than before."""
    pairs = zip(attempt.args, attempt.case.inputs, strict=True)
    return sum(not same(after[k], before[k]) for after, before in pairs)


def same_bits():
    """All ranks hold the same bits, not only nearly the same numbers."""

    def others(attempt):
        bits = [[_bits(x) for _, x in leaves(value)] for value in attempt.came]
        return sum(x != bits[0] for x in bits)

    return Requirement("ranks with other bits than rank 0", others, NONE)


def _bits(value):
    """The memory of a tensor of any dtype, or another value itself."""
    if not torch.is_tensor(value):
        return value
    flat = value.reshape(-1)  # an empty one may have a stride of 0
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


def collectives(run):
    """Names of the native collectives in a Run, in order of time."""
    events = run.timeline.events if run is not None and run.timeline else []
    return [event.name for event in events if event.stream.startswith("comm")]


def operations(run):
    """Events of the operations that were charged, on a cluster with GPUs."""
    return [event for event in run.timeline.events if event.stream == "compute"]


def products(attempt):
    """FLOPs of each rank's products of matrices."""
    made = [0] * attempt.case.n
    for event in operations(attempt.run):
        if event.name in PRODUCTS:
            made[event.rank] += event.flops
    return made


def all_waited():
    """Every message that was started was waited for, by both of its ends."""
    open_ends = lambda attempt: attempt.run.ledger.unwaited()
    return Requirement("messages not waited for", open_ends, NONE)
