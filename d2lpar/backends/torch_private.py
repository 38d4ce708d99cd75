"""Everything private to torch that the worlds need, in one file.

`Group` is a process group written in Python: whatever reaches it, from user code, from
DistributedDataParallel's C++ or from a functional collective, becomes a `Call` and goes
to the engine of the rank.  `isolated_ranks` lets threads be ranks.
"""

import contextlib
import ctypes
import functools
import importlib
import inspect
import sys
import threading
import types
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.nn.functional  # it keeps the group of the moment of its import
import torch.utils._python_dispatch as modes
from torch._subclasses.fake_tensor import FakeTensor  # noqa: F401, for meter.py
from torch.overrides import has_torch_function_unary
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401

from .. import ship
from .calls import Call


class _Here(threading.local):
    engine = None  # of the rank that this thread is
    world = None  # its table of process groups


_here = _Here()

_of_process = None  # the engine, where the whole process is a rank


def current_engine():
    """The engine of the rank that runs in this thread, or None outside of a run."""
    return _here.engine or _of_process


def rank_process(engine):
    """This process is a rank: calls in any of its threads go to `engine`."""
    global _of_process
    _of_process = engine


@contextlib.contextmanager
def rank_thread(engine):
    """This thread is a rank: calls inside go to `engine`, backward stays in it."""
    _here.engine, _here.world = engine, _empty_world()
    with torch.autograd.set_multithreading_enabled(False):
        try:
            yield
        finally:
            torch._C._distributed_c10d._unregister_all_process_groups()
            _here.engine = _here.world = None


def _empty_world():
    """A table of process groups without any, with every field that this torch has."""
    usual = {name: getattr(c10d._world, name) for name in _TABLES}
    return types.SimpleNamespace(
        default_pg=None,
        group_count=0,
        pg_config_info=[],
        **{name: type(table)() for name, table in usual.items()},
    )


_COMPUTED = ("default_pg", "group_count", "pg_config_info")
_TABLES = [
    name
    for name, kind in vars(type(c10d._world)).items()
    if isinstance(kind, property) and name not in _COMPUTED
]


def load_compiler():
    """torch's compiler is imported, which computing with shapes only needs.

    In a thread of its own: the import leaves circles of references that hold every
    frame below it, and with the frames of a rank its tensors would stay alive.
    """
    if "torch._dynamo" not in sys.modules:
        importer = threading.Thread(
            target=importlib.import_module, args=["torch._dynamo"]
        )
        importer.start()
        importer.join()


