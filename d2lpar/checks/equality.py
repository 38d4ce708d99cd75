"""Whether an outcome is the expected one: in kind, in shape and in value."""

import contextlib
import math
import sys

import numpy as np
import torch

PLAIN = (bool, int, float, complex, str, torch.Tensor, list, tuple, dict)
NAMED = {"__new__", "__repr__", "__doc__", "__getnewargs__", "count", "index"}
LIBRARIES = {"builtins", "collections", "torch", "numpy", "d2lpar"}


def ordinary(value):
    """No value of the learner's own kind, nor an integer too large for a float."""
    kind = type(value)
    if isinstance(value, PLAIN) and not (_from_a_library(kind) or named_tuple(kind)):
        return False
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    if isinstance(value, dict):
        return all(map(ordinary, value.values()))
    return not isinstance(value, list | tuple) or all(map(ordinary, value))


def named_tuple(kind):
    """Is this a tuple whose items have names, and otherwise as any tuple?"""
    if type(kind) is not type or kind.__bases__ != (tuple,):
        return False
    return not vars(kind).keys() & (vars(tuple).keys() - NAMED)


def _from_a_library(kind):
    """Does a library of the course have this class by this name?"""
    where = str(kind.__module__)
    if where.partition(".")[0] not in LIBRARIES:
        return False
    return getattr(sys.modules.get(where), kind.__name__, None) is kind


def same(came, wanted):
    """Equal in kind, shape and value, floats to nine digits; `...` equals anything.

    A number in a tensor may be off by 1e-12 of the largest one there, too: where terms
    cancel, the order in which a processor adds moves more than the tenth digit.
    """
    if wanted is ...:
        return True
    if torch.is_tensor(wanted):
        return torch.is_tensor(came) and _same_tensors(came, wanted)
    if isinstance(wanted, dict):
        alike = isinstance(came, dict) and came.keys() == wanted.keys()
        return alike and all(same(came[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        alike = isinstance(came, list | tuple) and len(came) == len(wanted)
        return alike and all(map(same, came, wanted))
    if is_number(wanted):
        return is_number(came) and bool(close(came, wanted))
    return type(came) is type(wanted) and came == wanted


def leaves(value, path=()):
    """Yield (path, value) of all that lists, tuples and dicts have inside."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def comparable(came, wanted):
    """Do these tensors differ in nothing but their numbers?"""
    kind = lambda x: (x.shape, x.dtype, x.layout, x.device)
    return kind(came) == kind(wanted)


def _same_tensors(came, wanted):
    if not comparable(came, wanted):
        return False
    if torch.equal(came, wanted):
        return True  # most often, and many times faster
    came, wanted = came.flatten().tolist(), wanted.flatten().tolist()
    sizes = [abs(number) for number in wanted if math.isfinite(abs(number))]
    noise = 1e-12 * max(sizes, default=0)
    return all(close(a, b, noise) for a, b in zip(came, wanted, strict=True))


def is_number(value):
    """Is it one of Python or numpy, and not True or False?"""
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool)


def whole_or_none(came, wanted, case):
    """Whether None came where it is wanted, or else this whole number."""
    if came is None or wanted is None or isinstance(came, bool):
        return came is wanted
    with contextlib.suppress(AttributeError, TypeError):
        return came.__index__() == wanted
    return False


def close(came, wanted, noise=0.0):
    """Equal numbers; to nine digits or this noise where one is a float."""
    return came == wanted or (
        isinstance(came, float)
        and math.isclose(came, wanted, rel_tol=1e-9, abs_tol=noise)
    )


# What `float` and its like raise of a value that is no number, or too large a one.
NO_NUMBER = (TypeError, ValueError, RuntimeError, OverflowError)


def numbers(came):
    """A number, or several in a row, as floats; a NaN where it is something else."""
    with contextlib.suppress(*NO_NUMBER):
        if np.asarray(came).dtype.kind not in "SUb":  # "1.5" and True are none
            return np.asarray(came, dtype=float)
    return np.array(math.nan)


def near(came, wanted, within):
    """As many numbers as wanted, each of them right to this part of it."""
    came, wanted = numbers(came), numbers(wanted)
    return came.shape == wanted.shape and np.allclose(came, wanted, rtol=within, atol=0)
