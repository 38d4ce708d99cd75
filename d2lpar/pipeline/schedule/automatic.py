"""Schedules that a search finds, for given times and a bound on what is held.

Every rank takes the most urgent action that it can: B before F, F before W, as long as
it holds no more than `limit` micro-batches.  This is list scheduling.  What is most
urgent may vary in three ways, so all are tried and the fastest schedule is returned.
"""

from heapq import heapify, heappop, heappush
from itertools import product

from .actions import Action, Schedule, needs
from .simulation import simulate

WAITS = (0, 0.25, 0.5)  # of F: how long a rank waits rather than take the less urgent


def automatic(p, m, limit, forward=1.0, backward=1.0, weight=1.0, comm=0.0, kept=1):
    """Return the fastest schedule found in which no rank holds more than `limit`.

    limit    in micro-batches, not always whole
    kept     how much of one waits for its W, as for `simulate`: 0 if nothing does

    One stage per rank, W apart; the times are those of `simulate`, one number
    each.  Raises ValueError where `limit` has no room for one micro-batch.  In the
    manner of ZB-1p and ZB-2p (Qi et al. 2024, section 3.1), and not always optimal.
    """
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not number or not limit >= max(1, kept):
        text = f"limit must be a number of micro-batches, at least {max(1, kept)}, not"
        raise ValueError(f"{text} {limit!r}.")
    times = {"F": forward, "B": backward, "W": weight}
    found = {}
    for tapers, turns, wait in product((True, False), (True, False), WAITS):
        room = limit, kept
        lists = _Lists(p, m, room, times, comm, tapers, turns, wait * forward)
        made = Schedule(lists.fill(), f"auto, at most {limit} held")
        sim = simulate(made, forward, backward, weight, comm, kept)
        found.setdefault((round(sim.bubble, 9), sim.elapsed), made)
    return found[min(found)]


class _Lists:
    """The rows of a schedule while they grow, action by action in order of time.

    tapers    later ranks run fewer forwards ahead, as in 1F1B
    turns     after a B, an F comes first
    wait      time that a rank waits for an F or a B that is under way
    """

    def __init__(self, p, m, room, times, comm, tapers, turns, wait):
        self.p, self.m, self.times, self.comm = p, m, times, comm
        limit, self.kept = room
        self.limit = limit + 1e-9  # shares are added up
        self.turns, self.wait, self.over = turns, wait, {}
        less = (limit - 1) / max(1, p - 1) if tapers else 0
        self.ahead = [limit - r * less for r in range(p)]
        self.rows = [[] for _ in range(p)]
        self.count = [{"F": 0, "B": 0, "W": 0} for _ in range(p)]

    def fill(self):
        """Return the rows, as soon as each of them is complete."""
        free, looks = [0.0] * self.p, [(0.0, r) for r in range(self.p)]
        heapify(looks)
        while looks:
            now, r = heappop(looks)
            ready = [] if free[r] > now else self.ready(r, now)
            if ready:
                _, start, action = min(ready)
                free[r] = self.over[action] = start + self.times[action.kind]
                self.rows[r].append(action)
                self.count[r][action.kind] += 1
                heappush(looks, (free[r], r))
                for other in {r - 1, r + 1} & {*range(self.p)}:
                    came = free[r] + self.comm
                    heappush(looks, (max(now, came - self.wait), other))
        return tuple(map(tuple, self.rows))

    def ready(self, r, now):
        """Return (urgency, start, action) of what rank r can take, 0 most urgent."""
        count, found = self.count[r], []
        under_way, late = count["F"] - count["B"], count["B"] - count["W"]
        held = under_way + late * self.kept
        last = next((a.kind for a in self.rows[r][::-1] if a.kind != "W"), "F")
        kinds = "FBW" if self.turns and last == "B" else "BFW"
        if held + max(1, self.kept) > self.limit or under_way >= self.ahead[r]:
            kinds = "BW"
        if held + self.kept - 1 > self.limit:
            kinds = "W"
        for urgency, kind in enumerate(kinds):
            action = Action(r, kind, count[kind])
            start = self.start(action, now)
            if start is not None and start <= now + self.wait:
                found.append((urgency, start, action))
        return found

    def start(self, action, now):
        """Return when the action can begin, or None if that is not known yet."""
        needed = needs(action, self.p)
        if action.micro == self.m or not all(a in self.over for a in needed):
            return None
        late = [self.comm * (a.stage != action.stage) for a in needed]
        came = [self.over[a] + w for a, w in zip(needed, late, strict=True)]
        return max([now, *came])
