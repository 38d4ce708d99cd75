"""15.2 The forgotten reduction."""

import re
from functools import partial

from ...mesh.costs import bytes_per_step, numbers, tensors
from ...mesh.gpt_parts import Config
from ...mesh.grid import AXES, Mesh
from .. import signs
from ..judging import Case, Exercise

# data, pipeline, tensor; what is forgotten
SIZES = [(2, 2, 2, "nothing"), (2, 2, 2, "tied"), (1, 3, 1, "tied")]
SIZES += [(1, 2, 4, "tables"), (3, 1, 2, "blocks"), (2, 1, 2, "tables")]
SIZES += [(2, 3, 1, "stage 1"), (2, 1, 1, "stage 0"), (4, 2, 2, "stage 1")]
SIZES += [(2, 4, 2, "blocks"), (3, 2, 1, "tied"), (1, 1, 1, "nothing")]
SIZES += [(2, 4, 1, "stage 2")]  # stages 1 and 2 are equal: the smaller number counts

SLIPS = "one copy", "one way", "no flags", "one part", "largest axis", "last stage"
SLIPS += "blocks for tables", "from one"
TURNED = {"tables": "blocks", "blocks": "tables"}


def cases(rng):
    """Every reduction is forgotten somewhere, on meshes with axes of 1 to 4."""
    for d, p, t, lost in SIZES:
        blocks, heads, size = 2 * p + int(rng.integers(2)), 4, int(rng.integers(2, 9))
        words = 4 * int(rng.integers(5, 30))
        config = Config(heads * size, blocks, heads, 16, words)
        N, T = d * int(rng.integers(2, 6)), int(rng.integers(4, 16))
        sent = bytes_per_step(config, Mesh(d, p, t), N, T)
        for axis, less in saved(config, (d, p, t), N, T, lost).items():
            sent[axis] -= less
        given = config, (d, p, t), N, T, sent
        text = f"data {d}, pipeline {p}, tensor {t}: {find(*given)[0]} forgotten"
        yield Case(1, text, [given], truth=partial(find, *given))


def saved(config, sizes, N, T, lost, slip=""):
    """{axis: bytes of all ranks that are not sent} if this reduction is forgotten."""
    d, p, t = sizes
    sums = 2 * (t - 1) * N * T * config.D * 4
    if lost == "tied" and p > 1:
        copies = 1 if slip == "one copy" else d
        ways = 1 if slip == "one way" else 2
        return {"pipeline": ways * copies * config.vocabulary * config.D * 4}
    if lost in ("tables", "blocks"):
        return {"tensor": sums * (config.depth if lost == "blocks" else 1)}
    if lost.startswith("stage"):
        stage, mesh = int(lost.split()[1]), Mesh(d, p, t)
        flags = 0 if slip == "no flags" else tensors(config, mesh, stage)
        count = numbers(config, mesh, stage) + flags
        parts = 1 if slip == "one part" else t
        return {"data": 2 * (d - 1) * parts * count * 4}
    return {}


def find(config, sizes, N, T, counted, slip=""):
    """[the name of what was forgotten]; "nothing" if no name fits."""
    expected = bytes_per_step(config, Mesh(*sizes), N, T)
    less = {axis: expected[axis] - counted[axis] for axis in AXES}
    if slip == "largest axis":
        names = {"data": "stage 0", "pipeline": "tied", "tensor": "blocks"}
        most = max(less, key=less.get)
        return [names[most] if less[most] else "nothing"]
    stages = range(sizes[1]) if slip != "last stage" else reversed(range(sizes[1]))
    names = ["tied", "tables", "blocks", *(f"stage {s}" for s in stages)]
    names = names[3:] + names[:3] if slip == "zero, data first" else names
    for lost in names:
        fits = saved(config, sizes, N, T, lost, slip)
        if slip.startswith("zero") and fits.items() <= less.items() and fits:
            return [lost]
        if any(fits.values()) and less == dict.fromkeys(AXES, 0) | fits:
            if slip == "from one" and lost.startswith("stage"):
                return [f"stage {int(lost.split()[1]) + 1}"]
            return [TURNED.get(lost, lost) if slip == "blocks for tables" else lost]
    return ["nothing"]


def no_name(attempt):
    """It is none of the names that the text lists."""
    known = r"tied|tables|blocks|nothing|stage \d+"
    name = attempt.came[0] if attempt.came else ""
    return signs.wrong(attempt) and not (
        isinstance(name, str) and re.fullmatch(known, name)
    )


exercise = Exercise(
    "15.2",
    cases,
    [],
    {
        "no name": no_name,
        "zero bytes": signs.slip("zero", "zero, data first"),
        **{name: signs.slip(name) for name in SLIPS},
    },
    processes=(),
)
