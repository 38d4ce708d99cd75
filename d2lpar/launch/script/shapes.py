"""A script whose GPUs hold shapes and no values: sizes that no laptop has.

A tensor on a GPU is one on torch's device "meta"; its `device` says "cuda" all the
same.  What the script itself wants on "meta", to be filled later, takes no memory and
no time.  Tensors of the host have their values.
"""

import sys
import weakref

import torch

from ...report.engine import _OURS
from ...sim.torch_private import storage_id, tensors_in
from .adapted import in_ranks
from .casts import cast
from .played_gpus import OnHost

SCALER = "torch.amp.GradScaler is left out: gradients without values need no scale."
FEW = 4096  # numbers that a copy on the GPU is remembered with
_COPIES = "_to_copy", "copy_"
# Operations of a GPU that take indices of the host.
_INDEXED = "index", "index_put", "index_put_", "_index_put_impl_"
_BRANCH = (
    "the script asks whether a value on the GPU is true, and with --shapes there are "
    "no values: --assume 0 or --assume 1 says what to take for each of them"
)
_OTHER_DEVICE = (
    "{} got tensors on two devices, cuda and cpu: on a GPU it would need all of them "
    'on cuda, as x.to("cuda") brings them there'
)


class Shapes:
    """What a rank's GPU holds; `assumed`: the value of every number in it, or None."""

    def __init__(self, assumed=None):
        self.assumed = assumed
        self.asked = None  # the kind of device that the executed function was given
        self.deferred = _OfStorages()  # what the script itself has put on "meta"
        self.copied = _OfStorages()  # copies of the host's tensors -> these tensors
        self.casts = {}  # id of a weight -> (it, its copy that autocast has made)

    def known(self, name, args, kwargs):
        """(result,) of an operation that brings values to the host, else None."""
        if name == "_local_scalar_dense" and args[0].is_meta:
            return (self._values(args[0], torch.empty((), dtype=args[0].dtype)).item(),)
        if name == "_to_copy" and args[0].is_meta:
            kind, dtype = kwargs.get("device"), kwargs.get("dtype")
            if kind is not None and torch.device(kind).type == "cpu":
                there = torch.empty_like(args[0], device="cpu", dtype=dtype)
                return (self._values(args[0], there),)
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            return (self._values(args[1], args[0]),)
        return None

    def _values(self, tensor, filled):
        """`filled` has the values of a tensor on the GPU."""
        source = self.copied.get(tensor)
        if source is not None and source.numel() == tensor.numel():
            return filled.copy_(source.reshape(filled.shape))
        if self.assumed is None and tensor.dtype is torch.bool and tensor.dim() == 0:
            raise RuntimeError(_BRANCH)
        return filled.fill_(1 if self.assumed is None else self.assumed)

    def was_used(self, name, out, args, kwargs):
        """Was the operation one of the GPU, and not of the host or only planned?"""
        given = list(tensors_in((*args, *kwargs.values())))
        made = [t for t in tensors_in((out,)) if t.is_meta]
        shapes = [t for t in given if t.is_meta]
        if not made and not shapes:
            return False
        if self._is_later(shapes):
            for each in made:
                self.deferred.put(each, True)
            return False
        if self.copied and name[-1] == "_":
            self.copied.pop(given[0])
        host = [t for t in given if not t.is_meta and t.dim()]
        if name in _COPIES and host and host[-1].numel() <= FEW:
            self.copied.put(made[0], host[-1].detach().clone())
        elif host and name not in _COPIES + _INDEXED:
            raise RuntimeError(_OTHER_DEVICE.format(name))
        return True

    def moves(self, tensor):
        """A tensor goes to the GPU; what is to be filled later has nothing to copy."""
        if tensor.is_meta and self.deferred.get(tensor):
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        self.asked = "cuda"

    def _is_later(self, shapes):
        """Does the script fill later what an operation makes of such tensors?"""
        if self.asked is not None or not self.deferred:
            return self.asked == "meta"
        return bool(shapes) and all(map(self.deferred.get, shapes))


class _OfStorages(dict):
    """Something for each tensor's storage, until that is freed."""

    def get(self, tensor):
        entry = super().get(storage_id(tensor)) if self else None
        return entry and entry[1]

    def put(self, tensor, value):
        storage, key = tensor.untyped_storage(), storage_id(tensor)
        self[key] = weakref.ref(storage, lambda _: dict.pop(self, key, None)), value

    def pop(self, tensor):
        super().pop(storage_id(tensor), None)


