"""What went wrong, in words: a sentence, and a line for every rank.

Both worlds bring the same material, a `Status` per rank, so both say the same.
"""

import re

from .calls import MESSAGES
from .errors import DeadlockError, Interrupted, MismatchError, RaceError, RankError
from .places import place, source
from .texts import short
from .threads import innermost_user

GROUPS_DIFFER = "All ranks make all groups in one order, also those of others."
ENDS_DIFFER = "The two ends of a message must have one dtype and number of elements."


def line_of(status):
    """One line: what this rank was doing, where."""
    call = status.call
    if call is not None:
        text, where = call.text, call.where
    elif status.state in ("returned", "stopped"):
        text, where = status.state, ("", 0)
    elif status.polls is not None:
        text, where = f"polls {status.polls.text}", status.where
    else:
        ready = status.state == "ready"
        text, where = "waits for its turn" if ready else status.state, status.where
    if status.note:
        text = f"{text} ({status.note})" if text else status.note
    text = f"rank {status.rank}: {text}"
    if not where[0]:
        return text
    code = source(where)
    return f"{text}, {place(where)}" + (f"    {code}" if code else "")


def table(statuses):
    """The lines of all ranks; equal neighbours share one where there are many."""
    lines = [line_of(status) for status in statuses]
    if len(lines) <= 16:
        return "\n".join(f"  {line}" for line in lines)
    groups = []
    for status, line in zip(statuses, lines, strict=True):
        rest = line.split(":", 1)[1]
        rest_key = re.sub(r"\d+", "#", rest.split(",")[0])
        if groups and groups[-1][0] == rest_key:
            groups[-1][2] = status.rank
        else:
            groups.append([rest_key, status.rank, status.rank, rest])
    return "\n".join(
        f"  rank {low}:{rest}" if low == high else f"  ranks {low} to {high}:{rest}"
        for _, low, high, rest in groups
    )


