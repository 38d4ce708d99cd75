"""Programs that take turns on the same ranks, so that all meet the same disturbances.

Whatever else the machine does hits all of them.  A time lasts from when the last rank
has come until the last one is done, by the clock that the processes share.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..sim.measured import QUIET
from . import run as launch
from .conditions import busy_seconds, cores

MOST = 40  # rounds
STEADY = 0.03  # how far off a median may be, as a part of it, to be steady
FEWEST = 5  # rounds that count, however busy others were
LOOK = 0.1  # seconds over which others are watched


class LineUp(NamedTuple):
    """The rivals on a rank: {name: program}, PyTorch's first.

    `prepare()` comes before each turn and `after(name)` behind it; neither counts.
    `compare()` comes at the end.  Both may raise where a rival computes something else.
    """

    programs: dict
    prepare: Callable = lambda: None
    after: Callable = lambda name: None
    compare: Callable = lambda: None


class Again(NamedTuple):
    """The key of a program that has several turns in a row in each round."""

    name: object
    turn: int


def often(programs, turns):
    """The programs, each with `turns(name)` turns in a round."""
    return {
        Again(name, k): program
        for name, program in programs.items()
        for k in range(turns(name))
    }


def _plain(key):
    return key.name if isinstance(key, Again) else key


def take_turns(line_up, seconds, steady=False):
    """Name to list of (start, stop, worked, busy), one per round, of each rank.

    A round runs each program once, from a barrier on; the next round begins
    with another.  The first round warms up.  There are at least 3 more, then
    as many as fit into `seconds`.  If `steady`, there are none after all medians
    are steady, and a round waits for other programs to be quiet, as long again.

    worked      seconds of processor that this rank has used
    busy        seconds in which any processor of the machine was; 0 if not known
    """
    names, patience = list(line_up.programs), [seconds if steady else 0.0]
    for k in itertools.count():
        if k < 2:
            times, began = {name: [] for name in names}, launch.now()
        for name in names[k % len(names) :] + names[: k % len(names)]:
            line_up.prepare()
            dist.barrier()
            times[name].append(_timed(line_up.programs[name]))
            line_up.after(name)
        over = k >= MOST or (k >= 3 and launch.now() - began > seconds)
        over = over or (steady and k >= 8 and all(map(_settled, times.values())))
        if not over and dist.get_rank() == 0 and patience[0] > 0:
            began += _wait_for_quiet(patience)
        if _first_rank_says(over):
            return times


def _timed(program):
    busy, work, start = busy_seconds(), time.process_time(), launch.now()
    program()
    stop, work = launch.now(), time.process_time() - work
    return start, stop, work, busy_seconds() - busy


def _wait_for_quiet(patience):
    """Wait until the processors are mostly idle; return for how long."""
    began = time.monotonic()
    while patience[0] > 0:
        before, since = busy_seconds(), time.monotonic()
        time.sleep(LOOK)
        passed = time.monotonic() - since
        patience[0] -= passed
        if busy_seconds() - before <= QUIET * passed * cores():
            break
    return time.monotonic() - began


def _settled(spans):
    return is_steady([stop - start for start, stop, *_ in spans])


def is_steady(seconds):
    """Whether the median of these is as good as certain.

    Its standard error is about 0.93 of the distance between the quartiles, divided
    by the square root of their number, for errors with a normal distribution.
    """
    low, middle, high = statistics.quantiles(seconds, n=4)
    return 0.93 * (high - low) <= STEADY * middle * len(seconds) ** 0.5


def _first_rank_says(yes):
    word = torch.tensor([yes])
    dist.broadcast(word, 0)
    return bool(word)


def durations(results, quiet=False):
    """Name to list of seconds: from when all ranks are there until all are done.

    If `quiet`, only the rounds count in which other programs took least.
    """

    def lasted(spans):
        starts, stops, *_ = zip(*spans, strict=True)
        return max(stops) - max(starts)

    kept, found = quiet_rounds(results) if quiet else slice(None), {}
    for key in results[0]:
        rounds = zip(*(each[key] for each in results), strict=True)
        seconds = counted([lasted(spans) for spans in rounds], kept)
        found.setdefault(_plain(key), []).extend(seconds)
    return found


def counted(values, kept):
    """Those of these rounds, which are their numbers or a slice."""
    return values[kept] if isinstance(kept, slice) else [values[k] for k in kept]


def quiet_rounds(results):
    """The numbers of the rounds that count: where others were quiet, or the quietest.

    Others are quiet where they took a tenth of the processors at most.
    """
    shares = others(results)
    best = sorted(range(len(shares)), key=shares.__getitem__)
    enough = sum(share <= QUIET for share in shares)
    return sorted(best[: max(enough, min(FEWEST, len(best)))])


def others(results):
    """The part of the processors that other programs took, round by round."""
    first = results[0].values()
    busy = [sum(busy for *_, busy in spans) for spans in zip(*first, strict=True)]
    passed = [sum(b - a for a, b, *_ in spans) for spans in zip(*first, strict=True)]
    used = [
        sum(work for *_, work, _ in spans)
        for spans in zip(*(each for r in results for each in r.values()), strict=True)
    ]
    rows = zip(busy, used, passed, strict=True)
    return [max(b - u, 0.0) / max(t * cores(), 1e-9) for b, u, t in rows]


def worked(results, name, kept=slice(None)):
    """Seconds of processor that all ranks used together, in each of these rounds."""
    found = []
    for key in [key for key in results[0] if _plain(key) == name]:
        rounds = zip(*(each[key] for each in results), strict=True)
        found += counted([sum(span[2] for span in spans) for spans in rounds], kept)
    return found