def never_compiled(function):
    """`torch.compile` leaves the function alone, with all that it calls.

    A decorator of torch's own would import the compiler, which takes seconds.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


class _WorldOfThread:
    """torch's table of process groups: a rank's own in its thread, else the usual."""

    def __init__(self, usual):
        self._usual = usual

    @property
    def default_pg(self):  # asked for many times in every call
        return (_here.world or self._usual).default_pg

    @default_pg.setter
    def default_pg(self, group):
        (_here.world or self._usual).default_pg = group

    @property
    def group_count(self):
        return (_here.world or self._usual).group_count

    @group_count.setter
    def group_count(self, count):
        (_here.world or self._usual).group_count = count

    def __getattr__(self, name):
        return getattr(_here.world or self._usual, name)


@contextlib.contextmanager
def isolated_ranks():
    """Inside, threads may be ranks; afterwards torch is as it was."""
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()  # torch 2.11's CUDA build crashes in rank threads without it
    usual, hook = c10d._world, sys.excepthook
    flags = {k: v for k, v in vars(modes).items() if k.startswith("_is_in_")}
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    c10d._world = _WorldOfThread(usual)
    loss = loss_parallel()
    with watch_calls(), _short_ways(), _saves_at_once():
        try:
            yield
        finally:
            c10d._world, sys.excepthook = usual, hook
            set_loss_parallel(loss)
            vars(modes).update(flags)  # threads leave them in any order
            isolate(False)


_LOSS = "torch.distributed.tensor.parallel.loss"  # ranks may import it at any time


def loss_parallel():
    """Is this rank inside torch's `loss_parallel()`?  The switch is the process's."""
    loss = sys.modules.get(_LOSS)
    if loss is None or not hasattr(loss, "customized_loss_ops"):
        return False
    handlers = loss.DTensor._op_dispatcher._custom_op_handlers
    return all(op in handlers for op in loss.customized_loss_ops)


def set_loss_parallel(on):
    """The rank whose turn it is from now on is inside `loss_parallel()`, or not."""
    if on != loss_parallel():
        loss = sys.modules[_LOSS]
        handlers = loss.DTensor._op_dispatcher._custom_op_handlers
        if on:
            handlers.update(loss.customized_loss_ops)
        else:
            for op in loss.customized_loss_ops:
                handlers.pop(op, None)


@contextlib.contextmanager
def _saves_at_once():
    """Inside, a checkpoint saved by `async_save` of a rank that is a thread is there.

    torch saves it in a thread of its own, which would not be the rank.
    """
    submit = ThreadPoolExecutor.submit

    @functools.wraps(submit)
    def now(self, fn, /, *args, **kwargs):
        saver = getattr(fn, "__module__", "").startswith("torch.distributed.checkpoint")
        if _here.engine is None or not saver:
            return submit(self, fn, *args, **kwargs)
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = now
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit


@contextlib.contextmanager
def watch_calls():
    """Inside, batches of messages and freed storages are seen by the engine."""
    batch, resize = dist.batch_isend_irecv, torch.UntypedStorage.resize_
    init = torch.optim.Adam._init_group
    group, pickle = dist.new_group, (c10d._pickler, c10d._unpickler)
    join, barrier = dist.init_process_group, dist.monitored_barrier
    accelerator = torch._C._get_accelerator
    c10d._pickler, c10d._unpickler = ship.Pickler, ship.Unpacker
    dist.batch_isend_irecv = c10d.batch_isend_irecv = _batched(batch)
    dist.new_group = c10d.new_group = _of_this_world(group)
    dist.init_process_group = c10d.init_process_group = _already_joined
    dist.monitored_barrier = c10d.monitored_barrier = _monitored(barrier)
    torch.UntypedStorage.resize_ = _watched_resize(resize)
    torch.optim.Adam._init_group = _counting_on_host(init)
    torch._C._get_accelerator = _of_this_rank(accelerator)
    try:
        yield
    finally:
        dist.batch_isend_irecv = c10d.batch_isend_irecv = batch
        dist.new_group = c10d.new_group = group
        dist.init_process_group = c10d.init_process_group = join
        dist.monitored_barrier = c10d.monitored_barrier = barrier
        c10d._pickler, c10d._unpickler = pickle
        torch.UntypedStorage.resize_ = resize
        torch.optim.Adam._init_group = init
        torch._C._get_accelerator = accelerator


def _batched(original):
    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list):
        engine = current_engine()
        if engine is None:
            return original(p2p_op_list)
        with engine.batch():
            return original(p2p_op_list)

    return batch_isend_irecv


def _of_this_world(original):
    """A rank's groups belong to the world it runs in, whatever backend it names.

    "gloo" is heard: beside NCCL it makes a group whose messages go through the host.
    """

    @functools.wraps(original)
    def new_group(ranks=None, timeout=None, backend=None, *more, **options):
        engine = current_engine()
        if engine is None:
            return original(ranks, timeout, backend, *more, **options)
        with engine.groups_on_host(backend == "gloo"):
            return original(ranks, timeout, None, *more, **options)

    return new_group


_join = dist.init_process_group


@functools.wraps(_join)
def _already_joined(*args, **kwargs):
    """Scripts begin with `init_process_group`; a rank of `run` is connected already."""
    engine = current_engine()
    if engine is None:
        return _join(*args, **kwargs)
    asked = _SIGNATURE.bind(*args, **kwargs).arguments
    for name, mine in (("rank", engine.rank), ("world_size", engine.world_size)):
        if asked.get(name, -1) not in (-1, mine):
            raise ValueError(
                f"init_process_group({name}={asked[name]!r}) inside run, where {name} "
                f"is {mine}: leave {name} out, or change run's world_size"
            )
    if c10d.GroupMember.WORLD is None:
        raise RuntimeError(
            "init_process_group after destroy_process_group: run connects its ranks "
            "once; call run again instead"
        )
    engine.warn(
        "init_process_group does nothing inside run, which has connected the ranks."
    )


_SIGNATURE = inspect.signature(_join)


def _monitored(original):
    """A barrier: whoever is missing is named as in every other call."""

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        group = c10d.GroupMember.WORLD if group is None else group
        if not isinstance(group, Group):
            return original(group, timeout, wait_all_ranks)
        group.barrier().wait(timeout)

    return monitored_barrier


def _of_this_rank(original):
    """`fully_shard` goes to the GPU that torch sees; ranks may be on the CPU."""

    @functools.wraps(original)
    def _get_accelerator(*args):
        on_cpu = (
            current_engine() is not None and torch.get_default_device().type == "cpu"
        )
        return torch.device("cpu") if on_cpu else original(*args)

    return _get_accelerator


def _counting_on_host(original):
    """Adam reads the number of its step, which a tensor on "meta" does not have.

    torch 2.13 keeps it on the CPU; older ones where new tensors go.
    """

    @functools.wraps(original)
    def _init_group(self, *args, **kwargs):
        with torch.device("cpu"):
            return original(self, *args, **kwargs)

    return _init_group


def _watched_resize(original):
    @functools.wraps(original)
    def resize_(self, size):
        result = original(self, size)
        engine = current_engine()
        if engine is not None:
            engine.storage_resized(self)
        return result

    return resize_


# The short ways of messages.  torch looks at every argument several times, in Python;
# where all of them are plain, the outcome is known.  All else takes torch's own way.


@contextlib.contextmanager
def _short_ways():
    """Inside, plain messages of ranks that are threads go straight to the engine."""
    new, init = vars(dist.P2POp)["__new__"], dist.P2POp.__init__
    usual = dist.send, dist.recv, dist.batch_isend_irecv
    dist.P2POp.__new__ = staticmethod(_short_new(new.__func__))
    dist.P2POp.__init__ = _short_init(init)
    dist.send = c10d.send = _short_send(dist.send)
    dist.recv = c10d.recv = _short_recv(dist.recv)
    dist.batch_isend_irecv = c10d.batch_isend_irecv = _short_batch(usual[2])
    try:
        yield
    finally:
        dist.P2POp.__new__, dist.P2POp.__init__ = new, init
        dist.send, dist.recv, dist.batch_isend_irecv = usual
        c10d.send, c10d.recv, c10d.batch_isend_irecv = usual


def _plain_group(tensor, peer, group, tag, group_peer=None):
    """This rank's default group if the message is in it and plain, else None."""
    world = _here.world
    mine = world and world.default_pg
    if (
        type(mine) is Group
        and (group is None or group is mine)
        and group_peer is None
        and type(peer) is int
        and 0 <= peer < len(mine.ranks)
        and peer != mine.index
        and type(tag) is int
        and 0 <= tag < LAST_TAG
        and type(tensor) in _PLAIN
        and tensor.is_contiguous()
        and not has_torch_function_unary(tensor)
        and not tensor.is_complex()
    ):
        return mine
    return None


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _short_send(original):
    @functools.wraps(original)
    def send(tensor, dst=None, group=None, tag=0, group_dst=None):
        mine = _plain_group(tensor, dst, group, tag, group_dst)
        if mine is None:
            return original(tensor, dst, group, tag, group_dst)
        mine.engine.carry_out(mine.message("send", tensor, dst, tag))

    return send


