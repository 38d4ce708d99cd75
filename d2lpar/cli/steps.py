"""What a step of a script takes, and where its ranks drift apart.

A step ends where the optimizer that steps most often has stepped.  A mark is such a
moment on a rank: (optimizer, seconds, how many entries the rank's record has, how many
tokens it has looked up in a table of embeddings).
"""

import os
from collections import Counter
from statistics import median

from ..report.calls import size_of
from ..report.events import WAITS
from ..report.places import place
from ..report.units import counted, show_bytes, show_seconds

DEAREST = 3  # lines of code that are listed


def ends(marks):
    """The rest of the marks at the ends of a rank's steps."""
    counts = Counter(which for which, *_ in marks)
    most = counts.most_common(1)
    return [rest for which, *rest in marks if which == most[0][0]]


def typical(marks):
    """(start, stop, k, seconds of each step) of the step k of median length, or None.

    A step begins when all ranks have ended the one before.
    """
    times = [[at for at, *_ in ends(mine)] for mine in marks]
    bounds = [max(row) for row in zip(*times, strict=False)]
    seconds = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
    if not seconds or not median(seconds):
        return None
    k = min(range(len(seconds)), key=lambda i: abs(seconds[i] - median(seconds)))
    return bounds[k], bounds[k + 1], k, seconds


def step(run, marks, folder):
    """(facts on the typical step of a run, its Timeline), or (None, None).

    `computing`, `exposed` (communication that nothing hides) and `waiting` are the
    shares of all ranks' time.
    """
    found = typical(marks) if marks else None
    if found is None:
        return None, None
    start, stop, k, seconds = found
    line, ranks = run.timeline.between(start, stop), range(len(marks))
    took = stop - start
    computing = sum(line.busy(r) for r in ranks) * line.elapsed / took / len(ranks)
    exposed = sum(line.exposed(r) for r in ranks) / took / len(ranks)
    waiting = max(0.0, 1 - computing - exposed)
    bound = _bound(run, marks, k, computing * took, exposed * took)
    if waiting > max(computing, exposed):
        bound = "waiting for other ranks"
    facts = {"seconds": took, "steps": len(seconds), "shortest": min(seconds)}
    facts |= {"longest": max(seconds), "before": start, "computing": computing}
    facts |= {"exposed": exposed, "waiting": waiting, "bound": bound}
    flops = sum(event.flops for event in line if event.stream == "compute")
    tokens = ([count for *_, count in ends(mine)[k : k + 2]] for mine in marks)
    facts["tokens"] = round(max(after - before for before, after in tokens))
    facts |= _reached(run.cluster, flops / len(ranks) / took)
    return facts | {"dearest": _dearest(line, len(ranks), folder)}, line


def _reached(cluster, rate):
    """How many of its FLOPs a GPU does in a second, where there is one."""
    gpu = cluster and cluster.gpu
    return {"flop_rate": rate, "peak": gpu.half or gpu.fp32} if gpu else {}


def _dearest(line, n, folder):
    """The lines of code that take most of a step, with the seconds of a rank."""
    spent = Counter()
    for event in line:
        if event.stream == "compute" and event.where and event.where[0]:
            does = "waits" if event.kind in WAITS else "computes"
            spent[event.where, does] += event.stop - event.start
    return [
        {"line": near_place(where, folder), "does": does, "seconds": total / n}
        for (where, does), total in spent.most_common(DEAREST)
    ]


def near_place(where, folder):
    """A line of code, in a file that is named from the script's folder."""
    file, number = where
    return place((file.removeprefix(folder + os.sep), number))