def changes():
    """What `patched` replaces where GPUs hold shapes: (holder, name, new)."""
    from torch.nn.parallel import distributed

    # DDP compares shapes by value before it broadcasts, where they are compared, too
    verifies = "_verify_param_shape_across_processes"
    yield distributed, verifies, in_ranks(lambda gpus, usual, *_: None)
    yield torch.amp.autocast_mode.autocast, "__exit__", in_ranks(_end_autocast)
    yield torch.amp.GradScaler, "__init__", in_ranks(_scaler)
    yield torch, "_has_compatible_shallow_copy_type", in_ranks(lambda *_: True)
    yield torch, "save", in_ranks(_save)
    # drawn once, where torch would look which values it has to draw again
    once = lambda _, usual, x, *a, **k: x.normal_() if x.is_meta else usual(x, *a, **k)
    yield torch.nn.init, "trunc_normal_", in_ranks(torch.no_grad()(once))


def _scaler(gpus, usual, self, device="cuda", *args, enabled=True, **kwargs):
    usual(self, "cpu", enabled=False)
    if enabled:
        gpus.engine.warn(SCALER)


def _save(gpus, usual, what, file, *args, **kwargs):
    gpus.engine.warn(f"{file} is saved without the values of a GPU.")
    return usual(what, file, *args, **kwargs)


def _end_autocast(gpus, usual, self, *error):
    usual(self, *error)
    if not torch.is_autocast_enabled("cuda"):
        gpus.shapes.casts.clear()


def _attention(gpus, func, query, key, value, *args, **kwargs):
    """By the kernel that torch takes on a GPU, whose scores are never in memory."""
    if not query.is_meta or hasattr(query, "placements"):
        return OnHost.special[func](gpus, func, query, key, value, *args, **kwargs)
    return _fused(query, key, value, *args, **kwargs)


def _fused(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
    enable_gqa=False,
):  # fmt: skip
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(times, dim=-3) for x in (key, value))
    about, aten = (dropout_p, is_causal), torch.ops.aten
    if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None:
        kernel = aten._scaled_dot_product_flash_attention
        return kernel(query, key, value, *about, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    kernel, keeps = aten._scaled_dot_product_efficient_attention, query.requires_grad
    return kernel(query, key, value, attn_mask, keeps, *about, scale=scale)[0]


def _set_data(gpus, func, tensor, value):
    """A module's tensors go to the GPU in place, which torch refuses on meta."""
    if tensor.is_meta == value.is_meta:
        return func(tensor, value)
    value = value.detach()
    if isinstance(tensor, torch.nn.Parameter):
        value = torch.nn.Parameter(value, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, value)


def _format(gpus, func, tensor, spec):
    number = tensor.is_meta and tensor.dim() == 0
    return format(tensor.item(), spec) if number else func(tensor, spec)


def _uniform(gpus, func, tensor, *args, **kwargs):
    """Of DTensors torch asks CUDA here, and a normal draw costs the same."""
    if hasattr(tensor, "placements") and tensor.to_local().is_meta:
        with torch.no_grad():
            return tensor.normal_()
    return func(tensor, *args, **kwargs)


class OnShapes(OnHost):
    """Inside, tensors for a GPU have shapes alone, those of the host their values."""

    special = OnHost.special | {
        torch.nn.functional.scaled_dot_product_attention: _attention,
        torch.Tensor.__format__: _format,
        torch.nn.init.kaiming_uniform_: _uniform,
        torch.nn.init.uniform_: _uniform,
        torch.Tensor.uniform_: _uniform,
        torch.Tensor.data.__set__: _set_data,
    }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        getter = _GETTERS.get(func)
        if getter is not None:
            found, ours = func(*args), sys._getframe(1).f_code.co_filename
            return found if ours.startswith(_OURS) else getter(self, found, args[0])
        kwargs, shapes = kwargs or {}, self.gpus.shapes
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = cast(func, args, kwargs, shapes)
        device = kwargs.get("device")
        if device is not None:
            shapes.asked = "cuda" if type(device) is int else torch.device(device).type
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            shapes.asked = None

    def holds(self, tensor):
        local = getattr(tensor, "_local_tensor", tensor)
        return local.is_meta and not self.gpus.shapes.deferred.get(local)


_GETTERS = {
    torch.Tensor.device.__get__: lambda mode, found, tensor: (
        torch.device("cuda", mode.gpus.current) if mode.holds(tensor) else found
    ),
    torch.Tensor.is_cuda.__get__: lambda mode, found, tensor: mode.holds(tensor),
    torch.Tensor.get_device: lambda mode, found, tensor: (
        mode.gpus.current if mode.holds(tensor) else found
    ),
    torch.Tensor.is_meta.__get__: lambda mode, found, tensor: (
        found and not mode.holds(tensor)
    ),
}
