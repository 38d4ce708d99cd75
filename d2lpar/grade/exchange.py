"""What the judge and the runner of a submission tell each other, as bytes.

The judge runs no code of the submission, so it may not load what the runner sends as
Python usually does: that would run code.  It takes numbers, texts, tensors, arrays and
the course's own records, and nothing else.  The runner puts a `Foreign` in the place of
any other value.
"""

import io
import pickle
import sys
import types
from collections import OrderedDict, defaultdict

import cloudpickle
import numpy as np
import torch

from ..checks import solutions
from ..checks.equality import named_tuple
from ..sim.by_value import Pickler

MODULES = {"report.runs", "report.ledger", "report.calls", "report.timeline"}
MODULES |= {"report.errors", "sim.cluster", "shared.played"}
MODULES |= {"pipeline.schedule.actions", "pipeline.schedule.simulation"}
MODULES |= {"checks.judging", "checks.given", "grade.exchange"}
KINDS = {
    "builtins": {"set", "frozenset", "complex", "slice", "range", "bytearray", "tuple"},
    "collections": {"OrderedDict", "deque", "Counter"},
    "numpy": {"ndarray", "dtype"},
    "torch": {"Size", "device", "Tensor"},
    "torch.nn.parameter": {"Parameter"},
}
NUMPY = {"_reconstruct", "scalar"}  # how numpy itself makes arrays and numbers
FAMILIES = "torch.nn.modules.", "torch.optim.", "torch.return_types"
# A runner finds no file of an exercise: what it needs of one travels to it.
cloudpickle.register_pickle_by_value(solutions)


class Forbidden(Exception):
    """The bytes hold what a judge does not load."""


class Foreign(int):
    """A value of a kind that the submission made, which is no answer to anything."""

    def __new__(cls, kind):
        made = super().__new__(cls, 0)
        made.kind = str(kind)
        return made

    def __eq__(self, other):
        return False

    def __ne__(self, other):
        return True

    __hash__ = int.__hash__

    def __repr__(self):
        return f"<a {self.kind}>"


Foreign.__module__ = "submission"  # not a number of a library: see checks.equality


def encode(value):
    """The bytes of a value; what may not travel is a Foreign in its place."""
    file = io.BytesIO()
    _Pickler(file, protocol=4).dump(value)
    return file.getvalue()


def decode(data):
    """The value in these bytes; raises Forbidden, and runs nothing that is in them."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Forbidden:
        raise
    except Exception as error:
        raise Forbidden(f"{type(error).__name__}: {error}") from None


def entrust(value):
    """The bytes of what the judge sends: the runner loads them as Python does."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes only what `_Unpickler` takes."""

    def reducer_override(self, value):
        if isinstance(value, torch.Tensor) and _may_travel(type(value)):
            return _parts_of_tensor(value)
        if isinstance(value, BaseException):
            return _parts_of_error(value)
        if isinstance(value, Foreign):
            return _foreign, (value.kind,)
        if isinstance(value, defaultdict):  # what it makes of a new key is code
            return OrderedDict, (), None, None, iter(list(value.items()))
        if value in (_foreign, _tensor, _error) if callable(value) else False:
            return NotImplemented
        if isinstance(value, torch.dtype) or _is_of_numpy(value):
            return NotImplemented
        if _may_travel(value if isinstance(value, type) else type(value)):
            return NotImplemented
        if named_tuple(type(value)):  # the judge gets a plain one
            return tuple, (tuple(value),)
        return _foreign, (getattr(value, "__name__", type(value).__name__),)


def _is_of_numpy(value):
    made = getattr(value, "__name__", "") in NUMPY
    return made or isinstance(value, np.generic | np.ndarray | np.dtype)


def _may_travel(kind):
    """Is this class one that a judge loads, under the name that it has?"""
    where, name = str(kind.__module__), kind.__qualname__
    try:
        return _Unpickler(io.BytesIO()).find_class(where, name) is kind
    except Exception:
        return False


