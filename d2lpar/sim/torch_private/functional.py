"""Functional collectives of tensors without values: torch itself would send nothing."""

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from .here import current_engine
from .tensors import storage_id

LIBRARY = "_c10d_functional"


def carried_out(func, args, kwargs):
    """What `func` returns for tensors without values, sent if it is a collective."""
    space, name = func._schema.name.split("::")
    if space != LIBRARY:
        return func(*args, **kwargs)
    if name == "_wrap_tensor_autograd":
        return AsyncCollectiveTensor(args[0])
    if name == "wait_tensor":
        work = current_engine().filling.pop(storage_id(args[0]), None)
        if work is not None:
            work.wait()
        return args[0]
    out = func(*args, **kwargs)
    arguments = [argument.name for argument in func._schema.arguments]
    given = dict(zip(arguments, args, strict=False)) | kwargs
    post = next((do for start, do in _STARTS.items() if name.startswith(start)), None)
    if post is None:
        raise NotImplementedError(f"{name} of tensors without values is not simulated")
    group = c10d._resolve_process_group(given["group_name"])
    sources, targets = given[arguments[0]], out
    if not isinstance(out, list | tuple):
        sources, targets = [sources], [targets]
    if post is _all_reduce:  # one call for all tensors
        works = [post(group, targets, given)] * len(targets)
    else:
        pairs = zip(sources, targets, strict=True)
        works = [post(group, source, target, given) for source, target in pairs]
    group.engine.filling |= zip(map(storage_id, targets), works, strict=True)
    return out


def _reduces(options, given):
    options.reduceOp = getattr(dist.ReduceOp, given["reduce_op"].upper())
    return options


def _all_reduce(group, targets, given):
    return group.allreduce(list(targets), _reduces(dist.AllreduceOptions(), given))


def _reduce_scatter(group, source, target, given):
    options = _reduces(dist.ReduceScatterOptions(), given)
    return group.reduce_scatter_single(target, source.contiguous(), options)


def _all_gather(group, source, target, given):
    return group.all_gather_single(target, source.contiguous())


def _all_to_all(group, source, target, given):
    sizes = given["output_split_sizes"], given["input_split_sizes"]
    return group.all_to_all_single(target, source.contiguous(), *sizes)


def _broadcast(group, source, target, given):
    options = dist.BroadcastOptions()
    options.rootRank = given["src"]
    return group.broadcast([target], options)


_STARTS = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
