"""Requirements that many exercises share: each is a row of the report."""

import torch

from ..report.units import show_bytes, show_seconds
from .equality import same
from .judging import Requirement

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "matmul"}
NATIVE = "native collectives called"  # the row of exercises that are about messages
UNTOUCHED = "ranks whose input changed"


def bytes_sent(allowed, exactly=True):
    """`allowed(case)`: bytes that each rank sends, a list or one number for all."""
    return Requirement(
        "bytes sent by a rank", lambda a: a.run.bytes_sent, allowed, exactly, show_bytes
    )


def messages(allowed, exactly=True):
    """`allowed(case)`: messages of all ranks together."""
    return Requirement(
        "messages of all ranks", lambda a: sum(a.run.messages), allowed, exactly
    )


def rounds(allowed, exactly=True):
    """`allowed(case)`: the longest chain of messages."""
    return Requirement("rounds", lambda a: a.run.rounds, allowed, exactly)


def extra_memory(allowed, exactly=False):
    """`allowed(case)`: most bytes that a rank allocates at once, besides inputs.

    In a traced case these are not tensors only, and `allowed` adds `case.noise`.
    """
    peak = lambda attempt: attempt.run.peak_memory
    return Requirement("extra memory of a rank", peak, allowed, exactly, show_bytes)


def seconds(allowed, exactly=True):
    """`allowed(case)`: virtual seconds until the last rank is done."""
    return Requirement("time", lambda a: a.run.elapsed, allowed, exactly, show_seconds)


def from_messages():
    """No native collective is called: the answer is made of messages."""
    return Requirement(
        NATIVE,
        lambda a: len(collectives(a.run)),
        lambda case: 0,
        instead=lambda a: any(name != "barrier" for name in collectives(a.run)),
    )


def untouched(k=0):
    """Argument k is on every rank as it was before."""

    def changed(attempt):
        before = [arguments[k] for arguments in attempt.case.inputs]
        after = [arguments[k] for arguments in attempt.args]
        return sum(not same(a, b) for a, b in zip(after, before, strict=True))

    return Requirement(UNTOUCHED, changed, lambda case: 0)


def same_bits():
    """All ranks hold the same bits, not only nearly the same numbers."""

    def others(attempt):
        bits = list(map(_bits, attempt.came))
        return sum(x != bits[0] for x in bits)

    return Requirement("ranks with other bits than rank 0", others, lambda case: 0)


def _bits(value):
    """The memory of a tensor of any dtype, or of all in a list."""
    if isinstance(value, list):
        return list(map(_bits, value))
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
    return Requirement(
        "messages not waited for", lambda a: a.run.ledger.unwaited(), lambda case: 0
    )
