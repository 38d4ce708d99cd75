"""One form for every operation of `torch.distributed`, and what each one costs.

All worlds turn an operation into a `Call`.  The bytes, messages and rounds of a native
collective are counted by formula, so that they are equal in every world.  That is a
convention: NCCL may run several rings or trees at once, which send as many bytes, or
reduce in the switch.  How long they take in the simulator, `sim/native.py` says.

    all_reduce              ring: reduce-scatter, then all-gather     2(n-1) rounds
    reduce_scatter          ring                                        n-1
    all_gather              ring                                        n-1
    broadcast, reduce       a chain along the ring, pipelined           n-1
    gather, scatter         the root talks to each rank in turn         n-1
    all_to_all              step k: rank r sends to rank r+k            n-1
    barrier                 nothing                                       0

Source of the ring's cost: Patarasuk and Yuan 2009.
"""

import functools
import math
from typing import NamedTuple

import torch

MESSAGES = ("send", "recv")
RINGS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


class Call:
    """An operation that one rank asks for; ranks in it are global numbers.

    kind        send, recv, all_reduce, broadcast, reduce, all_gather, ...
    group       name of the process group
    ranks       global ranks of the group, in group order
    rank        the rank that calls
    inputs      tensors read
    outputs     tensors written
    op          "sum", "avg", "max", ...
    root, tag   where there is one
    peer        the other end of a message; None: any source
    """

    def __init__(
        self, kind, group, ranks, rank, inputs=(), outputs=(), op="", root=None,
        peer=None, tag=0,
    ):  # fmt: skip
        self.kind, self.group, self.ranks, self.rank = kind, group, ranks, rank
        self.inputs, self.outputs, self.op = inputs, outputs, op
        self.root, self.peer, self.tag = root, peer, tag

    # what is known later
    seq = 0  # position among the collectives of the group on this rank
    id = 0  # position among all calls of this rank
    where = ("", 0)  # file and line of the caller
    label = None  # of `d2lpar.label`
    batch = 0  # nonzero inside batch_isend_irecv
    source = None  # the sender of a message, where it is known
    waited_for = False  # has the rank begun to wait for it?
    handed_on = False  # does a future tell somebody else that it is complete?
    asked = 0.0  # when the rank has begun it, in virtual time
    done, finish = False, 0.0  # is it complete, and since when, in virtual time
    start = None  # when its bytes began to move; then it is known when it will finish
    spans = None  # the memory that it uses, where somebody has asked; see `sim.races`
    _meta = None
    _index = None

    @property
    def index(self):
        """Position of the calling rank in the group."""
        if self._index is None:
            self._index = self.ranks.index(self.rank)
        return self._index

    @property
    def meta(self):
        """What the ranks must agree on."""
        if self._meta is None:
            inputs, outputs = map(entry_of, self.inputs), map(entry_of, self.outputs)
            self._meta = Meta(
                self.kind, self.op, self.root, tuple(inputs), tuple(outputs)
            )
        return self._meta

    @property
    def nbytes(self):
        """Payload of a message in bytes."""
        return (self.inputs or self.outputs)[0].nbytes

    def __str__(self):
        if self.kind == "send":
            return f"send(dst={self.peer})"
        if self.kind == "recv":
            return f"recv(src={'any' if self.peer is None else self.peer})"
        return self.kind


class Meta(NamedTuple):
    """What ranks must agree on: picklable, without the data."""

    kind: str
    op: str
    root: int | None
    inputs: tuple  # ((shape, dtype), ...)
    outputs: tuple

    def __str__(self):
        details = [self.op] if self.op else []
        if self.root is not None:
            details.append(f"root={self.root}")
        shown = self.inputs or self.outputs
        text = f"{self.kind}({', '.join(details)})" if details else self.kind
        if not shown:
            return text
        parts = [f"{dtype}{list(shape)}" for shape, dtype in shown[:4]]
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        return f"{text} of {', '.join(parts)}{more}"


