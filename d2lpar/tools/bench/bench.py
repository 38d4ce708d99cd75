"""`d2lpar bench`: what this machine does, in figures.

Four questions.  Each run starts real processes, except those of the simulator.

    allreduce     the course's all-reduces against `dist.all_reduce`, in one run
    prediction    a ring, predicted from steps measured alone, and measured
    startup       four ranks by `d2lpar.run` and by `torch.multiprocessing.spawn`
    simulator     messages per second of real time

Rivals take turns, round by round, so that whatever else the machine does hits all of
them.  A time lasts from when the last rank has come until the last one is done, by the
clock that the processes share.  Of the rounds the median counts.
"""

import datetime
import itertools
import os
import platform
import re
import signal
import statistics
import tempfile
import time
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from ... import allreduce, costs, fastest
from ...messages import exchange, fit_alpha_beta, ping_pong
from ...shared_memory import shared_memory_allreduce
from ...show.units import show_seconds
from ...world import launch

KB, MB = 2**10, 2**20
NATIVE = "dist.all_reduce"
NAMES = "naive tree direct ring segmented_ring recursive_doubling halving_doubling"
MOST = 40  # rounds of a race
TIMEOUT = 300.0  # seconds without a call: slow machines may take long
ON_CPU = {"backend": "gloo", "device": "cpu", "timeout": TIMEOUT}  # whatever is usual


def rivals():
    """Name to function: PyTorch's all-reduce, then the course's."""
    found = {NATIVE: dist.all_reduce}
    for name in NAMES.split():
        found[name] = getattr(allreduce, f"{name}_allreduce")
    found["shared_memory"] = shared_memory_allreduce
    return found | {"allreduce": fastest.allreduce}


def plan(sizes=None, ranks=None, quick=False):
    """What a bench does: a list of (name, function that returns figures).

    `sizes` such as "64K,1M" and `ranks` such as "2,4"; ValueError for others.
    """
    sizes = sizes or ("64K,1M" if quick else "64K,256K,1M,4M,16M,64M")
    sizes = sorted({size_of(text) for text in sizes.split(",")})
    ranks = _ranks(ranks or ("2" if quick else "2,4"))
    found = [("start-up", lambda: startup(quick))]
    for n, size in itertools.product(ranks, sizes):
        name = f"all-reduce, {n} ranks, {size_name(size)}"
        found.append((name, partial(race, n, size, 0.8 if quick else 5.0)))
    for n in ranks:
        seconds = 1.0 if quick else 10.0
        found.append((f"a ring, {n} ranks", partial(prediction, n, sizes, seconds)))
    return [*found, ("simulator", lambda: simulator(0.2 if quick else 1.0))]


def _ranks(text):
    numbers = sorted({int(n) for n in re.findall(r"\d+", text)})
    if not re.fullmatch(r"[\d\s,]+", text) or not numbers or not numbers[0] > 1:
        raise ValueError(f"Ranks are numbers from 2 on, such as 2,4, not {text!r}.")
    return numbers


def add(results, figures):
    """`figures` are in `results`; lists of several steps become one list."""
    for key, value in figures.items():
        if isinstance(value, list):
            results.setdefault(key, []).extend(value)
        else:
            results[key] = value