def _short_recv(original):
    @functools.wraps(original)
    def recv(tensor, src=None, group=None, tag=0, group_src=None):
        mine = _plain_group(tensor, src, group, tag, group_src)
        if mine is None:
            return original(tensor, src, group, tag, group_src)
        mine.engine.carry_out(mine.message("recv", tensor, src, tag))
        return src

    return recv


def _short_new(original):
    @functools.wraps(original)
    def __new__(cls, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        if (op is _isend or op is _irecv) and isinstance(tensor, torch.Tensor):
            return object.__new__(cls)
        return original(cls, op, tensor, peer, group, tag, group_peer)

    return __new__


def _short_init(original):
    @functools.wraps(original)
    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        mine = _plain_group(tensor, peer, group, tag, group_peer)
        if mine is None:
            original(self, op, tensor, peer, group, tag, group_peer)
        else:
            self.op, self.tensor, self.group, self.tag = op, tensor, mine, tag
            self.peer = self.group_peer = peer

    return __init__


def _short_batch(original):
    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list):
        if type(p2p_op_list) is not list:
            return original(p2p_op_list)
        mine = None
        for op in p2p_op_list:
            if type(op) is not dist.P2POp or op.group is None:
                return original(p2p_op_list)
            mine = _plain_group(op.tensor, op.group_peer, op.group, op.tag)
            if mine is None or not (op.op is _isend or op.op is _irecv):
                return original(p2p_op_list)
        if mine is None or mine._coalesced is not None:
            return original(p2p_op_list)
        return mine.batch(p2p_op_list)

    return batch_isend_irecv


