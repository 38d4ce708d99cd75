"""A process group written in Python.

Whatever reaches it, from user code, from DistributedDataParallel's C++ or from a
functional collective, becomes a `Call` and goes to the engine of the rank.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ...report.calls import Call
from .here import current_engine
from .tensors import held_by, in_one_piece, never_compiled

_join = dist.init_process_group  # before a run puts its own in its place


def join_world(name, rank, world_size, store=None):
    """This rank is in the default process group; `name` is a registered backend."""
    hook = sys.excepthook
    _join(name, rank=rank, world_size=world_size, store=store)
    sys.excepthook = hook
    engine = current_engine()
    if engine is not None:
        engine.joined = name, rank, world_size, store


def join_again(engine):
    """This rank, which has left the default process group, is in a new one."""
    name, rank, world_size, store = engine.joined
    engine.times_joined += 1
    again = dist.PrefixStore(f"again {engine.times_joined}", store)
    _join(name, rank=rank, world_size=world_size, store=again)


def register(name, engine_of_thread=current_engine):
    """Process groups of backend `name` are `Group`s of the calling rank's engine."""
    if name.upper() in dist.Backend._plugins:
        return

    def create(options, _):
        ranks = options.global_ranks_in_group or range(options.group_size)
        engine = engine_of_thread()
        group = Group(engine, str(options.group_id), tuple(ranks), options.group_rank)
        engine.group_made(group, options.store)
        return group

    dist.Backend.register_backend(
        name, create, extended_api=True, devices=["cpu", "cuda"]
    )


LAST_TAG = 1 << 30  # larger tags are used inside
_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_OP_NAMES = {getattr(dist.ReduceOp.RedOpType, name): name.lower() for name in _OPS}


def _op(opts):
    """Name of the reduction in the options of a collective; sum where none is."""
    op = getattr(opts, "reduceOp", None) if opts is not None else None
    if op is None:
        return "sum"
    name = _OP_NAMES[op.op if hasattr(op, "op") else op]
    return f"sum times {op.__getstate__()[1]}" if name == "premul_sum" else name


def reduction(op):
    """The ReduceOp of that name; the inverse of what a Call is told."""
    name, _, factor = op.partition(" times ")
    made = dist.ReduceOp.__new__(dist.ReduceOp)
    kind = getattr(dist.ReduceOp, "PREMUL_SUM" if factor else name.upper())
    made.__setstate__((kind, float(factor) if factor else None))
    return made


def _parts(tensor, n, sizes=None):
    """Views of `tensor`: n equal pieces, or pieces of `sizes` rows."""
    if sizes:
        return list(tensor.split(list(sizes)))
    return list(tensor.reshape(-1).tensor_split(n))


