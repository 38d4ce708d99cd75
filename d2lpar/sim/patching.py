"""Functions of others that are replaced for a while."""

import contextlib
import functools
import inspect
import os

import numpy as np


@contextlib.contextmanager
def patched(*changes):
    """Inside, `name` of each (holder, name, new) is `new(what it was)`."""
    before = []
    try:
        for holder, name, new in changes:
            before.append((holder, name, inspect.getattr_static(holder, name)))
            setattr(holder, name, new(getattr(holder, name)))
        yield
    finally:
        for holder, name, usual in reversed(before):
            setattr(holder, name, usual)


@contextlib.contextmanager
def patched_environment(**variables):
    """Inside, the environment of this process has these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def in_both(one, other, **functions):
    """The changes of functions that two modules have by the same names."""
    return [(holder, *item) for item in functions.items() for holder in (one, other)]


def _of_finite(function):
    """Make one that refuses infinities and NaN."""

    @functools.wraps(function)
    def refuses(a, *more, **options):
        if not np.isfinite(a).all():
            text = f"np.linalg.{function.__name__} got a matrix with infinities or NaN"
            raise np.linalg.LinAlgError(text)
        return function(a, *more, **options)

    return refuses


# With infinities LAPACK may loop for ever in these, and let no other thread stop it.
FINITE = [(np.linalg, name, _of_finite) for name in ("lstsq", "pinv", "svd")]
