"""How a wrong outcome is related to the right one, where no mistake is known.

A relation is told only if it holds wherever the outcome is wrong, in every such call.
"""

from contextlib import suppress
from itertools import groupby
from numbers import Real
from typing import NamedTuple

import torch

from .equality import leaves, ordinary
from .judging import Attempt
from .requirements import UNTOUCHED

SAME = 1e-9  # part of the largest number by which equal ones may differ
ROUNDED = 1e-4  # the same, of numbers that are right but for their last digits


class Part(NamedTuple):
    """A wrong number or tensor: what came at `path` on a rank, and what is right."""

    attempt: Attempt
    rank: int
    given: tuple  # its arguments
    right: list  # what is right on each rank, as `items` of it
    forms: tuple  # `_form` of the whole outcome, and of the right one
    path: tuple
    came: torch.Tensor | None  # in float64, as `wanted` is
    wanted: torch.Tensor | None
    kinds: tuple = ()  # the dtypes of both

    @property
    def n(self):
        return self.attempt.case.n

    @property
    def root(self):
        return self.attempt.case.rank(self.attempt.case.facts.get("root", 0))

    @property
    def tensors(self):
        """Those among the arguments."""
        each = items(list(self.given)).values()
        return [x for kind, x in each if x is not None and kind != "number"]


def relation(attempts, exercise):
    """Sentences that are true of all these wrong outcomes, or "" if none is known."""
    found = [part for attempt in attempts for part in wrong_parts(attempt, exercise)]
    if not found or any(p.came is None or p.wanted is None for p in found):
        return _other_form(found)
    texts = [f"Wherever the outcome is wrong, what came {x}." for x in _told(found)]
    tops = sorted({p.path[:1] for p in found}, key=str)
    if not texts and len(tops) == 2:
        texts = [
            f"Wherever [{top[0]!r}] is wrong, what came there {x}."
            for top in tops
            for x in _told([p for p in found if p.path[:1] == top])
        ]
    hint = [FACTOR] * ("times what was" in "".join(texts))
    return " ".join(texts + _places(found) + _changed(attempts, exercise) + hint)


KINDS = {"None": type(None), "True or False": bool, "a number": Real, "text": str}
KINDS |= {"a tensor": torch.Tensor, "a dict": dict, "a list or tuple": list | tuple}


def _form(value):
    """(what kind of thing it is, how many items it has)."""
    kind = next((k for k, kinds in KINDS.items() if isinstance(value, kinds)), "")
    return kind, len(value) if isinstance(value, list | tuple | dict) else 0


def _other_form(found):
    """A sentence, where all wrong outcomes have one form, and not the right one."""
    forms = {part.forms for part in found}
    kinds = {tuple(kind for kind, _ in both) for both in forms}
    if len(kinds) != 1 or not all(kind := kinds.pop()):
        return ""
    if kind[0] != kind[1]:
        return "The outcome is {}, where {} is expected.".format(*kind)
    [((_, count), (_, right)), *more] = forms
    if more or count == right:
        return ""
    return f"The outcome has {count} items, where {right} are expected."


def _told(found):
    """The most specific text that is true of all these Parts, in a list, or none."""
    chance = sum(p.wanted.numel() for p in found) < 2  # one may be twice another
    known = FORMS if chance else FORMS | RELATIONS | _scaled(found) | VAGUE
    return [text for text, holds in known.items() if all(map(holds, found))][:1]


def wrong_parts(attempt, exercise):
    """The Parts of an outcome that are wrong; ranks are the true ones."""
    case = attempt.case
    order = sorted(range(case.n), key=case.rank)  # the part that each rank plays
    shown = lambda each: [items(exercise.shows(each[i], case.n)) for i in order]
    came, right = shown(attempt.came), shown(case.expected)
    for r, i in enumerate(order):
        plain = ordinary(attempt.came[i])
        forms = _form(attempt.came[i]), _form(case.expected[i])
        start = attempt, r, case.inputs[i], right, forms
        if plain and exercise.agrees(attempt.came[i], case.expected[i], case):
            continue
        alike = plain and came[r].keys() == right[r].keys()
        found = _differing(came[r], right[r]) if alike else []
        for path, (kind, x), (other, y) in found:
            yield Part(*start, path, x, y, (kind, other))
        if not found:  # it has another form, or no number tells why
            yield Part(*start, (), None, None)