class _Unpickler(pickle._Unpickler):
    """Loads values of known kinds, and changes no class, function or module.

    It is the one in Python: the one in C has no say in how an object gets its parts.
    """

    dispatch = dict(pickle._Unpickler.dispatch)

    def load_build(self):
        given = self.stack[-2]
        if isinstance(given, type) or _is_shared(given):
            raise Forbidden(f"parts for {given!r}")
        super().load_build()

    def load_reduce(self):
        made_by = self.stack[-2]
        if not (isinstance(made_by, type) or _is_shared(made_by)):
            raise Forbidden(f"a call of {made_by!r}")
        super().load_reduce()

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.REDUCE[0]] = load_reduce

    def find_class(self, module, name):
        package, _, inner = module.partition(".")
        found = None
        if module == __name__ and name in MAKERS:
            return MAKERS[name]
        if package in ("torch", "numpy", "d2lpar", "collections", "builtins"):
            found = getattr(sys.modules.get(module), name, None)
        if package == "numpy" and module.endswith("multiarray") and name in NUMPY:
            return found
        if module == "torch" and isinstance(found, torch.dtype):
            return found
        if isinstance(found, type) and found.__module__ != module:
            found = found if name in KINDS.get(module, ()) else None
        if isinstance(found, type) and (
            name in KINDS.get(module, ())
            or (package == "d2lpar" and inner in MODULES)
            or module.startswith(FAMILIES)
            or (module == "builtins" and issubclass(found, BaseException))
            or (package == "numpy" and issubclass(found, np.generic | np.dtype))
        ):
            return found
        raise Forbidden(f"{module}.{name}")


def _is_shared(value):
    """Is it one of the functions that `find_class` hands out?"""
    return isinstance(value, types.FunctionType | types.BuiltinFunctionType)


def _foreign(kind):
    return Foreign(kind)


# Tensors: torch's own way of loading them runs code


def _parts_of_tensor(value):
    with torch.no_grad():
        kind, about = type(value), dict(vars(value))
        plain = value.detach().as_subclass(torch.Tensor)
        data = None
        if plain.device.type != "meta":
            flat = plain.resolve_conj().resolve_neg().cpu().reshape(-1)
            flat = flat.clone(memory_format=torch.contiguous_format)
            data = flat.view(torch.uint8).numpy().tobytes()
    grad = bool(value.requires_grad), value.grad if value.is_leaf else None
    return _tensor, (kind, value.dtype, tuple(value.shape), data, grad, about)


def _tensor(kind, dtype, shape, data, grad, about):
    wanted, gradient = grad
    if not issubclass(kind, torch.Tensor):
        raise Forbidden("no tensor")
    if data is None:
        made = torch.empty(shape, dtype=dtype, device="meta")
    elif not data:
        made = torch.empty(shape, dtype=dtype, device="cpu")
    else:
        made = torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
    if kind is torch.nn.Parameter:
        made = torch.nn.Parameter(made, requires_grad=wanted)
    else:
        made = made.requires_grad_(wanted) if wanted else made
        made = made.as_subclass(kind)
    if gradient is not None:
        made.grad = gradient
    vars(made).update(about)
    return made


# Errors: with their cause, and under their name


def _parts_of_error(error):
    kind, arguments = type(error), tuple(error.args)
    if not _may_travel(kind):
        kind = next(each for each in kind.__mro__ if _may_travel(each))
        arguments = (_text(error),)
    about = {k: v for k, v in vars(error).items() if not k.startswith("__")}
    parts = kind, type(error).__name__, arguments, about, error.__cause__
    return _error, parts


def _text(error):
    try:
        return str(error)
    except Exception:
        return ""


def _error(kind, name, arguments, about, cause):
    if not issubclass(kind, BaseException):
        raise Forbidden("no exception")
    if name != kind.__name__:
        kind = type(str(name), (kind,), {})
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(about)
    error.__cause__ = cause
    return error


MAKERS = {"_foreign": _foreign, "_tensor": _tensor, "_error": _error}
