"""20.3 Survive a kill."""

import itertools
import zlib
from dataclasses import replace
from functools import cache, partial

import torch
import torch.distributed as dist

from ...report.units import show_bytes
from .. import signs
from ..equality import same
from ..judging import Case, Exercise, Requirement, on_ranks
from ..signs import breaks, wrong

S = 1500  # numbers of the weights, and as many of the momentum
SAME, MORE = ((1, 2), (1, 2)), ((1, 2), (2, 2))
FEWER, ALONE = ((1, 3), (1, 2)), ((1, 2), (1, 1))
SLIPS = "momentum", "again", "skips", "only the rest"


def cases(rng):
    """Kills at steps and in the middle of saving; the same ranks, and others."""
    yield case(rng, 5, 2, [((1, 1), None)])
    yield case(rng, 7, 3, [((1, 2), ("step", 5)), ((1, 2), None)])
    yield case(rng, 6, 2, [((2, 1), ("step", 4)), ((2, 1), None)])
    often = [("step", 1), ("step", 4), ("step", 4), ("step", 6), None]
    yield case(rng, 8, 2, [((1, 3), kill) for kill in often])
    yield case(rng, 26, 2, [((1, 1), ("step", 23)), ((1, 1), None)])
    yield case(rng, 7, 3, [((1, 2), ("step", 4)), ((1, 3), None)])
    moving = [((2, 2), ("step", 3)), ((1, 4), ("step", 5)), ((3, 1), None)]
    yield case(rng, 6, 2, moving)
    moments = [("middle", at) for at in range(7)] + [("after", at) for at in (1, 2, 3)]
    for kill in moments:
        first, second = SAME
        yield case(rng, 5, 2, [(first, kill), (second, None)])
    others = (FEWER, (1, 2, 5, 6)), (ALONE, (1, 4)), (MORE, (1, 4))
    for (first, second), changes in others:
        for at in changes:
            launches = [(first, ("middle", at)), (second, ("step", 5)), (second, None)]
            yield case(rng, 6, 2, launches)


def case(rng, steps, every, launches):
    """One run, launched several times: ((data, tensor), kill or None) of each."""
    w = torch.from_numpy(rng.normal(size=S))
    facts = {"w": w, "steps": steps, "every": every, "launches": launches}
    sizes = [each for each, _ in launches]
    facts["saving"] = any(kill and kill[0] != "step" for _, kill in launches)
    facts["moved"] = len(set(sizes)) > 1
    n = sizes[-1][0] * sizes[-1][1]
    told = [f"{d} x {t}{in_words(kill)}" for (d, t), kill in launches]
    text = f"{steps} steps, every {every} saved: {', then '.join(told)}"
    truth = cache(partial(outcomes, facts))
    return Case(n, text, [()] * n, None, facts, truth=truth)


def in_words(kill):
    """ " until step 4", " until the middle of change 3", or nothing."""
    if kill is None:
        return ""
    how, at = kill
    when = {"middle": "the middle of change", "after": "the end of change"}
    return f" until {when.get(how, how)} {at}"


# What is true


def outcomes(facts, slip=""):
    """Per rank, (all losses, its part of w, its part of v); slips where they show."""
    w, v, losses = facts["w"], torch.zeros(S, dtype=torch.float64), []
    saved = 0, w, v, losses
    d, t = facts["launches"][-1][0]
    if slip and facts["saving"]:
        return [...] * (d * t)
    for _, kill in facts["launches"]:
        k, w, v, losses = saved
        v = torch.zeros_like(v) if slip == "momentum" and k else v
        losses = [] if slip == "only the rest" else losses
        k = k + (slip == "skips" and k > 0) - (slip == "again" and k > 0)
        ends = kill and kill[0] == "step" and k <= kill[1]
        last = kill[1] if ends else facts["steps"]
        while k < last:
            loss, w, v = moved(w, v, k, slice(0, S))
            losses, k = [*losses, loss.item()], k + 1
            if k % facts["every"] == 0 and k > saved[0]:
                saved = k, w, v, losses
    pairs = zip(w.tensor_split(t), v.tensor_split(t), strict=True)
    return [(losses, *pair) for pair in pairs] * d


def moved(w, v, k, here, total=lambda part: part):
    """(loss, w, v) after step k, for the numbers that are `here`."""
    wanted = torch.sin(torch.arange(S, dtype=torch.float64) * (k + 1))[here]
    loss = total((w - wanted).square().sum() / S)
    v = 0.9 * v + (w - wanted) * (1 + loss)
    return loss, w - 0.05 * v, v


# The disk, and the run on it


class Killed(Exception):
    """The whole run is killed here."""