class Group(dist.ProcessGroup):
    """A process group whose operations all become a `Call` of the rank's engine."""

    def __init__(self, engine, name, ranks, index):
        super().__init__(index, len(ranks))
        self.engine, self.key, self.ranks, self.index = engine, name, ranks, index

    def size(self):
        return len(self.ranks)

    def rank(self):
        return self.index

    def getBackendName(self):
        return "d2lpar"

    @property
    def pg_name(self):
        return self.key

    @property
    def group_name(self):
        return self.key

    def __repr__(self):
        return f"Group(ranks={list(self.ranks)}, rank={self.ranks[self.index]})"

    def _set_sequence_number_for_group(self):
        pass

    def _get_backend(self, device):
        """This group serves every device itself; torch 2.14 and newer ask."""
        return self

    @property
    def _device_types(self):
        """Where the tensors of a call may be; torch's checkpoints ask.

        Nowhere until the group is made: torch 2.15 would record its calls, too.
        """
        if self not in c10d._world.pg_names:
            return []
        mine = torch.get_default_device()
        kinds = ["cpu", "cuda"] if mine.type == "cuda" else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    supports_coalescing = supports_splitting = False

    def _start_coalescing(self, device):
        self._coalesced = []

    def _end_coalescing(self, device):
        works, self._coalesced = self._coalesced, None
        return AllOf(works)

    _coalesced = None

    @never_compiled
    def _post(self, kind, inputs=(), outputs=(), opts=None, **more):
        here = current_engine()
        if here is not None and here is not self.engine:
            raise RuntimeError(
                f"rank {here.rank} calls {kind} on a process group object of rank "
                f"{self.engine.rank}: every rank has to use the one that it was "
                "given, and not to keep it where ranks share it"
            )
        if kind in ("all_reduce", "reduce", "reduce_scatter"):
            more["op"] = _op(opts)
        if kind in ("broadcast", "reduce", "gather", "scatter"):
            more["root"] = self.ranks[opts.rootRank]
        me = self.ranks[self.index]
        inputs = [held_by(tensor, kind) for tensor in inputs]
        outputs = [held_by(tensor, kind) for tensor in outputs]
        self._check(kind, inputs, outputs)
        call = Call(kind, self.key, self.ranks, me, inputs, outputs, **more)
        call._index = self.index
        work = self.engine.post(call)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check(self, kind, inputs, outputs):
        """Raise ValueError where the tensors cannot serve the ranks."""
        n = len(self.ranks)
        for tensor in (*inputs, *outputs):
            if not in_one_piece(tensor):
                raise ValueError(
                    f"{kind} needs contiguous tensors; this one has shape "
                    f"{list(tensor.shape)} and strides {tensor.stride()}: use a copy, "
                    "x.contiguous()"
                )
        for tensors, kinds, word in (
            (inputs, ("scatter", "reduce_scatter", "all_to_all"), "input"),
            (outputs, ("gather", "all_gather", "all_to_all"), "output"),
        ):
            if kind in kinds and tensors and len(tensors) != n:
                raise ValueError(
                    f"{kind} needs {n} {word} tensors, one per rank of the group, "
                    f"not {len(tensors)}"
                )
        if kind == "all_gather" and inputs[0].numel() != outputs[self.index].numel():
            raise ValueError(
                f"all_gather: this rank gives {inputs[0].numel()} elements and has "
                f"room for {outputs[self.index].numel()} of its own"
            )

    def _peer(self, index, word, tag=0):
        if not 0 <= index < len(self.ranks):
            raise ValueError(
                f"{word}={index}: this group has ranks 0 to {len(self.ranks) - 1}"
            )
        if index == self.index:
            way = "receive from" if word == "src" else "send to"
            raise ValueError(f"{word}={index}: a rank cannot {way} itself")
        if not 0 <= tag < LAST_TAG:
            raise ValueError(f"tag={tag}: tags go from 0 to {LAST_TAG - 1}")
        return self.ranks[index]

    # messages

    def message(self, kind, tensor, peer, tag):
        """The Call of a message of the default group."""
        ends = ((tensor,), ()) if kind == "send" else ((), (tensor,))
        return Call(kind, self.key, self.ranks, self.index, *ends, "", None, peer, tag)

    def batch(self, operations):
        """The Works of some P2POps of the default group, begun together."""
        engine, works = self.engine, []
        with engine.batch():
            for each in operations:
                kind = "send" if each.op is dist.isend else "recv"
                call = self.message(kind, each.tensor, each.peer, each.tag)
                works.append(engine.post(call))
        return works

    def send(self, tensors, dst, tag=0):
        peer = self._peer(dst, "dst", tag)
        return self._post("send", tensors, peer=peer, tag=tag)

    def recv(self, tensors, src, tag=0):
        peer = self._peer(src, "src", tag)
        return self._post("recv", outputs=tensors, peer=peer, tag=tag)

    def recv_anysource(self, tensors, tag=0):
        return self._post("recv", outputs=tensors, peer=None, tag=tag)

    # collectives

    def allreduce(self, tensors, opts=None):
        return self._post("all_reduce", tensors, tensors, opts)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._post("all_reduce", tensors, tensors, opts)

    def broadcast(self, tensors, opts=None):
        return self._post("broadcast", tensors, tensors, opts)

    def reduce(self, tensors, opts=None):
        return self._post("reduce", tensors, tensors, opts)

    def barrier(self, opts=None):
        return self._post("barrier")

    def gather(self, outputs, inputs, opts=None):
        return self._post("gather", inputs, outputs[0] if outputs else [], opts)

    def scatter(self, outputs, inputs, opts=None):
        return self._post("scatter", inputs[0] if inputs else [], outputs, opts)

    def allgather(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return AllOf([self._post("all_gather", [i], o) for o, i in pairs])

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        columns = zip(*output_lists, strict=True)
        return self.allgather([list(column) for column in columns], inputs)

    def all_gather_single(self, output, input, opts=None):
        return self._post("all_gather", [input], _parts(output, self.size()))

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return AllOf([self.all_gather_single(o, i) for o, i in pairs])

    def reduce_scatter(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return AllOf([self._post("reduce_scatter", i, [o], opts) for o, i in pairs])

    def reduce_scatter_single(self, output, input, opts=None):
        blocks = _parts(input, self.size())
        return self._post("reduce_scatter", blocks, [output], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return AllOf([self.reduce_scatter_single(o, i, opts) for o, i in pairs])

    def alltoall(self, outputs, inputs, opts=None):
        return self._post("all_to_all", inputs, outputs)

    def all_to_all_single(self, output, input, out_sizes=None, in_sizes=None, o=None):
        blocks = _parts(input, self.size(), in_sizes)
        return self._post("all_to_all", blocks, _parts(output, self.size(), out_sizes))

    # the names that torch 2.11 uses
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


class CallWork(dist.Work):
    """A call in progress; each world adds how to wait for it."""

    def __init__(self, engine, call):
        super().__init__()
        self.engine, self.call = engine, call

    def result(self):
        return self.call.outputs

    def exception(self):
        return None

    def synchronize(self):
        self.wait()

    def source_rank(self):
        """Position in the group of the sender of a message."""
        call = self.call
        return call.ranks.index(call.peer if call.source is None else call.source)

    _source_rank = source_rank


class AllOf(dist.Work):
    """Several works as one."""

    def __init__(self, works):
        super().__init__()
        self.works = works

    def wait(self, timeout=None):
        for work in self.works:
            work.wait()
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self.works)

    def get_future(self):
        if len(self.works) == 1:
            return self.works[0].get_future()
        return torch.futures.collect_all([w.get_future() for w in self.works])

    def result(self):
        return [tensor for work in self.works for tensor in work.result()]

    def exception(self):
        return None

    def synchronize(self):
        self.wait()
