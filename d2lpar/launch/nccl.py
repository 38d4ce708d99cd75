"""Every call in normal form, carried out by torch's NCCL backend.

NCCL moves contiguous memory of this rank's GPU, in the order of the stream that calls.
Tensors elsewhere (pickled objects, for example) are copied to the GPU and back.
"""

import torch
import torch.distributed as dist

from ..sim import torch_private
from .gloo import FOREVER


class Device:
    """Makes the NCCL groups of this process."""

    def group(self, store, index, size):
        """A new ProcessGroupNCCL; its members connect in their first call."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = FOREVER
        return dist.ProcessGroupNCCL(store, index, size, options)


def begin(real, call):
    """Start the call on `real`, a ProcessGroupNCCL: (native work, what remains)."""
    if call.kind == "recv" and call.peer is None:
        raise RuntimeError(
            "NCCL cannot receive from any source: name the sender with src=, or use "
            'backend="gloo" or "sim"'
        )
    reads = [_on_gpu(tensor) for tensor in call.inputs]
    in_place = call.kind in ("all_reduce", "broadcast", "reduce")
    writes = reads if in_place else [_on_gpu(tensor) for tensor in call.outputs]
    pairs = zip(call.outputs, writes, strict=True)
    copies = [(tensor, copy) for tensor, copy in pairs if tensor is not copy]
    if call.kind == "reduce" and call.rank != call.root:
        writes, copies = [tensor.clone() for tensor in writes], []
    work = _KINDS[call.kind](real, call, reads, writes)
    return work, copies


def _on_gpu(tensor):
    if tensor.device.type == "cuda" and tensor.is_contiguous():
        return tensor
    return tensor.to("cuda", copy=True).contiguous()


def _options(kind, call):
    options = getattr(dist, f"{kind}Options")()
    if call.root is not None:
        options.rootRank = call.ranks.index(call.root)
    if call.op:
        options.reduceOp = torch_private.reduction(call.op)
    return options


def _several(real, tensors, operation, options):
    """One native work for the tensors: one after the other in one NCCL group."""
    if len(tensors) == 1:
        return operation(tensors, options)
    real._start_coalescing()
    for tensor in tensors:
        operation([tensor], options)
    return real._end_coalescing()


def _send(real, call, reads, writes):
    return real.send(reads, call.ranks.index(call.peer), call.tag)


def _recv(real, call, reads, writes):
    return real.recv(writes, call.ranks.index(call.peer), call.tag)


def _all_reduce(real, call, reads, writes):
    return _several(real, writes, real.allreduce, _options("Allreduce", call))


def _broadcast(real, call, reads, writes):
    return _several(real, writes, real.broadcast, _options("Broadcast", call))


def _reduce(real, call, reads, writes):
    return _several(real, writes, real.reduce, _options("Reduce", call))


def _all_gather(real, call, reads, writes):
    return real.allgather([writes], reads)


def _reduce_scatter(real, call, reads, writes):
    return real.reduce_scatter(writes, [reads], _options("ReduceScatter", call))


def _all_to_all(real, call, reads, writes):
    return real.alltoall(writes, reads)


def _gather(real, call, reads, writes):
    return real.gather([writes] if writes else [], reads, _options("Gather", call))


def _scatter(real, call, reads, writes):
    return real.scatter(writes, [reads] if reads else [], _options("Scatter", call))


def _barrier(real, call, reads, writes):
    one = torch.zeros(1, device="cuda")
    work = real.allreduce([one], dist.AllreduceOptions())
    work.wait()
    torch.cuda.current_stream().synchronize()
    return work


_CALLS = (_send, _recv, _broadcast, _all_gather, _all_to_all, _reduce_scatter)
_CALLS += (_gather, _scatter, _all_reduce, _reduce, _barrier)
_KINDS = {function.__name__[1:]: function for function in _CALLS}
