"""19.3 Which checkpoint is whole?"""

import hashlib
import json
from functools import partial

from .. import signs
from ..equality import whole_or_none
from ..judging import Case, Exercise

SLIPS = "trusts names", "provisional", "as text", "oldest", "only present", "manifest"


def cases(rng):
    """Folders after kills: whole, cut, flipped, provisional, without a manifest."""
    kinds = [["whole"], ["whole", "whole"], ["whole", "flipped"], []]
    kinds += [["whole", "missing"], ["whole", "provisional"], ["flipped"]]
    kinds += [["whole", "no manifest"], ["whole"] * 3 + ["cut"], ["provisional"]]
    kinds += [["whole", "missing", "flipped", "no manifest"], ["missing"]]
    first = [9, 8, 98, 1, 3, 20, 7, 9, 7, 4, 97, 2]
    names = ["whole", "flipped", "missing", "provisional", "no manifest", "cut"]
    for _ in range(4):
        kinds.append([names[i] for i in rng.integers(0, 6, size=4)])
        first.append(int(rng.integers(1, 12)))
    for states, begin in zip(kinds, first, strict=True):
        files = {}
        for k, state in enumerate(states, start=begin):
            files |= folder(k, state, rng)
        text = ", ".join(f"{k} {s}" for k, s in enumerate(states, start=begin))
        yield Case(1, text or "nothing", [(files,)], truth=partial(newest, files))


def folder(number, state, rng):
    """{name: bytes} of one checkpoint of two ranks in this state."""
    token = ".part-3f2a" if state == "provisional" else ""
    data = {f"rank-{r}-of-2.pt": rng.bytes(40) for r in range(2)}
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in data.items()}
    odd = "rank-1-of-2.pt"
    if state == "flipped":
        data[odd] = bytes([data[odd][0] ^ 1]) + data[odd][1:]
    if state == "cut":
        data[odd] = data[odd][:20]
    if state == "missing":
        del data[odd]
    if state != "no manifest":
        data["manifest.json"] = json.dumps({"files": sums}).encode()
    return {f"{number}{token}/{name}": part for name, part in data.items()}


def newest(files, slip=""):
    """[the number of the newest whole checkpoint, or None]; a slip takes others."""
    found = {}
    for path, data in files.items():
        name, _, file = path.partition("/")
        found.setdefault(name, {})[file] = data
    if slip == "provisional":
        found = {name.partition(".")[0]: inside for name, inside in found.items()}
    numbers = [name for name in found if name.isdigit() and whole(found[name], slip)]
    if not numbers:
        return [None]
    if slip == "as text":
        return [int(max(numbers))]
    return [(min if slip == "oldest" else max)(map(int, numbers))]


def whole(inside, slip=""):
    """Whether a folder's files are those of its manifest, as far as one looks."""
    if slip == "trusts names":
        return True
    if "manifest.json" not in inside:
        return False
    if slip == "manifest":
        return True
    sums = json.loads(inside["manifest.json"])["files"]
    for name, wanted in sums.items():
        if name not in inside:
            if slip == "only present":
                continue
            return False
        if hashlib.sha256(inside[name]).hexdigest() != wanted:
            return False
    return True


exercise = Exercise(
    "19.3",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=whole_or_none,
    processes=(),
)
