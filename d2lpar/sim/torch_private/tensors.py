"""What is private about tensors: unseen copies, the backward pass, the compiler."""

import ctypes
import importlib
import sys
import threading

import torch
from torch._subclasses.fake_tensor import FakeTensor  # noqa: F401, for meter.py
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401


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


# Inside, functions of torch that modes replace are torch's own.
devices_as_they_are = torch._C.DisableTorchFunction


def never_compiled(function):
    """`torch.compile` leaves the function alone, with all that it calls.

    A decorator of torch's own would import the compiler, which takes seconds.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    strategy = frames._FrameExecStrategy(skip, skip)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def held_by(tensor, kind):
    """The tensor whose memory a call moves; torch's wrappers have none of their own.

    Waits for what a functional collective returned; a DTensor is a TypeError.
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    if hasattr(tensor, "trigger_wait"):
        return tensor.trigger_wait()
    if hasattr(tensor, "to_local"):
        raise TypeError(f"{kind} got a DTensor: give it x.to_local(), this rank's part")
    return tensor


def storage_id(tensor):
    """What is the same for all tensors that share memory, while it lives."""
    return tensor.untyped_storage()._cdata


def in_one_piece(tensor):
    """Real backends read memory as it lies: Gloo in part silently, NCCL refuses."""
    return (
        tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=_CHANNELS_LAST))
    )


_CHANNELS_LAST = torch.channels_last


def is_dense(value):
    """Is it a tensor with memory of its own, or with shapes alone?"""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def dense_parts(value):
    """The dense tensors of which a value consists: itself, or those of a sparse one."""
    if is_dense(value):
        return [value]
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    return []


def tensors_in(values):
    """Every dense part of the values, of their lists and of their dictionaries."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from dense_parts(value)
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


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


def replace_file_writer(made_of):
    """Let `torch.save` write by `made_of(its usual writer)`, which may ask before."""
    torch._C.PyTorchFileWriter = made_of(torch._C.PyTorchFileWriter)