_isend, _irecv = dist.isend, dist.irecv


def _in_one_piece(tensor):
    """Real backends read memory as it lies: Gloo in part silently, NCCL refuses."""
    return (
        tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=_CHANNELS_LAST))
    )


_CHANNELS_LAST = torch.channels_last


class raw_tensors:
    """Inside, tensor operations are unseen: no autograd, no dispatch modes."""

    def __enter__(self):
        self._guards = (
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableTorchDispatch(),
        )
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error):
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def copy_raw(source, target):
    """`target` holds the data of `source`; torch sees nothing of it."""
    if (
        source.is_cpu
        and target.is_cpu
        and source.dtype == target.dtype
        and (size := source.nbytes) == target.nbytes
        and source.is_contiguous()
        and target.is_contiguous()
        and not source.is_conj()
        and not source.is_neg()
    ):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    else:
        with raw_tensors():
            target.copy_(source.reshape(target.shape))


def inside_backward():
    """Is this thread in a node of a backward pass (and not in what comes after)?"""
    return torch._C._current_autograd_node() is not None


def after_backward(callback):
    """`callback` is called at the end of the backward pass of this thread."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def join_world(name, rank, world_size, store=None):
    """This rank is in the default process group; `name` is a registered backend."""
    hook = sys.excepthook
    _join(name, rank=rank, world_size=world_size, store=store)
    sys.excepthook = hook


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
    return _OP_NAMES[op.op if hasattr(op, "op") else op]


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
        return _AllOf(works)

    _coalesced = None

    @never_compiled
    def _post(self, kind, inputs=(), outputs=(), opts=None, **more):
        if kind in ("all_reduce", "reduce", "reduce_scatter"):
            more["op"] = _op(opts)
        if kind in ("broadcast", "reduce", "gather", "scatter"):
            more["root"] = self.ranks[opts.rootRank]
        me = self.ranks[self.index]
        inputs, outputs = list(inputs), list(outputs)
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
            if not _in_one_piece(tensor):
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
            raise ValueError(f"{word}={index}: a rank cannot send to itself")
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
                kind = "send" if each.op is _isend else "recv"
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
        return _AllOf([self._post("all_gather", [i], o) for o, i in pairs])

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        columns = zip(*output_lists, strict=True)
        return self.allgather([list(column) for column in columns], inputs)

    def all_gather_single(self, output, input, opts=None):
        return self._post("all_gather", [input], _parts(output, self.size()))

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return _AllOf([self.all_gather_single(o, i) for o, i in pairs])

    def reduce_scatter(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return _AllOf([self._post("reduce_scatter", i, [o], opts) for o, i in pairs])

    def reduce_scatter_single(self, output, input, opts=None):
        blocks = _parts(input, self.size())
        return self._post("reduce_scatter", blocks, [output], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        pairs = zip(outputs, inputs, strict=True)
        return _AllOf([self.reduce_scatter_single(o, i, opts) for o, i in pairs])

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


class _AllOf(dist.Work):
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