def names(ranks):
    """The ranks in words: rank 0, or ranks 0, 2 and 3."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def waits_for(status, statuses):
    """The ranks without which this one cannot go on."""
    call = status.call
    if call is None:
        return []
    if call.kind in MESSAGES and call.peer is not None:
        return [call.peer]
    others = [rank for rank in call.ranks if rank != status.rank]
    if call.kind in MESSAGES:
        return others
    return [rank for rank in others if not _joined(statuses[rank], call)]


def _joined(status, call):
    """Has this rank come to the same collective?"""
    mine = [status.call] if status.call else []
    return any(
        (other.group, other.ranks) == (call.group, call.ranks)
        and other.kind not in MESSAGES
        and other.seq >= call.seq
        for other in mine + list(status.open)
    )


def cycle(statuses):
    """Ranks that wait for each other in turn, smallest first, or None."""
    edges = {}
    for status in statuses:
        targets = waits_for(status, statuses)
        any_source = status.call and status.call.peer is None
        if targets and not (any_source and status.call.kind in MESSAGES):
            edges[status.rank] = targets[0] if len(targets) == 1 else targets
    for start in edges:
        path, rank = [], start
        while rank in edges and rank not in path:
            path.append(rank)
            target = edges[rank]
            if isinstance(target, list):
                blocked = [other for other in target if other in edges]
                target = blocked[0] if blocked else target[0]
            rank = target
        if rank in path:
            loop = path[path.index(rank) :]
            first = loop.index(min(loop))
            return loop[first:] + loop[:first]
    return None


def _advice(loop, statuses):
    kinds = {statuses[rank].call.kind for rank in loop}
    if kinds == {"recv"}:
        return "All of them receive first, so nobody sends. Let one send first."
    if kinds == {"send"}:
        return (
            "All of them send first, and a send ends only when it is received. Let one "
            "receive first, or give both to batch_isend_irecv."
        )
    return "Check that every send has its receive, in an order that can proceed."


def deadlock(statuses):
    """A DeadlockError for ranks none of which can go on."""
    loop = cycle(statuses)
    if loop:
        chain = " -> ".join(f"rank {rank}" for rank in loop + loop[:1])
        head = f"deadlock: {names(loop)} wait for each other ({chain})."
        advice = f" {_advice(loop, statuses)}"
        error = _error(DeadlockError, head + advice, loop[0], statuses)
        error.cycle, error.advice = loop, advice
        return error
    for status in statuses:
        for rank in waits_for(status, statuses):
            other = statuses[rank]
            if other.state == "returned":
                head = (
                    f"deadlock: rank {rank} has returned, and rank {status.rank} still "
                    f"waits for it in {status.call.text}.{_counts(status, other)}"
                )
                return _error(DeadlockError, head, rank, statuses)
    blocked = [status.rank for status in statuses if status.call]
    if not blocked:
        return _error(RankError, "deadlock: no rank goes on.", None, statuses)
    verb = "waits" if len(blocked) == 1 else "wait"
    head = f"deadlock: {names(blocked)} {verb} for messages that nobody sends."
    return _error(DeadlockError, head, blocked[0], statuses)


def _counts(status, other):
    """How often either has called the collective in which one waits, if it differs."""
    call = status.call
    key = call.group, call.kind
    mine, theirs = status.called.get(key, 0), other.called.get(key, 0)
    if call.kind in MESSAGES or mine == theirs:
        return ""
    both = f"{_times(mine)}, rank {other.rank} {_times(theirs)}"
    return f" Rank {status.rank} has called {call.kind} {both}."


def _times(count):
    return ["never", "once", "twice"][count] if count < 3 else f"{count:,} times"


def stuck(statuses, without):
    """The error for a run that took too long; `without` is "no progress for 2 s"."""
    busy = [s for s in statuses if s.state == "running" and s.call is None]
    if not busy:
        error = deadlock(statuses)
        error.args = (error.args[0].replace("deadlock", without, 1),)
        return error
    polling = [status for status in busy if status.polls]
    if len(polling) == len(busy):
        return _polling(polling, statuses, without)
    if without.startswith("nothing but prints"):
        return _talking(busy, statuses, without)
    ranks = [status.rank for status in busy if not status.polls]
    head = (
        f"{without}: {names(ranks)} did not come to a communication "
        "call, print or return: an endless loop, or work longer than `timeout`."
    )
    return _error(RankError, head, ranks[0], statuses)


def _polling(polling, statuses, without):
    first, *others = polling
    more = f", like {names([s.rank for s in others])}" if others else ""
    head = (
        f"{without}: rank {first.rank} asks again and again whether {first.polls.text} "
        f"is_completed(){_at(first)}{more}, and no message moves. Call wait() instead: "
        "it tells which rank is missing."
    )
    error = _error(RankError, head, first.rank, statuses, line=first.where)
    error.call = first.polls.text
    return error


def _talking(busy, statuses, without):
    status = max(busy, key=lambda status: status.printed)
    head = (
        f"{without}: rank {status.rank} prints and does nothing else, "
        f"{_size(status.printed)} so far{_at(status)}. End its loop, or give run a "
        "longer `timeout`."
    )
    return _error(RankError, head, status.rank, statuses, line=status.where)


def race(statuses, rank, call, what):
    """The RaceError of a rank that did `what` while `call` was in flight."""
    done = f"rank {rank} {what}{_at(statuses[rank])} while its {call.kind} of "
    head = f"{done}{place(call.where)} was in flight. Call wait() on it first."
    return _error(RaceError, head, rank, statuses, line=statuses[rank].where)


def printed_too_much(statuses, limit):
    """The error for ranks that have printed more than `limit` bytes together."""
    status = max(statuses, key=lambda status: status.printed)
    head = (
        f"rank {status.rank} has printed {_size(status.printed)}{_at(status)}. The "
        f"ranks of a run may print {_size(limit)} together. Print less often, or write "
        "to a file, and look whether the loop around the print ends."
    )
    return _error(RankError, head, status.rank, statuses, line=status.where)


def interrupted(statuses, seconds):
    """The KeyboardInterrupt of a run: what every rank was doing."""
    head = f"interrupted after {seconds:.1f} s. The ranks were here:"
    return Interrupted(f"{head}\n{table(statuses)}")


def _at(status):
    """ " at cell [3]:4", or nothing where that is not known."""
    return f" at {place(status.where)}" if status.where[0] else ""


def _size(count):
    """Bytes as people say them: 950 bytes, 32.0 MB."""
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def rank_failed(statuses, rank, error):
    """A RankError for an exception on one rank; `error` becomes its cause."""
    status = statuses[rank]
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
    else:
        what = f"raised {type(error).__name__}" + _reason(error)
    code = f"    {source(status.where)}" if source(status.where) else ""
    head = f"rank {rank} {what}{_at(status)}{code}"
    failed = _error(RankError, head, rank, statuses, line=status.where)
    if isinstance(error, BaseException):
        failed.__cause__ = error
    return failed


def lost_result(reports, report, error):
    """A RankError for what one rank returned, if it raises as it is rebuilt here."""
    raised = f"{type(error).__name__}{_reason(error)}"
    where = innermost_user(error.__traceback__)
    head = (
        f"rank {report.rank} returned a {report.result.kind} whose copy cannot be "
        f"rebuilt: {raised}{f' at {place(where)}' if where[0] else ''}. What the other "
        "ranks returned is in `.run.results` of this error."
    )
    statuses = [each.status for each in reports]
    lost = _error(RankError, head, report.rank, statuses, where)
    lost.__cause__ = error
    return lost


def _reason(error):
    """The first line of what an exception says."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # a broken __str__ of the user's
        return ""
    more = " ..." if len(lines) > 1 else ""
    return f": {short(lines[0])}{more}" if lines else ""


def died(statuses, rank, how):
    """A RankError for a rank that ended without a report; `how`: "by SIGKILL"."""
    head = f"rank {rank} died {how}."
    return _error(RankError, head, rank, statuses)


def mismatch(first, second, why="", statuses=()):
    """A MismatchError for the statuses of two ranks whose calls do not fit.

    `statuses` are those of all ranks, where they are known.
    """
    a, b = first.call, second.call
    head = (
        f"rank {second.rank} calls {b.meta} where rank {first.rank} calls {a.meta}."
        f"{' ' + why if why else ''}"
    )
    every = {status.rank: status for status in [*statuses, first, second]}
    listed = [every[rank] for rank in sorted(every)]
    return _error(MismatchError, head, second.rank, listed, line=b.where)


def _error(kind, head, rank, statuses, line=None):
    """The error with its attributes; the statuses are listed below the sentence."""
    status = next((s for s in statuses if s.rank == rank), None)
    call = status.call if status else None
    line = line or (call.where if call else status.where if status else ("", 0))
    return kind(
        f"{head}\n{table(statuses)}",
        rank=rank,
        call=call.text if call else None,
        line=place(line) if line[0] else None,
    )