_DTYPES = {}


def entry_of(tensor):
    """(shape, name of the dtype) of a tensor."""
    dtype = tensor.dtype
    if dtype not in _DTYPES:
        _DTYPES[dtype] = str(dtype)[6:]
    return tuple(tensor.shape), _DTYPES[dtype]


def part_of(tensor):
    """(begin, end, whole) of a contiguous piece of a tensor's memory, in elements."""
    begin, count = tensor.storage_offset(), tensor.numel()
    return begin, begin + count, tensor.untyped_storage().nbytes() // tensor.itemsize


def numel(shape):
    """Number of elements of a shape."""
    return math.prod(shape)


def disagreement(metas):
    """Why these ranks' collectives do not fit together: (rank, other rank) or None.

    `metas` maps a position in the group to the Meta of that rank; not all ranks need
    be there.
    """
    first, *others = metas
    for other in others:
        a, b = metas[first], metas[other]
        same = (a.kind, a.op, a.root) == (b.kind, b.op, b.root)
        if not same or not _fits(a, b, first, other):
            return first, other
    return None


def _fits(a, b, i, j):
    """Do the tensors of ranks i and j in the group match, for one kind of call?"""

    def equal(x, y):
        return x[1] == y[1] and numel(x[0]) == numel(y[0])

    if a.kind in ("all_reduce", "broadcast", "reduce"):
        return a.inputs == b.inputs
    if a.kind == "reduce_scatter":
        return all(map(equal, a.inputs, b.inputs))
    if a.kind == "all_gather":
        return equal(a.inputs[0], b.outputs[i]) and equal(b.inputs[0], a.outputs[j])
    if a.kind == "gather" and (a.outputs or b.outputs):
        root, leaf, at = (a, b, j) if a.outputs else (b, a, i)
        return equal(leaf.inputs[0], root.outputs[at])
    if a.kind == "scatter" and (a.inputs or b.inputs):
        root, leaf, at = (a, b, j) if a.inputs else (b, a, i)
        return equal(leaf.outputs[0], root.inputs[at])
    if a.kind == "all_to_all":
        return equal(a.inputs[j], b.outputs[i]) and equal(b.inputs[i], a.outputs[j])
    return True


class Cost(NamedTuple):
    """What one rank sends in a collective, and how the whole call is timed."""

    sends: tuple  # ((position of the receiver in the group, bytes, messages), ...)
    rounds: int
    edges: tuple  # ((from position, to position), ...) in use at the same time
    steps: tuple  # bytes of the largest message of each step
    latencies: int  # how many alphas are paid


_ITEM = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4}
_ITEM |= {"int32": 4, "complex32": 4, "uint32": 4, "uint64": 8}
_ITEM |= {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}


def size_of(entry):
    """Bytes of one (shape, dtype)."""
    shape, dtype = entry
    return numel(shape) * _ITEM.get(dtype, 1)


def cost_of(meta, n, r, position_of_root=None):
    """The cost of a native collective to the rank at position r of n (see the top).

    `meta` is rank r's own, so a reduction's sizes are known; blocks of other ranks
    that it cannot know are taken to be as large as its own.
    """
    if n == 1 or meta.kind == "barrier":
        return Cost((), 0, (), (), 0)
    return _COSTS[meta.kind](meta, n, r, position_of_root)


# All ranks of a call ask for its cost, so what is as long as n is made once for all.


@functools.lru_cache(maxsize=16)
def _ring(n, without=None):
    """The edges of the ring, but for the one that begins or ends at `without`."""
    ring = ((i, (i + 1) % n) for i in range(n))
    if without is None:
        return tuple(ring)
    end, rank = without
    return tuple(edge for edge in ring if edge[end] != rank)


@functools.lru_cache(maxsize=16)
def _star(n, root, outward):
    """The edges from the root to all others, or from them to the root."""
    others = (i for i in range(n) if i != root)
    return tuple((root, i) if outward else (i, root) for i in others)


