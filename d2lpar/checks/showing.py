"""Outcomes as text: what came, what was expected, and where they differ first."""

import sys

import numpy as np
import torch

from .equality import comparable, is_number

WIDE = 56  # characters of a value, so that a line of the report has less than 80
DIGITS = (6, 9, 12, 17)  # the first number of digits that tells two numbers apart
TOLERANCES = (1e-3, 1e-6, 1e-9, 0.0)  # the plainest difference is shown, not the first


def compared(came, wanted):
    """Lines about two outcomes that should be equal."""
    lines = [f"came     {short(came)}", f"expected {short(wanted)}"]
    found = first_difference(came, wanted)
    if found is None:
        return lines
    path, a, b = found
    if not path:
        return [f"came     {a}", f"expected {b}"]
    return [*lines, f"differs first at {path}: {a}, expected {b}"]


def as_number(value, n=1):
    """A tensor of one number as this number, where both are allowed."""
    return value.item() if torch.is_tensor(value) and value.numel() == 1 else value


def first_difference(came, wanted):
    """(where, what came there, what was expected), as texts; None if nowhere.

    Small differences count only where there is no large one: a value that is off in
    its tenth digit hides none that is wrong.
    """
    pairs = list(_pairs(came, wanted, ""))
    for tolerance in TOLERANCES:
        for path, a, b in pairs:
            if _differ(a, b, tolerance):
                return path, *_apart(a, b)
    return None


def _pairs(came, wanted, path):
    """(where, a, b) of the innermost values; of whole ones where their forms differ."""
    both = lambda kind: isinstance(came, kind) and isinstance(wanted, kind)
    if both(torch.Tensor) and comparable(came, wanted):
        places = [[*place] or "" for place in np.ndindex(came.shape)]
        numbers = [x.flatten().tolist() for x in (came, wanted)]
        inside = zip(places, *numbers, strict=True)
    elif both(dict) and came.keys() == wanted.keys():
        inside = [(key, came[key], b) for key, b in wanted.items()]
    elif both(list | tuple) and len(came) == len(wanted):
        inside = [([i], *pair) for i, pair in enumerate(zip(came, wanted, strict=True))]
    else:
        yield path, *(map(list, (came, wanted)) if both(dict) else (came, wanted))
        return
    for place, a, b in inside:
        yield from _pairs(a, b, f"{path}{place}")


def _differ(a, b, tolerance):
    if is_number(a) and is_number(b) and abs(a) <= sys.float_info.max:
        return not abs(a - b) <= tolerance * abs(b)  # a NaN differs
    if isinstance(b, list | tuple | dict | torch.Tensor):
        return True  # they are of different forms
    return type(a) is not type(b) or a != b


def _apart(a, b):
    """Both as texts, with as many digits as it takes to tell them apart."""
    if isinstance(a, float) and isinstance(b, float):
        for digits in DIGITS:
            texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
            if texts[0] != texts[1]:
                return texts
    return short(a), short(b)


def short(value):
    """A value in one line of at most `WIDE` characters, cut where it is longer."""
    for most in range(6, 0, -1):
        try:
            text = " ".join(_text(value, most).split())
        except Exception as error:  # whatever a class of the learner's does
            return f"something that cannot be shown ({type(error).__name__})"
        if len(text) <= WIDE:
            return text
    return text[: WIDE - 3] + "..."


def _text(value, most):
    """Long tensors, lists and dictionaries are cut after the first items."""
    if torch.is_tensor(value):
        kind = str(value.dtype).removeprefix("torch.")
        values = value.detach().flatten()[:most].tolist()
        return f"{_cut(values, most, value.numel())} ({kind} {list(value.shape)})"
    if type(value) in (list, tuple):
        return _cut(value[:most], most, len(value))
    if type(value) is dict:
        items = [f"{k!r}: {_text(v, most)}" for k, v in list(value.items())[:most]]
        return "{" + ", ".join(items) + ", ..." * (len(value) > most) + "}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _cut(values, most, length):
    shown = [_text(value, most) for value in values]
    return "[" + ", ".join(shown) + ", ..." * (length > most) + "]"
