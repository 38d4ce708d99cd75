"""Races: a rank touches memory that a call of its own still reads or writes.

From a call until its `wait()` returns, what is being sent may not be written, and what
is being received or reduced may be neither read nor written.  Memory counts, not names,
and how long the call takes does not.
"""

import sys

import numpy as np

from .torch_private import is_dense, tensors_in

# Operations that use no values: those of these names, and all of these libraries.
SHAPES_ONLY = ("empty", "new_", "zeros_like", "ones_like", "full_like")
SHAPES_ONLY += ("rand_like", "randn_like", "randint_like")
NO_DATA = ("c10d", "_c10d_functional", "_dtensor", "prim", "profiler")


def spans(call):
    """Return what a Call uses, in pieces: (begin, end, whether it writes, tensor)."""
    if call.spans is None:
        writes = not _only_reads(call)
        call.spans = [_span(tensor, writes) for tensor in call.outputs]
        call.spans += [_span(tensor, False) for tensor in call.inputs]
    return call.spans


def _only_reads(call):
    """Does this rank give what is in its outputs, and nothing arrives there?"""
    if call.kind == "broadcast":
        return call.rank == call.root
    return call.kind == "reduce" and call.rank != call.root


def _span(tensor, writes):
    begin = _address(tensor) if tensor.is_meta else tensor.data_ptr()
    return begin, begin + tensor.nbytes, writes, tensor


def _address(tensor):
    """Where its first number is; without values, a number of its own."""
    if not tensor.is_meta:
        return tensor.data_ptr()
    key = tensor.untyped_storage()._cdata
    return (key << 48) + tensor.storage_offset() * tensor.itemsize


def touches(func):
    """[(position, name, writes)] of the arguments whose values an operation uses."""
    space, name = func._schema.name.split("::")
    if space in NO_DATA or name.startswith(SHAPES_ONLY):
        return []
    found = []
    for k, argument in enumerate(func._schema.arguments):
        alias = argument.alias_info
        if alias is None or alias.is_write:  # else the result is a view
            found.append((k, argument.name, alias is not None))
    return found


def met(calls, uses, args, kwargs=None):
    """(call, tensor, "read" or "changed") where one in flight is touched, or None."""
    for k, name, writes in uses:
        value = args[k] if k < len(args) else (kwargs or {}).get(name)
        for tensor in tensors_in([value]):
            for call in calls:
                if _meet(tensor, spans(call), writes):
                    return call, tensor, "changed" if writes else "read"
    return None


def together(calls, new):
    """(call, tensor) where the new Call and one in flight share what one writes."""
    mine = spans(new)
    for call in calls:
        if call is not new:
            for begin, end, written, _ in call.spans or spans(call):
                for first, last, writes, tensor in mine:
                    if first < end and begin < last and (written or writes):
                        return call, tensor
    return None


def _meet(tensor, flying, writes):
    numbers = tensor.numel()
    if not numbers:
        return False
    size, first = tensor.itemsize, _address(tensor)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = first + size * (1 + sum((n - 1) * step for n, step in steps))
    for begin, end, written, _ in flying:
        if first < end and begin < last and (writes or written):
            if last - first == numbers * size:  # it has no gaps
                return True
            strides = tuple(step * size for step in tensor.stride())
            mine = _array(first, tuple(tensor.shape), strides, size)
            if np.shares_memory(mine, _array(begin, (end - begin,), (1,), 1)):
                return True
    return False


def _array(address, shape, strides, size):
    """An array of numpy at an address that nobody reads."""

    class Interface:
        __array_interface__ = {
            "data": (address % (1 << 62), True),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
            "version": 3,
        }

    return np.asarray(Interface())


def name_of(tensor, where):
    """The variable of the line `where` that holds this memory, or "a tensor"."""
    frame, key = sys._getframe(1), tensor.untyped_storage()._cdata
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_lineno) == tuple(where):
            for name, value in frame.f_locals.items():
                if is_dense(value) and value.untyped_storage()._cdata == key:
                    return name
        frame = frame.f_back
    return "a tensor"