class Disk:
    """Files that all ranks see, until the run is killed.

    A folder is what several names have before their first slash.
    """

    def __init__(self, files, kill=None):
        self.files, self.kill = files, kill
        self.changes = self.written = self.steps = 0
        self.dead = False

    def names(self):
        """Return the names of all files, in no order that one could rely on."""
        self.alive()
        return sorted(self.files, key=lambda name: zlib.crc32(name.encode()))

    def read(self, name):
        """Return the bytes of a file."""
        self.alive()
        if name not in self.files:
            raise FileNotFoundError(f"There is no file {name!r} on this disk.")
        return self.files[name]

    def write(self, name, data):
        """Make a file, or replace it; a kill leaves half of it."""
        data = bytes(data)
        half = self.begin()
        self.files[str(name)] = data[: len(data) // 2] if half else data
        self.written += len(data)
        self.end(half)

    def rename(self, old, new):
        """Give a file or folder another name, at once or not at all."""
        inside = self.inside(old)
        if not inside or self.inside(new):
            what = f"no {old!r}" if not inside else f"a {new!r} already"
            raise OSError(f"There is {what} on this disk.")
        half = self.begin()
        if not half:
            for name in inside:
                self.files[new + name[len(old) :]] = self.files.pop(name)
        self.end(half)

    def remove(self, name):
        """Remove a file or folder; a kill leaves half of a folder."""
        inside, half = self.inside(name), self.begin()
        for each in inside[: len(inside) // 2] if half else inside:
            del self.files[each]
        self.end(half)

    def inside(self, name):
        self.alive()
        return [x for x in sorted(self.files) if x == name or x.startswith(f"{name}/")]

    def alive(self):
        if self.dead:
            raise Killed("The run is killed.")

    def begin(self):
        """Whether the kill comes in the middle of this change."""
        self.alive()
        return self.kill == ("middle", self.changes)

    def end(self, half):
        self.dead = half or self.kill == ("after", self.changes)
        self.changes += 1
        self.alive()


DISKS: dict = {}  # ranks are threads here, so all find the same one
KEYS = itertools.count()


def drive(train, key, facts, sizes):
    """What `train` returns on this rank."""
    disk, (d, t), r = DISKS[key], sizes, dist.get_rank()
    here = torch.arange(S).tensor_split(t)[r % t]

    def total(part):
        part = part.clone()
        dist.all_reduce(part)
        return part / d

    def step(k, w, v):
        disk.alive()
        if disk.kill == ("step", k):
            disk.dead = True
        disk.alive()
        loss, w, v = moved(w, v, k, here, total)
        disk.steps += r == 0
        return loss.item(), w, v

    start = facts["w"][here].clone()
    return train(step, start, facts["steps"], facts["every"], sizes, disk)


def survive(train, case, **options):
    """The Attempt of the last launch, or of the first that fails by itself."""
    files, facts, log = {}, case.facts, {"steps": 0, "written": 0}
    for sizes, kill in facts["launches"]:
        key, (d, t) = next(KEYS), sizes
        disk = DISKS[key] = Disk(files, kill)
        given = replace(case, n=d * t, inputs=[(key, facts, sizes)] * (d * t))
        try:
            attempt = on_ranks(partial(drive, train), given, **options)
        finally:
            del DISKS[key]
        attempt.case = case
        log = {name: log[name] + getattr(disk, name) for name in log}
        if attempt.error is not None and not disk.dead:
            return attempt
    if attempt.error is None:
        attempt.values = [(value, log) for value in attempt.values]
    return attempt


def returned(attempt, rank):
    return attempt.values[rank][0]


def agrees(came, wanted, case):
    """(losses, w, v), to nine digits."""
    return isinstance(came, list | tuple) and same(came, wanted)


def logged(name):
    return lambda attempt: attempt.values[0][1][name]


def kills(case):
    return sum(kill is not None for _, kill in case.facts["launches"])


def most_steps(case):
    return case.facts["steps"] + kills(case) * case.facts["every"]


def most_bytes(case):
    """Of each checkpoint: w, v, the losses, and four kilobytes of each rank."""
    facts = case.facts
    saves = facts["steps"] // facts["every"] + kills(case)
    ranks = max(d * t for (d, t), _ in facts["launches"])
    return saves * (16 * S + (4096 + 64 * facts["steps"]) * ranks)


STEPS = Requirement("steps in all launches", logged("steps"), most_steps, False)
WRITTEN = Requirement("bytes written", logged("written"), most_bytes, False, show_bytes)

exercise = Exercise(
    "20.3",
    cases,
    [STEPS, WRITTEN],
    {
        "no triple": lambda a: wrong(a) and not isinstance(a.came[0], list | tuple),
        **signs.slips(*SLIPS),
        "left over": signs.only(lambda c: c.facts["saving"] and c.facts["moved"]),
        "not atomic": signs.only(lambda c: c.facts["saving"]),
        "other ranks": signs.only(lambda c: c.facts["moved"]),
        "too early": breaks(STEPS),
        "writes too much": breaks(WRITTEN),
    },
    outcome=returned,
    agrees=agrees,
    perform=survive,
    processes=(),
)
