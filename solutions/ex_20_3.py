"""20.3 Survive a kill: train(step, w, steps, every, sizes, disk)."""

from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Disk
from d2lpar.checks.judging import Case, Requirement, on_ranks
from d2lpar.checks.signs import breaks, only
from d2lpar.report.units import show_bytes

ex = Exercise(
    "20.3",
    outcome=lambda attempt, rank: attempt.values[rank][0],
    agrees=lambda came, true, case: isinstance(came, list | tuple) and same(came, true),
    perform=lambda train, case, **options: survive(train, case, **options),
    processes=(),
)
S = 1501  # numbers of the weights, and as many of the momentum
ONE, TWO, THREE = (1, 1), (1, 2), (1, 3)  # (data, tensor)
at = lambda k: ("step", k)
middle = lambda k: ("the middle of", "change", k)
LATE = ("after", "rename", 5), ("the middle of", "remove", 4)  # folders 8 and 10
MOVED = [(THREE, TWO, k) for k in (2, 3, 6, 7)]
MOVED += [(a, b, k) for a, b in ((TWO, ONE), ((2, 2), TWO)) for k in (2, 5)]
RUNS = [  # (steps, every, [(sizes, kill) of each launch])
    (5, 2, [(ONE, None)]),
    (7, 3, [(TWO, at(5)), (TWO, None)]),
    (6, 2, [((2, 1), at(4)), ((2, 1), None)]),
    (8, 2, [*((THREE, at(k)) for k in (1, 4, 4, 6)), (THREE, None)]),
    (26, 2, [(ONE, at(23)), (ONE, None)]),
    (3, 1, [(ONE, at(2)), (ONE, None)]),
    (2, 3, [(TWO, at(1)), (TWO, None)]),
    (4, 2, [(TWO, None), (TWO, None)]),
    (7, 3, [(TWO, at(4)), (THREE, None)]),
    (6, 2, [((2, 2), at(3)), ((1, 4), at(5)), ((3, 1), None)]),
    *((5, 2, [(TWO, middle(k)), (TWO, None)]) for k in range(1, 8)),
    *((5, 2, [(TWO, ("after", "change", k)), (TWO, None)]) for k in (2, 3, 4)),
    *((12, 2, [(TWO, kill), (TWO, at(11)), (TWO, None)]) for kill in LATE),
    *((6, 2, [(a, middle(k)), (b, at(5)), (b, None)]) for a, b, k in MOVED),
    (5, 2, [(THREE, middle(4)), (TWO, middle(1)), (TWO, None)]),
]


@ex.cases
def cases(rng):
    """Kills at steps and in the middle of saving; the same ranks, and others."""
    for steps, every, launches in RUNS:
        w = torch.from_numpy(rng.normal(size=S))
        facts = {"w": w, "steps": steps, "every": every, "launches": launches, "S": S}
        facts["saving"] = any(kill and kill[0] != "step" for _, kill in launches)
        facts["moved"] = len({sizes for sizes, _ in launches}) > 1
        n = launches[-1][0][0] * launches[-1][0][1]
        kills = [f" until {' '.join(map(str, k))}" if k else "" for _, k in launches]
        told = [f"{d} x {t}{k}" for ((d, t), _), k in zip(launches, kills, strict=True)]
        text = f"{steps} steps, every {every} saved: {', then '.join(told)}"
        yield Case(n, text, [()] * n, outcomes(facts), facts)


def outcomes(facts):
    """Per rank, (all losses, its part of w, its part of v), as nobody kills it."""
    w, v, losses = facts["w"], torch.zeros(S, dtype=torch.float64), []
    d, t = facts["launches"][-1][0]
    for k in range(facts["steps"]):
        loss, w, v = moved(w, v, k, slice(0, S))
        losses.append(loss.item())
    pairs = zip(w.tensor_split(t), v.tensor_split(t), strict=True)
    return [(losses, *pair) for pair in pairs] * d


def moved(w, v, k, here, total=lambda part: part):
    """(loss, w, v) after step k, for the numbers that are `here`."""
    wanted = torch.sin(torch.arange(S, dtype=torch.float64) * (k + 1))[here]
    loss = total((w - wanted).square().sum() / S)
    v = 0.9 * v + (w - wanted) * (1 + loss)
    return loss, w - 0.05 * v, v


def drive(train, key, facts, sizes):
    """What `train` returns on this rank."""
    disk, (d, t), r = Disk.made[key], sizes, dist.get_rank()
    here = torch.arange(S).tensor_split(t)[r % t]

    def total(part):
        dist.all_reduce(part := part.clone())
        return part / d

    def step(k, w, v):
        disk.alive(disk.kill == ("step", k))
        loss, w, v = moved(w, v, k, here, total)
        disk.steps += r == 0
        return loss.item(), w, v

    w = facts["w"][here].clone()
    return train(step, w, facts["steps"], facts["every"], sizes, disk)


def survive(train, case, **options):
    """The Attempt of the last launch, or of the first that fails by itself."""
    files, facts, log = {}, case.facts, {"steps": 0, "written": 0}
    for sizes, kill in facts["launches"]:
        disk, n = Disk(files, kill), sizes[0] * sizes[1]
        given = replace(case, n=n, inputs=[(id(disk), facts, sizes)] * n)
        attempt = on_ranks(partial(drive, train), given, **options)
        attempt.case = case
        log = {name: log[name] + getattr(disk, name) for name in log}
        if attempt.error is not None and not disk.dead:
            return attempt
    if attempt.error is None:
        attempt.values = [(value, log) for value in attempt.values]
    return attempt


