"""19.3 Which checkpoint is whole?: newest_whole(files)."""

import hashlib
import json
import re

from d2lpar.checks.equality import whole_or_none
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, only, wrong

ex = Exercise("19.3", agrees=whole_or_none, processes=())
STATES = "whole", "flipped", "missing", "provisional", "no manifest", "cut"
# {the first number of each case: its folders}
FOLDERS = {9: ["whole"], 99: ["whole", "whole"], 98: ["whole", "flipped"], 1: []}
FOLDERS |= {3: ["whole", "missing"], 20: ["whole", "provisional"], 12: ["flipped"]}
FOLDERS |= {6: ["whole", "no manifest"], 4: ["provisional"]}
FOLDERS |= {
    7: ["whole"] * 4 + ["cut"],
    97: ["whole", "missing", "flipped", "no manifest"],
}
FOLDERS |= {2: ["missing"], 0: ["whole", "cut", "missing"], 10: ["and another file"]}


@ex.cases
def cases(rng):
    """Folders after kills: whole, cut, flipped, provisional, without a manifest."""
    every = [*FOLDERS.items()]
    for _ in range(4):
        states = [STATES[i] for i in rng.integers(0, len(STATES), size=4)]
        every.append((int(rng.integers(1, 12)), states))
    for begin, states in every:
        files, found = {}, [*enumerate(states, start=begin)]
        for k, state in found:
            files |= folder(k, state, rng)
        whole = [k for k, state in found if state in ("whole", "and another file")]
        text = ", ".join(f"{k} {state}" for k, state in found) or "nothing"
        facts = {"states": states, "whole": whole}
        yield Case(1, text, [(files,)], [max(whole, default=None)], facts)


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
    if state == "and another file":
        data["notes.txt"] = b"not of the manifest"
    if state != "no manifest":
        data["manifest.json"] = json.dumps({"files": sums}).encode()
    return {f"{number}{token}/{name}": part for name, part in data.items()}


states = lambda case: case.facts["states"]
whole = lambda case: case.facts["whole"]
ex.boundaries(
    nothing=lambda case: not states(case),
    none_whole=lambda case: states(case) and not whole(case),
    number_0=lambda case: case.expected == [0],
    more_digits=lambda case: {9, 10} <= {*whole(case)},
    further_file=lambda case: "and another file" in states(case)[-1:],
    newest_provisional=lambda case: states(case)[-1:] == ["provisional"],
    newest_without_manifest=lambda case: states(case)[-1:] == ["no manifest"],
    several_broken=lambda case: len(whole(case)) == 1 and len(states(case)) > 2,
)

# Texts of the answer, for edits

MANIFEST = 'if f"{name}/manifest.json" not in files:\n            return False'
CHECKS, MISSES = "return all(", "data is not None and "
NUMBERS = "if name.isdigit() and whole(name)"
RETURN = "return max(numbers, default=None)"

# Mistakes of its own

ex.slip("no checksum", {NUMBERS: "if name.isdigit()"}).says("""
    It takes a folder for whole and compares no file with its checksum.
    Hint: What can happen to a file after its folder got its name, or its manifest? The
    manifest only says what the files should be, so compare the checksums.
""")
ex.slip("no checksum", {CHECKS: "return True or all("})
tokens = {NUMBERS: "if whole(name)", "[int(name)": "[int(name.split('.')[0])"}
ex.slip("provisional", tokens).says("""
    It also takes folders with a provisional name.
    Hint: What does the name of a folder say about its attempt? A name with `.part`
    belongs to one that was killed before all ranks were ready.
""")
ex.slip("only present", {MISSES: "data is None or "}).says("""
    It checks the files that are there, and does not miss those that are not.
    Hint: Who knows which files there should be? Go through the manifest, and ask for
    each of its files.
""")
newest = {RETURN: f"k = {RETURN[7:]}; return k if whole(str(k)) else None"}
ex.slip("newest only", {NUMBERS: "if name.isdigit()", **newest}).says("""
    It looks at the newest folder only, and gives up if that is not whole.
    Hint: What is left of the run if its last checkpoint is damaged? An older one may
    still be whole, so go on to the next.
""")

lacks = lambda case: "no manifest" in states(case)
ex.mistake("no manifest", only(lacks), {MANIFEST: ""}).says("""
    It fails only where some folder has no manifest.
    Hint: What does your function do with a folder in which the file is missing? A kill
    came before it was written, so the checkpoint is not whole, and the next may be.
""")
ex.wrong("no manifest", {"return False": "return True"})
older = lambda attempt: set(attempt.came) <= {*whole(attempt.case)}
as_text = "return int(max(map(str, numbers))) if numbers else None"
ex.mistake("older", always(older, wrong), {RETURN: as_text}).says("""
    It returns a checkpoint that is whole, but not always the newest.
    Hint: Which of two numbers is larger, and is it still if you compare them as text?
    Turn the names into numbers, and take the largest, since the newest has it.
""")
ex.wrong("older", {RETURN: RETURN.replace("max", "min")})

# Answers to which the general sentences apply

same_names = "{path for path in files if path.split('/')[0] == name}"
ex.wrong("wrong", {CHECKS: f"return len({same_names}) == len(sums) + 1 and all("})
ex.wrong("wrong", {RETURN: "return max(numbers, default=0)"})
ex.wrong("raises", {RETURN: "return max(numbers)"})
ex.right({RETURN: "return next(iter(sorted(numbers)[::-1]), None)"})
ex.right({NUMBERS: "if '.' not in name and whole(name)"})

STEPS = 107  # of a run whose folders are named after what is left of them
left = lambda text, count=0: re.sub(
    r"\d+", lambda k: str(STEPS - int(k[0])), text, count=count
)
ex.variation(
    "b",
    varied="whether the newest checkpoint has the largest number",
    differs="It takes the largest number for the newest, as in the public exercise, "
    "but here it is the smallest.",
    given=lambda n, files: ({left(path, 1): data for path, data in files.items()},),
    turned=lambda number, n: STEPS - number,
    call=lambda case: left(case.call),
    reads={"larger": "smaller", "largest": "smallest"},
)