def machine():
    """Under which conditions the figures were measured."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    mine = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0)
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": len(mine),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": [round(x, 2) for x in load],
    }


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return re.search(r"model name\s*: (.*)", file.read())[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


# Measuring side by side, on the ranks


def take_turns(programs, before, after, seconds):
    """Name to list of (start, stop), one per round; every rank has such a dict.

    A round runs each program once, from a barrier on; the next round begins
    with another.  The first round warms up.  There are at least 3 more, then
    as many as fit into `seconds`.  `before()` and `after(name)` take no time.
    """
    names, times = list(programs), {name: [] for name in programs}
    for k in itertools.count():
        if k == 1:
            times, began = {name: [] for name in programs}, launch.now()
        for name in names[k % len(names) :] + names[: k % len(names)]:
            before()
            dist.barrier()
            start = launch.now()
            programs[name]()
            times[name].append((start, launch.now()))
            after(name)
        over = k >= MOST or (k >= 3 and launch.now() - began > seconds)
        if _first_rank_says(over):
            return times


def _first_rank_says(yes):
    word = torch.tensor([yes])
    dist.broadcast(word, 0)
    return bool(word)


def durations(results):
    """Name to list of seconds: from when all ranks are there until all are done."""

    def lasted(spans):
        starts, stops = zip(*spans, strict=True)
        return max(stops) - max(starts)

    names = results[0]
    rounds = {name: zip(*(r[name] for r in results), strict=True) for name in names}
    return {name: [lasted(spans) for spans in each] for name, each in rounds.items()}


# All-reduces


def race(n, size, seconds):
    """The all-reduces side by side on n ranks and `size` bytes."""
    run = launch.run(_race, size, seconds, world_size=n, **ON_CPU)
    times = durations(run.results)
    rows = []
    for name, each in times.items():
        rows.append(
            {
                "ranks": n,
                "bytes": size,
                "algorithm": name,
                "seconds": statistics.median(each),
                "fastest": min(each),
                "ratio": ratio(times[NATIVE], each),
                "rounds": len(each),
            }
        )
    return {"allreduce": rows}


def ratio(theirs, ours):
    """How many times as fast ours is: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _race(size, seconds):
    n, r = dist.get_world_size(), dist.get_rank()
    x = torch.empty(size // 4)
    programs = {name: lambda f=f: f(x) for name, f in rivals().items()}

    def check(name):
        if x[0] != n * (n + 1) / 2 or not torch.equal(x, x[:1].expand_as(x)):
            raise AssertionError(
                f"{name} gives a wrong sum of {size} bytes on {n} ranks"
            )

    return take_turns(programs, lambda: x.fill_(r + 1), check, seconds)


# A ring predicted


def prediction(n, sizes, seconds):
    """A ring of n ranks: measured, and predicted by two models.

    A ring makes 2(n-1) steps: send to the right and receive from the left at
    once, and in half of the steps add.  Its time is that of `costs.ring_cost`.

    steps       alpha and beta of steps that add and of steps that do not, each
                kind measured alone, with chunks of other sizes
    ping_pong   alpha and beta of single messages while nobody else sends
    """
    chunks = [int(c) // 4 * 4 for c in np.geomspace(*_span(sizes, n), 7)]
    run = launch.run(_foretell, chunks, sizes, seconds, world_size=n, **ON_CPU)
    times = durations([times for times, _ in run.results])
    median = {what: statistics.median(each) for what, each in times.items()}
    moving, adding = (
        fit_alpha_beta(chunks, [median[kind, c] / (2 * (n - 1)) for c in chunks])
        for kind in ("move", "add")
    )
    models = {
        "steps": [(a + b) / 2 for a, b in zip(moving, adding, strict=True)],
        "ping_pong": fit_alpha_beta(chunks, run.results[0][1]),
    }
    rows = [_row(n, size, median["ring", size], models) for size in sizes]
    return {"prediction": rows}


def _span(sizes, n):
    """From half of the ring's smallest chunk to 1.4 times its largest, in bytes."""
    return max(0.5 * min(sizes) / n, 64), max(1.4 * max(sizes) / n, 4096)


def _row(n, size, measured, models):
    row = {"ranks": n, "bytes": size, "seconds": measured}
    for name, (alpha, beta) in models.items():
        predicted = costs.ring_cost(size // 4, n).seconds(alpha, beta)
        error = predicted / measured - 1
        row[name] = {"alpha": alpha, "beta": beta, "seconds": predicted, "error": error}
    return row


def _foretell(chunks, sizes, seconds):
    """(times of steps and rings, seconds of single messages)."""
    n, alone = dist.get_world_size(), ping_pong(chunks)
    x = torch.zeros(max(*sizes, n * max(chunks)) // 4)
    programs = {}
    for size in chunks:
        parts = x[: n * size // 4].chunk(n)
        programs["move", size] = lambda parts=parts: _steps(parts, False)
        programs["add", size] = lambda parts=parts: _steps(parts, True)
    for size in sizes:
        view = x[: size // 4]
        programs["ring", size] = lambda view=view: allreduce.ring_allreduce(view)
    nothing = lambda *_: None
    return take_turns(programs, nothing, nothing, seconds), alone


def _steps(chunks, adding):
    """As many steps as a ring has, all with addition or all without."""
    n, r = dist.get_world_size(), dist.get_rank()
    spare = torch.empty_like(chunks[0]) if adding else None
    for k in range(2 * (n - 1)):
        mine, theirs = chunks[k % n], chunks[(k + 1) % n]
        exchange(mine, (r + 1) % n, spare if adding else theirs, (r - 1) % n)
        if adding:
            theirs += spare


# Starting up


def startup(quick=False):
    """Seconds until four ranks have added up four numbers, and all have ended."""
    first, *later = [_seconds(_by_run) for _ in range(3 if quick else 6)]
    spawn = [_seconds(_by_spawn) for _ in range(1 if quick else 3)]
    figures = {
        "run_first": first,
        "run": statistics.median(later),
        "spawn": statistics.median(spawn),
    }
    return {"startup": figures | {"ratio": figures["spawn"] / figures["run"]}}


def _seconds(program):
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def _by_run():
    run = launch.run(_greet, world_size=4, backend="gloo", timeout=TIMEOUT)
    assert run.results == [10] * 4


def _by_spawn():
    with tempfile.TemporaryDirectory() as folder:
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for us
        try:
            context = torch.multiprocessing.spawn(_spawned, (folder,), 4, join=False)
        finally:
            signal.signal(signal.SIGINT, usual)
        try:
            while not context.join():
                pass
        finally:
            for process in context.processes:
                process.kill()
                process.join()


def _spawned(rank, folder):
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=4)
    assert _greet() == 10
    dist.destroy_process_group()


def _greet():
    x = torch.ones(1) + dist.get_rank()
    dist.all_reduce(x)
    return x.item()


# The simulator


def simulator(seconds):
    """Messages per second of real time, in three programs."""
    return {
        "simulator": {
            "send and recv, 2 ranks": _rate(_to_and_fro, 2, seconds),
            "ring of 4, batched": _rate(_round, 4, seconds),
            "ring of 64, batched": _rate(_round, 64, seconds),
        }
    }


def _rate(program, n, seconds):
    """Messages per second; the number of rounds is doubled until it takes long."""
    rounds = 4
    while True:
        start = time.perf_counter()
        run = launch.run(program, rounds, world_size=n, backend="sim")
        passed = time.perf_counter() - start
        if passed > seconds / 2:
            return sum(run.messages) / passed
        rounds *= 2


def _to_and_fro(rounds):
    x, r = torch.zeros(1), dist.get_rank()
    for k in range(rounds):
        if k % 2 == r:
            dist.send(x, 1 - r)
        else:
            dist.recv(x, 1 - r)


def _round(rounds):
    n, r = dist.get_world_size(), dist.get_rank()
    mine, incoming = torch.zeros(1), torch.zeros(1)
    for _ in range(rounds):
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n)


# Sizes as text


def size_of(text):
    """Bytes of "64K", "1M", "1.5M", "4096"; powers of two, as "KB" and "MB" too."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", text, re.I)
    unit = {"": 1, "k": KB, "m": MB, "g": 2**30}
    size = round(float(match[1]) * unit[match[2].lower()]) if match else 0
    if size < 4 or size % 4:
        raise ValueError(
            f"A size is a number of bytes such as 64K or 16M, a multiple of 4, "
            f"not {text!r}."
        )
    return size


def size_name(size):
    """`64 KB`, `1 MB`: bytes in powers of two."""
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


# Tables for a terminal


def tables(results):
    """The results as rich tables."""
    for n in sorted({row["ranks"] for row in results.get("allreduce", ())}):
        yield _race_table(n, [r for r in results["allreduce"] if r["ranks"] == n])
    if results.get("prediction"):
        yield _prediction_table(results["prediction"])
    if "startup" in results:
        yield _startup_table(results["startup"])
    if "simulator" in results:
        table = new_table("The simulator", "program", "messages per second")
        for name, rate in results["simulator"].items():
            table.add_row(name, f"{rate:,.0f}")
        yield table


def new_table(title, first, *others):
    """A table with a title; all columns but the first hold numbers."""
    from rich import box, table

    made = table.Table(title=title, title_justify="left", box=box.SIMPLE)
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right")
    return made


def _time(seconds):
    """`1.23 ms`: three digits, for narrow columns."""
    return show_seconds(float(f"{seconds:.3g}"))


def _race_table(n, rows):
    sizes = sorted({row["bytes"] for row in rows})
    title = f"All-reduce on {n} Gloo ranks: time, and how many times as fast"
    table = new_table(title, "", *map(size_name, sizes))
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        mine = {row["bytes"]: row for row in rows if row["algorithm"] == name}
        if name == NATIVE:
            texts = [_time(mine[size]["seconds"]) for size in sizes]
        else:
            texts = [colour(mine[size]["ratio"]) for size in sizes]
        table.add_row(name, *texts, end_section=name == NATIVE)
    return table


def colour(ratio):
    """The ratio as text, green where it is 1 or more."""
    text = f"{ratio:.2f}"
    return f"[green]{text}[/green]" if ratio >= 1 else text


def table_by_width(title, rows, key, native):
    """Times of `native`, and how many times as fast the others are, by their width."""
    widths = sorted({row["width"] for row in rows})
    table = new_table(title, "", *(f"width {width}" for width in widths))
    for name in dict.fromkeys(row[key] for row in rows):
        mine = {row["width"]: row for row in rows if row[key] == name}
        if name == native:
            texts = [_time(mine[width]["seconds"]) for width in widths]
        else:
            texts = [colour(mine[width]["ratio"]) for width in widths]
        table.add_row(name, *texts, end_section=name == native)
    return table


def near(a, b):
    """Equal but for the order in which float32 terms were added."""
    return (a - b).abs().max() <= 1e-3 * b.abs().max()


def _prediction_table(rows):
    heads = "size", "measured", "from steps", "error", "from single messages", "error"
    table = new_table("A ring all-reduce, predicted", "ranks", *heads)
    for row in rows:
        texts = [size_name(row["bytes"]), _time(row["seconds"])]
        for model in ("steps", "ping_pong"):
            texts.append(_time(row[model]["seconds"]))
            texts.append(f"{row[model]['error']:+.0%}")
        table.add_row(str(row["ranks"]), *texts)
    return table


def _startup_table(figures):
    table = new_table("Starting and ending four ranks", "by", "seconds")
    table.add_row("torch.multiprocessing.spawn", f"{figures['spawn']:.2f}")
    table.add_row("d2lpar.run, first time", f"{figures['run_first']:.2f}")
    table.add_row("d2lpar.run, later", f"{figures['run']:.2f}")
    table.add_row("times as fast, later", f"{figures['ratio']:.0f}")
    return table