launches = lambda case: case.facts["launches"]
again = lambda case: len(launches(case)) - 1
ex.boundaries("one rank", "two ranks", "no power of two", "does not divide")
ex.boundaries(
    complete_already=lambda case: None in [kill for _, kill in launches(case)[:-1]],
    no_checkpoint=lambda case: case.facts["steps"] < case.facts["every"],
    every_step=lambda case: case.facts["every"] == 1,
    several_kills=lambda case: again(case) > 3,
    folders_8_and_10=lambda case: launches(case)[0][1] in LATE,
    kill_while_clearing=lambda case: (TWO, middle(1)) in launches(case)[1:-1],
)


def most_bytes(case):
    """Of each checkpoint: w, v, the losses, and four kilobytes of each rank."""
    steps, every = case.facts["steps"], case.facts["every"]
    ranks = max(d * t for (d, t), _ in launches(case))
    return (steps // every + again(case)) * (16 * S + (4096 + 64 * steps) * ranks)


most_steps = lambda case: case.facts["steps"] + again(case) * case.facts["every"]
logged = lambda name: lambda attempt: attempt.values[0][1][name]
STEPS = Requirement("steps in all launches", logged("steps"), most_steps, False)
WRITTEN = Requirement("bytes written", logged("written"), most_bytes, False, show_bytes)
ex.require(STEPS, WRITTEN)

# Texts of the answer, for edits

W, V = (f'{x} = torch.cat([one["{x}"] for one in files]).tensor_split(t)' for x in "wv")
NEWEST = "k = max((int(name) for name in folders if name.isdigit()), default=0)"
LOOP, SAVES = "while k < steps:", "k % every == 0:"
FILE, RENAME = 'f"{k}.part/{r}"', 'disk.rename(f"{k}.part", f"{k}")'
OLDER = 'for x in {y.split("/")[0] for y in disk.names()} - {f"{k}"}: '
OLDER += "x.isdigit() and disk.remove(x)"

# Mistakes of its own

ex.slip("momentum", {V + "[r % t]": "pass"}, somewhere=True).says("""
    After a restart it begins with a momentum of zero.
    Hint: What does a step need besides the weights? A checkpoint must hold all of it.
""")
ex.slip("next step", {LOOP: f"k += k > 0\n    {LOOP}"}, somewhere=True).says("""
    After a restart it goes on with the wrong step: the last one again, or one too far.
    Hint: If k steps are in the checkpoint, which number has the next one?
""")
once = {SAVES: 'k % every == 0 and f"{k}" not in folders:'}
ex.slip("next step", once | {LOOP: f"k -= k > 0\n    {LOOP}"})
ex.slip("the rest", {'losses = files[0]["losses"]': "pass"}, somewhere=True).says("""
    It returns only the losses since the last restart.
    Hint: Where do those of earlier launches come from? They belong into the checkpoint.
""")
saving, moved_on = (lambda case, x=x: case.facts[x] for x in ("saving", "moved"))
own = {f"{x}[r % t]": f'{x[0]} = files[r % t]["{x[0]}"]' for x in (W, V)}
ex.mistake("other ranks", only(moved_on), own).says("""
    It fails only if the next launch has a different mesh.
    Hint: Join the parts of the old ranks to whole tensors, and cut these for the new
    ones. What a killed attempt has left may be of other ranks, too: remove it.
""")
ex.wrong("other ranks", {"disk.remove(name)": "pass"})
at_once = {FILE: 'f"{k}/{r}"', RENAME: "pass"}
ex.mistake("not atomic", only(saving), at_once).says("""
    It fails only after a kill while it saves: perhaps what it loads is not whole.
    Hint: Write under another name, wait for all, and rename. Remove older ones then.
""")
ex.wrong("not atomic", {RENAME: f"{OLDER}\n                {RENAME}"})
ex.mistake("too early", breaks(STEPS), {SAVES: "False:"}).says("""
    The losses are right, but it does more steps again than a kill costs.
    Hint: Go on with the newest checkpoint that is whole. As text, "8" is after "10".
""")
ex.mistake("writes too much", breaks(WRITTEN), {SAVES: "True:"}).says("""
    It survives, but it writes more than the checkpoints need.
    Hint: Who writes, and when? Data ranks hold the same numbers, so one is enough.
""")
by_part = {"if r < t:": "if True:", FILE: 'f"{k}.part/{r % t}"'}
ex.wrong("writes too much", by_part | {'"part": r': '"part": r % t'})

# Unusual right answers

ex.right({RENAME: f"{RENAME}\n                {OLDER}"})
done = 'k = max((int(x[:-5]) for x in names if x.endswith(".done")), default=0)'
marked = {**at_once, RENAME: 'disk.write(f"{k}.done", b"ok")', NEWEST: done}
unmarked = 'name.isdigit() and f"{name}.done" not in names'
ex.right(marked | {'name.endswith(".part")': unmarked})