@functools.lru_cache(maxsize=16)
def _steps(size, count):
    """`count` steps of one size."""
    return (size,) * count


def _all_reduce(meta, n, r, root):
    sizes = [(numel(shape), _ITEM.get(dtype, 1)) for shape, dtype in meta.inputs]

    def chunk(i):
        """Bytes of chunk i: of each tensor, as `torch.tensor_split` cuts it."""
        return sum((total // n + (i < total % n)) * item for total, item in sizes)

    whole = sum(total * item for total, item in sizes)
    # reduce-scatter sends all but chunk r, all-gather all but chunk r+1
    sent = 2 * whole - chunk(r) - chunk((r + 1) % n)
    rounds = 2 * (n - 1)
    sends = (((r + 1) % n, sent, rounds),)
    return Cost(sends, rounds, _ring(n), _steps(chunk(0), rounds), rounds)


def _reduce_scatter(meta, n, r, root):
    blocks = [size_of(entry) for entry in meta.inputs]
    sends = (((r + 1) % n, sum(blocks) - blocks[r], n - 1),)  # all but its own
    return Cost(sends, n - 1, _ring(n), _steps(max(blocks), n - 1), n - 1)


def _all_gather(meta, n, r, root):
    blocks = [size_of(entry) for entry in meta.outputs]
    sends = (((r + 1) % n, sum(blocks) - blocks[(r + 1) % n], n - 1),)
    return Cost(sends, n - 1, _ring(n), _steps(max(blocks), n - 1), n - 1)


def _broadcast(meta, n, r, root):
    whole = sum(size_of(entry) for entry in meta.inputs)
    last = (r - root) % n == n - 1
    sends = () if last else (((r + 1) % n, whole, 1),)
    return Cost(sends, n - 1, _ring(n, (1, root)), (whole,), n - 1)


def _reduce(meta, n, r, root):
    whole = sum(size_of(entry) for entry in meta.inputs)
    sends = () if r == root else (((r + 1) % n, whole, 1),)
    return Cost(sends, n - 1, _ring(n, (0, root)), (whole,), n - 1)


def _gather(meta, n, r, root):
    block = size_of(meta.inputs[0])
    sends = () if r == root else ((root, block, 1),)
    return Cost(sends, n - 1, _star(n, root, False), _steps(block, n - 1), n - 1)


def _scatter(meta, n, r, root):
    block = size_of(meta.outputs[0])
    sends = ()
    if r == root:
        sends = tuple((i, size_of(meta.inputs[i]), 1) for i in range(n) if i != root)
    return Cost(sends, n - 1, _star(n, root, True), _steps(block, n - 1), n - 1)


def _all_to_all(meta, n, r, root):
    peers = [(r + k) % n for k in range(1, n)]
    sends = tuple((i, size_of(meta.inputs[i]), 1) for i in peers)
    edges = _ring(n)  # the edges of one step
    return Cost(sends, n - 1, edges, tuple(size for _, size, _ in sends), n - 1)


_FORMULAS = (_all_reduce, _reduce_scatter, _all_gather, _broadcast, _reduce)
_FORMULAS += (_gather, _scatter, _all_to_all)
_COSTS = {formula.__name__[1:]: formula for formula in _FORMULAS}

_REDUCE = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduced(tensors, op):
    """The reduction of the ranks' tensors, in rank order; "sum times 0.5" is one."""
    op, _, factor = op.partition(" times ")
    tensors = [t * float(factor) for t in tensors] if factor else tensors
    if op not in _REDUCE:
        raise ValueError(f"this course does not know the reduction {op}")
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = _REDUCE[op](total, tensor)
    if op == "avg":
        mode = None if total.is_floating_point() or total.is_complex() else "trunc"
        total = torch.div(total, len(tensors), rounding_mode=mode)
    return total
