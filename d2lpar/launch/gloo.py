"""Every call in normal form, carried out by torch's Gloo backend.

Gloo moves contiguous CPU memory.  What it lacks is made from what it has:

    gather, scatter          messages on tags of their own
    all_gather               native; blocks of unequal sizes: a broadcast each
    all_to_all               native on bytes, any sizes
    reduce_scatter           all_to_all of the blocks, added in the order of the ranks
    all_reduce, reduce       native; dtypes it cannot add: all_gather, then added
    avg                      the sum, divided
    CUDA, not contiguous     copied to the host and back

Data only moves as bytes, so every dtype can.
"""

import datetime
import os

import torch
from torch.distributed import (
    AllreduceOptions,
    BroadcastOptions,
    ProcessGroupGloo,
    ReduceOp,
    ReduceOptions,
)

from ..report.calls import reduced
from ..sim.torch_private import LAST_TAG

PRIVATE = LAST_TAG  # tags from here on belong to gather and scatter
FOREVER = datetime.timedelta(days=7)  # the launcher sees what is stuck
_ADDED = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_ADDED |= {torch.int8, torch.uint8, torch.int32, torch.int64}
_OPS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.SUM,
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
}


class Device:
    """The network interface that all Gloo groups of this process use."""

    def __init__(self, loopback=True, address=None):
        card = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        if loopback:
            address = address or "127.0.0.1"
            self.device = ProcessGroupGloo.create_device(hostname=address)
        elif card:  # the one that torch.distributed would take
            self.device = ProcessGroupGloo.create_device(interface=card)
        else:
            self.device = ProcessGroupGloo.create_default_device()

    def group(self, store, index, size):
        """A new ProcessGroupGloo, once all its members have asked for it."""
        options = ProcessGroupGloo._Options()
        options._devices, options._threads = [self.device], 2
        options._timeout = FOREVER
        return ProcessGroupGloo(store, index, size, options)


class Begun:
    """Native works in progress, and what is left to do when they are complete.

    `with_future`: the works know themselves when they are complete; messages do not.
    """

    __slots__ = ("works", "finish", "with_future")

    def __init__(self, works, finish=None, with_future=True):
        self.works, self.finish, self.with_future = works, finish, with_future


def begin(real, call):
    """Start the call on `real`, a ProcessGroupGloo; gives what has Begun."""
    return _KINDS[call.kind](real, call, call.ranks.index(call.rank))


def _bytes(tensors):
    """The bytes of some tensors in a row, in memory that Gloo can read."""
    if not _adjoin(tensors):
        flat = [_flat(tensor).cpu() for tensor in tensors]
        return flat[0] if len(flat) == 1 else torch.cat(flat)
    return _span(tensors)


def _flat(tensor):
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8)


def _landing(tensors):
    """(bytes to write to, copy them to the tensors); None where they are the same."""
    if _adjoin(tensors):
        return _span(tensors), None
    if tensors[0].device.type == "cuda":
        torch.cuda.current_stream().synchronize()  # nothing still reads or writes them
    sizes = _sizes(tensors)
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")

    def copy():
        for tensor, part in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

    return flat, copy


def _plain(tensor):
    """Can a message use the tensor's memory as it is?"""
    bare = tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()
    return bare and tensor.is_contiguous()


def _adjoin(tensors):
    """Do the tensors lie in host memory one after the other?"""
    first = tensors[0]
    if first.device.type != "cpu" or first.is_conj() or first.is_neg():
        return False
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        inside = tensor.untyped_storage().data_ptr() == storage
        if not inside or tensor.data_ptr() != end or not tensor.is_contiguous():
            return False
        end += tensor.nbytes
    return True


def _span(tensors):
    """One view, as bytes, of tensors that adjoin."""
    first, size = tensors[0], sum(_sizes(tensors))
    start = first.storage_offset() * first.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device="cpu")
    return whole.set_(first.untyped_storage(), start, (size,), (1,))


def _sizes(tensors):
    return [tensor.nbytes for tensor in tensors]


def _send(real, call, me):
    peer = call.ranks.index(call.peer)
    tensor = call.inputs[0]
    data = tensor if _plain(tensor) else _bytes([tensor])
    return Begun([real.send([data], peer, call.tag)], with_future=False)


def _recv(real, call, me):
    tensor = call.outputs[0]
    flat, finish = (tensor, None) if _plain(tensor) else _landing([tensor])
    if call.peer is None:
        works = [real.recv_anysource([flat], call.tag)]
    else:
        works = [real.recv([flat], call.ranks.index(call.peer), call.tag)]
    return Begun(works, finish, with_future=False)


def _broadcast(real, call, me):
    root = call.ranks.index(call.root)
    works, copies = [], []
    for tensor in call.outputs:
        flat, copy = (_bytes([tensor]), None) if root == me else _landing([tensor])
        works.append(_broadcast_bytes(real, flat, root))
        copies.append(copy)
    return Begun(works, lambda: _do_all(copies))


def _broadcast_bytes(real, flat, root):
    options = BroadcastOptions()
    options.rootRank = root
    return real.broadcast([flat], options)


