"""Functions of torch that ranks call in another way: inside of a run only."""

import contextlib
import functools
import inspect
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.distributed.nn.functional  # it keeps the group of the moment of its import
from torch.autograd import profiler
from torch.distributed import device_mesh

from .. import by_value
from ..patching import in_both, patched
from . import futures
from .group import Group, join_again
from .here import current_engine, here


@contextlib.contextmanager
def watch_calls():
    """Inside, batches of messages and freed storages are seen by the engine."""
    by_both = in_both(
        dist,
        c10d,
        batch_isend_irecv=_batched,
        new_group=_of_this_world,
        init_process_group=lambda _: _already_joined,
        monitored_barrier=_monitored,
    )
    with patched(
        *by_both,
        (c10d, "_pickler", lambda usual: _for_cells(usual, by_value.Pickler)),
        (c10d, "_unpickler", lambda usual: _for_cells(usual, by_value.Unpacker)),
        (device_mesh, "new_group", _of_this_world),
        (device_mesh, "init_process_group", lambda _: _already_joined),
        (torch.UntypedStorage, "resize_", _watched_resize),
        (torch.optim.Adam, "_init_group", _counting_on_host),
        (torch._C, "_get_accelerator", _of_this_rank),
        (torch._C, "_collect_all", futures.collecting),
        *((torch.Tensor, name, _looking) for name in LOOKS),
        *_profilers(),
    ):
        yield


LOOKS = "__repr__", "__array__", "numpy", "tolist"


def _looking(original):
    @functools.wraps(original)
    def look(self, *args, **kwargs):
        engine = current_engine()
        if engine is not None and engine.open:
            engine.looked_at(self)
        return original(self, *args, **kwargs)

    return look


def _for_cells(usual, copying):
    """`copying` where a cell's classes travel; a script's are on every rank."""

    def pickler(*args, **kwargs):
        engine = current_engine()
        plain = engine is not None and engine.gpus is not None
        return (usual if plain else copying)(*args, **kwargs)

    return pickler


def _batched(original):
    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list):
        engine = current_engine()
        if engine is None:
            return original(p2p_op_list)
        if not engine.receives_first:
            with engine.batch():
                return original(p2p_op_list)
        order = sorted(
            range(len(p2p_op_list)), key=lambda i: p2p_op_list[i].op is dist.isend
        )
        with engine.batch():
            works = original([p2p_op_list[i] for i in order])
        if len(works) < len(order):  # one for all of them
            return works
        return [works[order.index(i)] for i in range(len(order))]

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
        if not (options.get("use_local_synchronization") or any(more[1:2])):
            engine.agree(range(engine.world_size) if ranks is None else ranks)
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
    engine.asked = asked.get("backend")
    for name, mine in (("rank", engine.rank), ("world_size", engine.world_size)):
        if asked.get(name, -1) not in (-1, mine):
            raise ValueError(
                f"init_process_group({name}={asked[name]!r}) inside run, where {name} "
                f"is {mine}: leave {name} out, or change run's world_size"
            )
    if c10d.GroupMember.WORLD is None:
        if engine.gpus is not None:
            return join_again(engine)
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
        engine = current_engine()
        if engine is not None and engine.gpus is not None and engine.gpus.shapes:
            return torch.device("cuda")
        on_cpu = engine is not None and torch.get_default_device().type == "cpu"
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


def _profilers():
    """Refuse a second profiler at the same time, which would end this process."""
    holders = [None] if profiler._is_profiler_enabled else []  # None: not a rank

    def preparing(original):
        @functools.wraps(original)
        def _prepare_profiler(*args, **kwargs):
            mine = current_engine()
            if holders and holders != [mine]:
                other = holders[0]
                who = "this process" if other is None else f"rank {other.rank}"
                raise RuntimeError(
                    f"torch.profiler already watches {who}. Simulated ranks are "
                    "threads, and it watches one at a time: profile on one rank, as in "
                    '`if dist.get_rank() == 0`, or run on processes (backend="gloo")'
                )
            holders[:] = [mine]
            return original(*args, **kwargs)

        return _prepare_profiler

    def disabling(original):
        @functools.wraps(original)
        def _disable_profiler():
            holders.clear()
            return original()

        return _disable_profiler

    yield profiler, "_prepare_profiler", preparing
    yield profiler, "_disable_profiler", disabling


def close_profiler():
    """End what this rank profiles and has not ended; its thread is about to end."""
    if torch._C._autograd._profiler_enabled():
        profiler._disable_profiler()
        profiler._run_on_profiler_stop()


def _watched_resize(original):
    @functools.wraps(original)
    def resize_(self, size):
        result = original(self, size)
        engine = current_engine()
        if engine is not None:
            engine.storage_resized(self)
        return result

    return resize_


@contextlib.contextmanager
def saves_at_once():
    """Inside, a checkpoint saved by `async_save` of a rank that is a thread is there.

    torch saves it in a thread of its own, which would not be the rank.
    """
    submit = ThreadPoolExecutor.submit

    @functools.wraps(submit)
    def now(self, fn, /, *args, **kwargs):
        saver = getattr(fn, "__module__", "").startswith("torch.distributed.checkpoint")
        if here.engine is None or not saver:
            return submit(self, fn, *args, **kwargs)
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    with patched((ThreadPoolExecutor, "submit", lambda _: now)):
        yield