def told(facts):
    """Lines on a step."""
    took, shortest = facts["seconds"], show_seconds(facts["shortest"])
    several = f"median of {facts['steps']}, {shortest} to "
    several += show_seconds(facts["longest"])
    return [
        f"a step: {show_seconds(took)} ({several}); "
        f"this one began at {show_seconds(facts['before'])}",
        f"  {facts['computing']:.0%} computing, {facts['exposed']:.0%} exposed "
        f"communication, {facts['waiting']:.0%} waiting",
        f"  bound by {facts['bound']}",
        *_speed(facts),
        *(
            f"  {one['line']} {one['does']} {show_seconds(one['seconds'])}, "
            f"{one['seconds'] / took:.0%}"
            for one in facts["dearest"]
        ),
    ]


def _speed(facts):
    rate, peak = (facts.get(name, 0) / 1e12 for name in ("flop_rate", "peak"))
    if rate <= peak / 1000:
        return []  # a toy, or no GPU
    share = f"{rate / peak:.0%} of the {peak:.4g} of such a GPU"
    lines = [f"  {rate:.3g} TFLOP/s with recomputed and masked work, {share}"]
    if each := facts["tokens"]:
        rate = f"{each / facts['seconds']:,.0f} tokens a second on a rank"
        lines.append(f"  {rate}, {each:,} in a step")
    return lines


def _bound(run, marks, k, computing, exposed):
    """What the step mostly waits for or does, in words."""
    cluster, took = run.cluster, max(computing, exposed)
    if cluster is None:
        return "computing" if computing > exposed else "communication"
    if cluster.gpu is None:
        return "communication, as computing takes no time without --cluster"
    if min(computing, exposed) > 0.8 * took:
        return f"computing and exposed communication alike, on {cluster.gpu.name}"
    if computing >= exposed:
        return f"computing, on {cluster.gpu.name}"
    sizes, calls = [], 0
    for mine, entries in zip(marks, run.ledger.entries, strict=True):
        (_, first, _), (_, last, _) = ends(mine)[k : k + 2]
        part = entries[first:last]
        calls = max(calls, sum(e[0] in ("send", "join") for e in part))
        sent = [size_of(e[5]) for e in part if e[0] == "send"]
        joins = (peers for e in part if e[0] == "join" for peers in e[6])
        sizes.append(sum(sent) + sum(size for _, size, _ in joins))
    per_node = cluster.per_node or run.world_size
    if run.world_size > per_node:
        rate, links = cluster.network_rate * cluster.cards / per_node, "the network"
    else:
        rate, links = cluster.rate, "the links"
    size = show_bytes(max(sizes))
    if max(sizes) / rate > took / 2:
        return f"{links}: a rank sends {size}"
    return f"latency: {counted(calls, 'call')} with {size} from a rank"


def drift(entries, marks, folder):
    """Lines on collectives that not all ranks of a group have called equally often.

    The steps that all ranks have ended are compared one by one, and then the rest.
    """
    bounds = [[0, *(length for _, length, _ in ends(mine)), None] for mine in marks]
    steps = min(map(len, bounds)) - 2
    for k in range(steps + 1):
        last = [after[k + 1] if k < steps else None for after in bounds]
        parts = [e[b[k] : z] for e, b, z in zip(entries, bounds, last, strict=True)]
        if lines := _unequal(parts, folder):
            when = f"in step {k}" if k < steps else f"after step {k - 1}" * (k > 0)
            rest = " From there on, values of different steps met." * (k < steps)
            return [f"Ranks made different calls {when}".rstrip() + f".{rest}", *lines]
    return []


def _unequal(parts, folder):
    """A line for each call that some members of its group make more often."""
    counts, members = [Counter() for _ in parts], {}
    for mine, part in zip(counts, parts, strict=True):
        for entry in part:
            if entry[0] == "join":
                members[entry[2]] = entry[3]
                mine[entry[2], entry[5].kind, entry[8]] += 1
    lines = []
    for call in dict.fromkeys(call for mine in counts for call in mine):
        group, kind, where = call
        times = {rank: counts[rank][call] for rank in members[group]}
        if len(set(times.values())) > 1:
            told = ", ".join(f"{c} on rank {rank}" for rank, c in times.items())
            lines.append(f"  {near_place(where, folder)} {kind}: {told}")
    return lines