def _do_all(copies):
    for copy in copies:
        if copy is not None:
            copy()


def _all_gather(real, call, me):
    sizes = _sizes(call.outputs)
    if len(set(sizes)) == 1:
        flat, finish = _landing(call.outputs)
        return Begun([real._allgather_base(flat, _bytes(call.inputs))], finish)
    works, copies = [], []
    for root, output in enumerate(call.outputs):
        flat, copy = _landing([output])
        if root == me:
            flat.copy_(_bytes(call.inputs))
        works.append(_broadcast_bytes(real, flat, root))
        copies.append(copy)
    return Begun(works, lambda: _do_all(copies))


def _all_to_all(real, call, me):
    flat, finish = _landing(call.outputs)
    sizes = _sizes(call.outputs), _sizes(call.inputs)
    return Begun([real.alltoall_base(flat, _bytes(call.inputs), *sizes)], finish)


def _reduce_scatter(real, call, me):
    output, n = call.outputs[0], len(call.ranks)
    size = _sizes(call.inputs)[me]
    flat = torch.empty(n * size, dtype=torch.uint8, device="cpu")
    data = _bytes(call.inputs)
    work = real.alltoall_base(flat, data, [size] * n, _sizes(call.inputs))

    def finish():
        parts = [flat[i * size : (i + 1) * size].clone() for i in range(n)]
        terms = [part.view(output.dtype) for part in parts]
        output.copy_(reduced(terms, call.op).view(output.shape))

    return Begun([work], finish)


def _gather(real, call, me):
    root, tag = call.ranks.index(call.root), PRIVATE + call.seq % PRIVATE
    if me != root:
        return Begun([real.send([_bytes(call.inputs)], root, tag)], None, False)
    works, copies = [], []
    for source, output in enumerate(call.outputs):
        if source == me:
            output.copy_(call.inputs[0].clone().view(output.shape))
        else:
            flat, copy = _landing([output])
            works.append(real.recv([flat], source, tag))
            copies.append(copy)
    return Begun(works, lambda: _do_all(copies), False)


def _scatter(real, call, me):
    root, tag = call.ranks.index(call.root), PRIVATE + call.seq % PRIVATE
    output = call.outputs[0]
    if me != root:
        flat, finish = _landing([output])
        return Begun([real.recv([flat], root, tag)], finish, False)
    works = [
        real.send([_bytes([block])], target, tag)
        for target, block in enumerate(call.inputs)
        if target != me
    ]
    output.copy_(call.inputs[me].clone().view(output.shape))
    return Begun(works, None, False)


def _native(call):
    """Can Gloo itself add these tensors up?"""
    return call.op in _OPS and all(tensor.dtype in _ADDED for tensor in call.inputs)


def _host(tensor):
    """(tensor in memory that Gloo can add up in place, was it copied)."""
    if _adjoin([tensor]):
        return tensor, False
    return tensor.to("cpu", copy=True).contiguous(), True


def _all_reduce(real, call, me):
    works, parts = [], []
    options = AllreduceOptions()
    if not _native(call):
        return _all_reduce_of_bytes(real, call)
    options.reduceOp = _OPS[call.op]
    for tensor in call.outputs:
        host, copied = _host(tensor)
        works.append(real.allreduce([host], options))
        parts.append((tensor, host, copied))
    return Begun(works, lambda: _write_back(parts, call))


def _write_back(parts, call):
    for tensor, host, copied in parts:
        if call.op == "avg":
            mode = None if host.is_floating_point() else "trunc"
            host.copy_(torch.div(host, len(call.ranks), rounding_mode=mode))
        if copied:
            tensor.copy_(host)


def _all_reduce_of_bytes(real, call):
    works, gathered = [], []
    for tensor in call.inputs:
        data = _bytes([tensor])
        flat = torch.empty(len(call.ranks) * len(data), dtype=torch.uint8, device="cpu")
        works.append(real._allgather_base(flat, data))
        gathered.append(flat)

    def finish():
        for tensor, flat in zip(call.outputs, gathered, strict=True):
            terms = [p.view(tensor.dtype) for p in flat.chunk(len(call.ranks))]
            if call.root in (None, call.rank):
                tensor.copy_(reduced(terms, call.op).view(tensor.shape))

    return Begun(works, finish)


def _reduce(real, call, me):
    if not _native(call):
        return _all_reduce_of_bytes(real, call)
    options = ReduceOptions()
    options.reduceOp, options.rootRank = _OPS[call.op], call.ranks.index(call.root)
    works, parts = [], []
    for tensor in call.outputs:
        host, copied = _host(tensor)
        if call.rank != call.root:  # Gloo leaves partial sums in the others' memory
            host = host if copied else host.clone()
        else:
            parts.append((tensor, host, copied))
        works.append(real.reduce([host], options))
    return Begun(works, lambda: _write_back(parts, call))


def _barrier(real, call, me):
    return Begun([real.barrier()])


_CALLS = (_send, _recv, _broadcast, _all_gather, _all_to_all, _reduce_scatter)
_CALLS += (_gather, _scatter, _all_reduce, _reduce, _barrier)
_KINDS = {function.__name__[1:]: function for function in _CALLS}
