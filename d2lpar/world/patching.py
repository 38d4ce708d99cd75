"""Functions of others that are replaced for a while."""

import contextlib
import inspect


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


def in_both(one, other, **functions):
    """The changes of functions that two modules have by the same names."""
    return [(holder, *item) for item in functions.items() for holder in (one, other)]