def _differing(came, right):
    """(path, what came, what is right) of items: those far off, or else all others.

    Where none differs, the first that may have digits beyond float64.
    """
    pairs = [(path, came[path], wanted) for path, wanted in right.items()]
    for within in (SAME, 0.0):
        if wrong := [pair for pair in pairs if not _equal(*pair[1:], within)]:
            return wrong
    large = lambda x: x is not None and x.numel() and x.abs().max() >= 2**53
    return [pair for pair in pairs if large(pair[2][1])][:1]


def items(value):
    """{path: (dtype or "number", in float64)} of all in an outcome; (it, None) else."""
    return {path: _in_float64(each) for path, each in leaves(value)}


def _in_float64(value):
    """(its kind, a tensor); None instead of this where float64 cannot hold it."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            return "number", torch.tensor(float(value), dtype=torch.float64)
        return "number", None
    if not torch.is_tensor(value):
        return value, None
    strange = value.is_complex() or value.is_quantized or value.is_meta
    if strange or value.layout != torch.strided:
        return value.dtype, None
    return value.dtype, value.detach().to("cpu", torch.float64)


def _equal(came, wanted, within):
    """Alike in kind and, as far as that, in value; `...` is like anything."""
    (kind, x), (other, y) = came, wanted
    if other is ... or type(kind) is not type(other) or kind != other:
        return other is ...
    return x is y if x is None or y is None else near(x, y, within)


def near(came, wanted, within=SAME):
    """Alike in shape and in value; a NaN is like nothing."""
    if came.shape != wanted.shape:
        return False
    differ = came != wanted  # so that equal infinities count as equal
    if not differ.any():
        return True
    finite = wanted[wanted.isfinite()].abs()
    limit = within * finite.max() if len(finite) else 0.0
    return bool((came - wanted)[differ].abs().max() <= limit)


# What came, in words, and whether it did in a Part


def _by(factor):
    return lambda p: near(p.came, p.wanted * factor(p))


def _scaled(found):
    """By a power of a number that all the cases name, and that is not always one."""
    facts, known = [p.attempt.case.facts for p in found], {}
    for name in facts[0]:
        values = [each.get(name) for each in facts]
        if all(isinstance(x, Real) and x > 0 for x in values) and len({*values}) > 1:
            for text, k in POWERS.items():
                factor = lambda p, name=name, k=k: p.attempt.case.facts[name] ** k
                known[f"is {text.format(name)} times what was expected"] = _by(factor)
    return known


def _of(rank):
    """What came is what is right on rank `rank(p)`."""
    right = lambda p: p.right[rank(p) % p.n].get(p.path, (None, None))[1]
    return lambda p: right(p) is not None and near(p.came, right(p))


def _turned(turn, k=0):
    """Turned in dimension k, 0 or 1."""
    return lambda p: p.wanted.dim() > k and near(p.came, turn(p.wanted, k))


def _rows(p):
    """Rows of the first tensor among the arguments."""
    return len(p.tensors[0]) if p.tensors and p.tensors[0].dim() else float("nan")


def _alike(p):
    """In shape."""
    return p.came.shape == p.wanted.shape


def _with(times):
    """What came has so many times an argument too much, for each row or as a whole."""

    def holds(p):
        shape = p.wanted.shape
        fit = [x for x in p.tensors if shape[len(shape) - x.dim() :] == x.shape]
        return any(near(p.came, p.wanted + times(p) * x) for x in fit)

    return holds


FORMS = {
    "has the right values, but the wrong type or dtype": lambda p: (
        p.kinds[0] != p.kinds[1] and near(p.came, p.wanted, ROUNDED)
    ),
    "has the right values, but the wrong shape": lambda p: (
        not _alike(p) and near(p.came.flatten(), p.wanted.flatten())
    ),
    "is right in its first digits only": lambda p: near(p.came, p.wanted, ROUNDED),
    "is not a number (NaN)": lambda p: bool(p.came.isnan().any()),
    "is zero": lambda p: _alike(p) and not p.came.any(),
    "is an argument as it was before the call": lambda p: any(
        near(p.came, x) for x in p.tensors
    ),
    "is the transpose of what was expected": lambda p: (
        p.wanted.dim() == 2 and near(p.came, p.wanted.T)
    ),
}
RELATIONS = {
    "has the opposite sign": _by(lambda p: -1),
    "is twice what was expected": _by(lambda p: 2),
    "is half of what was expected": _by(lambda p: 1 / 2),
    "is n times what was expected, for n ranks": _by(lambda p: p.n),
    "is 1/n of what was expected, for n ranks": _by(lambda p: 1 / p.n),
    "is B times what was expected, for B rows": _by(_rows),
    "is 1/B of what was expected, for B rows": _by(lambda p: 1 / max(_rows(p), 1)),
    "is too large by exactly one": lambda p: near(p.came, p.wanted + 1),
    "is too small by exactly one": lambda p: near(p.came, p.wanted - 1),
    "has an argument added once too often": _with(lambda p: 1),
    "has an argument added n-1 times too often": _with(lambda p: p.n - 1),
    "lacks an argument, which should be added": _with(lambda p: -1),
    "is what rank 0 should have": _of(lambda p: 0),
    "on rank r is what rank r+1 should have": _of(lambda p: p.rank + 1),
    "on rank r is what rank r-1 should have": _of(lambda p: p.rank - 1),
    "on rank r is what rank n-1-r should have": _of(lambda p: p.n - 1 - p.rank),
    "on rank r is what rank r - root should have": _of(lambda p: p.rank - p.root),
    "on rank r is what rank r + root should have": _of(lambda p: p.rank + p.root),
    "is in reverse order": _turned(lambda x, k: x.flip(k)),
    "is shifted by one place": _turned(lambda x, k: x.roll(1, k)),
    "is shifted back by one place": _turned(lambda x, k: x.roll(-1, k)),
    "has its columns in reverse order": _turned(lambda x, k: x.flip(k), 1),
    "has its columns shifted by one": _turned(lambda x, k: x.roll(1, k), 1),
    "has its columns shifted back by one": _turned(lambda x, k: x.roll(-1, k), 1),
    "has the right elements in another order": (
        lambda p: near(*(x.flatten().sort().values for x in (p.came, p.wanted)))
    ),
}
FACTOR = "Hint: What does this number multiply or divide, and should it?"
POWERS = {"{}": 1, "1/{}": -1, "sqrt({})": 1 / 2, "1/sqrt({})": -1 / 2}
VAGUE = {
    "is too large": lambda p: _alike(p) and bool((p.came >= p.wanted).all()),
    "is too small": lambda p: _alike(p) and bool((p.came <= p.wanted).all()),
    "has another shape than what was expected": lambda p: not _alike(p),
}
RANKS = {  # those that are wrong
    "wrong on rank 0": lambda p: {0},
    "wrong on the last rank": lambda p: {p.n - 1},
    "wrong on the root": lambda p: {p.root},
    "right on rank 0": lambda p: {*range(1, p.n)},
    "right on the last rank": lambda p: {*range(p.n - 1)},
    "right on the root": lambda p: {*range(p.n)} - {p.root},
}


def _places(found):
    """Where it is wrong, on which ranks and in which items, if always there."""
    calls = [list(parts) for _, parts in groupby(found, lambda p: p.attempt)]
    on = [text for text in RANKS if all(_wrong_on(RANKS[text], c) for c in calls)]
    said, paths = [f"It is {text} only." for text in on][:1], {p.path for p in found}
    if len(paths) == 1 and all(len(p.right[p.rank]) > 1 for p in found):
        place = "".join(f"[{key!r}]" for key in paths.pop())
        return [*said, f"Only {place} of the outcome is wrong."]
    return said + ["Only its first item, [0], is right."] * all(map(_late, calls))


def _wrong_on(ranks, call):
    return call[0].n > 1 and {p.rank for p in call} == ranks(call[0])


def _late(call):
    """Of the items of the outcome, the first one alone is right."""
    every = {path[:1] for right in call[0].right for path in right}
    return len(every) > 2 and every - {p.path[:1] for p in call} == {(0,)}


def _changed(attempts, exercise):
    rows = [row for row in exercise.requirements if row.label == UNTOUCHED]
    changed = rows and not any(map(rows[0].holds, attempts))
    return ["An argument that should stay is changed, too."] if changed else []
