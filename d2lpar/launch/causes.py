"""Which of several failures was the first cause, and the error that names it.

In this order: a communication that the ranks describe differently, a death without a
report, an exception of a rank's own, a broken connection.  (A run in which nothing
fails but nothing happens either is stuck; the launcher sees that by itself.)
"""

import re
import signal

from ..report import explain
from ..report.calls import disagreement
from ..report.engine import Status, Waiting, is_users
from ..sim import ship

# seconds to wait for a better cause
GRACE = {"mismatch": 0.25, "died": 0.1, "failed": 0.2, "transport": 1.0}


def failure(run):
    """The error for the first cause, or None where all ranks have returned."""
    failed = {r: m for r, m in sorted(run.last.items()) if m.kind == "failed"}
    if not failed and not run.dead:
        return None
    statuses = run.ask()
    for message in failed.values():
        if message.cause == "mismatch":
            return _mismatch(run.board, message.mismatch, statuses)
    for rank in sorted(run.dead):
        return _death(run, rank, statuses)
    for cause in ("failed", "transport"):
        for rank, message in failed.items():
            if message.cause == cause:
                return explain.rank_failed(statuses, rank, error_of(message))


def error_of(message):
    """The exception in the last message of a rank, or None."""
    if message.error is None:
        return None
    try:
        return ship.unpack(message.error)
    except Exception:
        lines = message.report.traceback.strip().splitlines() or ["an exception"]
        return RuntimeError(lines[-1])


def _death(run, rank, statuses):
    code, words = run.dead[rank], run.native_text(rank)
    how = _how(code)
    head, _, fatal = words.partition("Fatal Python error: ")
    if fatal:
        statuses[rank].where = _first_line(fatal) or statuses[rank].where
        how += f" ({fatal.splitlines()[0]})"
    error = explain.died(statuses, rank, how)
    lines = [line for line in head.strip().splitlines() if line.strip()][-10:]
    said = "".join(f"\n  rank {rank} wrote: {line}" for line in lines)
    error.args = (error.args[0] + said,)
    return error


def _how(code):
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code} and no report, as after os._exit({code})"


def _first_line(fatal):
    """(file, line) of the user's code in what faulthandler wrote."""
    for file, line in re.findall(r'File "(.+?)", line (\d+)', fatal):
        if is_users(file):
            return file, int(line)
    return None


def _mismatch(board, key, statuses):
    """The MismatchError for a communication that ranks describe differently.

    The rank that is unlike most others is the culprit; of the two ends of a message,
    the receiver.
    """
    kind, group, ranks, *rest = key
    found = {}
    for rank in ranks:
        signature = board.ranks[rank].signature(key)
        if signature is not None:
            found[rank] = signature[:2]
    if kind == "m":
        pair = rest[1], rest[2]
        ends = {pair[0]: pair[1], pair[1]: pair[0]}
        why = explain.ENDS_DIFFER
    else:
        pair, ends = _odd_one(ranks, found), {}
        why = explain.GROUPS_DIFFER if group == "new_group" else ""
    described = [_described(r, key, *found[r], ends.get(r)) for r in pair]
    return explain.mismatch(*described, why, statuses)


def _odd_one(ranks, found):
    """(a rank, the rank that disagrees with it and with most others)."""
    unlike = {rank: [] for rank in found}
    for a in found:
        for b in found:
            metas = {ranks.index(a): found[a][0], ranks.index(b): found[b][0]}
            if a != b and disagreement(metas):
                unlike[a].append(b)
    odd = max(found, key=lambda rank: (len(unlike[rank]), rank))
    return min(unlike[odd], default=odd), odd


def _described(rank, key, meta, where, peer):
    """The Status of one end of a communication that does not fit."""
    word = {"send": "dst", "recv": "src"}.get(meta.kind)
    text = f"{meta.kind}({word}={peer})" if word else meta.kind
    seq = key[3] if key[0] == "c" else 0
    call = Waiting(text, where, meta.kind, key[1], key[2], peer, seq, 0, str(meta))
    return Status(rank, "blocked", call)
