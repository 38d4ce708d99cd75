"""Schedules that a rule makes: the order of every rank's actions."""

from collections import deque

from .actions import Action, Schedule
from .folded import dualpipe, dualpipe_v, zb_v

# Every rank begins with `warm` forwards, and then alternates.  The number of these
# forwards decides how long a rank waits, and how many micro-batches it holds.
#
#     warm      rank 0         rank 1         last rank
#     gpipe     m              m              m
#     1f1b      p-1            p-2            0
#     zb-h2     2(p-1)         2(p-2)         0


def alternate(forwards, backwards, warm):
    """Return `warm` forwards, then one of each in turn, then the rest."""
    order = list(forwards[:warm])
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - warm :])


def _actions(stage, kind, m):
    return [Action(stage, kind, i) for i in range(m)]


def naive(p, m):
    """Finish each micro-batch before the next begins, so one rank works."""
    order = [(kind, i) for i in range(m) for kind in "FB"]
    return [[Action(r, kind, i) for kind, i in order] for r in range(p)]


def gpipe(p, m):
    """Run all forwards, then all backwards (Huang et al. 2019, 2.3)."""
    return [_actions(r, "F", m) + _actions(r, "B", m) for r in range(p)]


def one_f_one_b(p, m, ahead=1):
    """Run each backward as soon as it can run (1F1B, or PipeDream-Flush).

    Rank r begins with `ahead` (p-1-r) forwards.  Narayanan et al. 2021, 2.2.
    """
    rows = []
    for r in range(p):
        warm = min(m, ahead * (p - 1 - r))
        rows.append(alternate(_actions(r, "F", m), _actions(r, "B", m), warm))
    return rows


# Four micro-batches on two ranks with two stages each, in groups of p:
#
#     rank 0    0F0 0F1 2F0 2F1   0F2 0F3 2F2 2F3  backwards: stages 2, 2, 0, 0
#     rank 1    1F0 1F1 3F0 3F1   1F2 1F3 3F2 3F3
def interleaved(p, m, v=2):
    """Give rank r the stages r, r+p, ..., r+(v-1)p.

    A group of micro-batches goes through all stages of a rank before the next
    group begins.  Narayanan et al. 2021, section 2.2.
    """
    groups, rows = _groups(p, m), []
    warm = (v - 1) * max(map(len, groups))
    for r in range(p):
        up = range(r, v * p, p)
        order = [(s, i) for group in groups for s in up for i in group]
        forwards = [Action(s, "F", i) for s, i in order]
        order = [(s, i) for group in groups for s in up[::-1] for i in group]
        backwards = [Action(s, "B", i) for s, i in order]
        ahead = min(v * m, 2 * (p - 1 - r) + warm)
        rows.append(alternate(forwards, backwards, ahead))
    return rows


def _groups(p, m):
    """Cut m micro-batches into groups of p, or of a few more.

    In smaller groups, ranks would wait for each other in a circle.
    """
    count = max(1, m // p)
    ends = [m * g // count for g in range(count + 1)]
    return [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def breadth_first(p, m, v=2):
    """Run all micro-batches through a stage before the rank's next stage.

    Stages lie as in `interleaved`, and the bubble is the same.  All
    micro-batches are held on all stages.  A rank comes to a stage at most
    twice in a step, so it gathers sharded weights at most twice.
    Lamy-Poirier 2023.
    """
    rows = []
    for r in range(p):
        up = range(r, v * p, p)
        forwards = [a for s in up for a in _actions(s, "F", m)]
        backwards = [a for s in up[::-1] for a in _actions(s, "B", m)]
        rows.append(forwards + backwards)
    return rows


def zero_bubble(p, m, ahead=1):
    """Put W off until the rank would have to wait (Qi et al. 2024, section 2).

    Rank r lags `ahead` r micro-batches behind with its W.  ahead=1 makes
    ZB-H1, in which no rank holds more micro-batches than rank 0 in 1F1B, and
    ahead=2 makes ZB-H2.
    """
    together = one_f_one_b(p, m, ahead)
    return [_with_weights(row, ahead * r) for r, row in enumerate(together)]


def _with_weights(row, lag):
    """Add W to a row: `lag` backwards late, or at once after the last F."""
    order, late = [], deque()
    forwards = sum(action.kind == "F" for action in row)  # still to come
    for action in row:
        order.append(action)
        forwards -= action.kind == "F"
        if action.kind == "B":
            late.append(action._replace(kind="W"))
            if len(late) > lag or not forwards:
                order.append(late.popleft())
    return order + list(late)


MAKERS = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
    "zb-h2": lambda p, m: zero_bubble(p, m, ahead=2),
    "breadth-first": breadth_first,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
    "dualpipe": dualpipe,
}
TAKE_V = {"interleaved", "breadth-first"}


def make(name, p, m, v=None):
    """Return the Schedule of that name for p ranks and m micro-batches.

    Names: naive gpipe 1f1b interleaved zb-h1 zb-h2 breadth-first zb-v
    dualpipe-v dualpipe.  `interleaved` and `breadth-first` have v stages on each
    rank, 2 by default.  Raises ValueError for anything else.
    """
    if name not in MAKERS:
        known = ", ".join(MAKERS)
        raise ValueError(f"There is no schedule {name!r}. Choose one of {known}.")
    if v is not None and name not in TAKE_V:
        text = "Only interleaved and breadth-first take v, the stages on each rank;"
        raise ValueError(f"{text} {name} has a number of its own.")
    _check_count("p", p, 1)
    _check_count("m", m, 1)
    _check_count("v", 2 if v is None else v, 2)
    rows = MAKERS[name](p, m, *[v] * (v is not None))
    copies = 2 if name == "dualpipe" else 1
    return Schedule(tuple(map(tuple, rows)), name, copies)


def _check_count(letter, count, least):
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        text = f"{letter} must be a whole number of at least {least}, not {count!r}."
        raise ValueError(text)
