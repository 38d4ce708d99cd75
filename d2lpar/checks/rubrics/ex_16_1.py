"""16.1 The utilisation of what?"""

from functools import partial

from ...planning.model import Model
from .. import signs
from ..equality import close
from ..judging import Case, Exercise
from ..signs import wrong

CONVENTIONS = "model", "hardware", "causal", "parameters", "parameters and scores"
KINDS = [{}, {"gated": True, "tied": False, "positions": False}, {"tied": False}]
KINDS += [{"gated": True, "kv_heads": 2, "positions": False, "tied": False}]
AGAIN = "none", "selective", "full"

SLIPS = "as printed", "upside down", "other peak", "peak upside down"
SLIPS += "all again", "nothing again", "no head", "never scores", "always scores"
SLIPS += ("half of everything",)


def cases(rng):
    """Every convention, with and without recomputation, on two kinds of peaks."""
    number = 0
    for convention in CONVENTIONS:
        for recompute in AGAIN:
            heads = 4 * int(rng.integers(1, 5))
            hidden, words = 16 * heads, int(rng.integers(100, 3000))
            sizes = int(rng.integers(1, 5)), hidden, heads, words
            kind = KINDS[number % len(KINDS)]
            model = Model(*sizes, 16 * int(rng.integers(8, 60)), **kind)
            peaks = (989.0, 989.0) if number % 2 else (1979.0, 989.0)
            printed = round(float(rng.uniform(0.2, 0.5)), 3)
            given = model, printed, convention, recompute, peaks
            text = f"{convention}, {recompute} recomputed, peaks {peaks}"
            yield Case(1, text, [given], truth=partial(truth, *given))
            number += 1


def counted(model, convention, recompute, slip=""):
    """FLOPs of a row by this convention."""
    s = model.sequence
    if convention == "hardware":
        how = {"all again": "full", "nothing again": "none"}.get(slip, recompute)
        return model.flops(1, how)
    if convention == "causal":
        half = model.flops(1) / 2
        return half if slip == "half of everything" else model.flops(1, causal=True)
    if convention in ("parameters", "parameters and scores"):
        held = model.parameters - (model.table if slip == "no head" else 0)
        scores = 3 * model.layers * model.scores()
        with_scores = convention == "parameters and scores"
        with_scores = {"never scores": False, "always scores": True}.get(
            slip, with_scores
        )
        return 6 * held * s + with_scores * scores
    return model.flops(1)


def truth(model, printed, convention, recompute, peaks, slip=""):
    """[the comparable utilisation]."""
    if slip == "as printed":
        return [printed]
    ratio = model.flops(1) / counted(model, convention, recompute, slip)
    used, dense = peaks
    peak = {"other peak": 1.0, "peak upside down": dense / used}.get(slip, used / dense)
    return [printed * (1 / ratio if slip == "upside down" else ratio) * peak]


def agrees(came, wanted, case):
    """To six digits."""
    return close(came, wanted)


exercise = Exercise(
    "16.1",
    cases,
    [],
    {
        "percent": lambda a: wrong(a) and a.gives([100 * x for x in a.case.expected]),
        **{name: signs.slip(name) for name in SLIPS},
    },
    agrees=agrees,
    processes=(),
)
