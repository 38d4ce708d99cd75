"""What breaks in a long run, what it costs, and how to find errors that nobody reports.

M is the mean time between failures of the whole run, C what a checkpoint costs, R what
a restart costs, tau the time between two checkpoints.  After a failure, a run loses R
and what it has done since the last checkpoint, tau / 2 on average:

    tau short    much time goes into checkpoints:  C / tau of all time
    tau long     much work is lost:                tau / 2 M of all time

Young 1974 balances the two; Daly 2006 adds what happens if M is not long.
"""

import heapq
import math
import random
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ..launch.nodes import nodes
from .saving import load, save

__all__ = ["Goodput", "goodput", "interval", "load", "nodes", "save"]
DAY = 86400.0  # seconds
# Grattafiori et al. 2024 (Llama 3), table 5: 419 unexpected interruptions in
# 54 days on 16,384 GPUs.
GPU_LIFE = 54 * DAY * 16384 / 419  # seconds between two failures of one GPU


def interval(seconds_between_failures, checkpoint_seconds, order="young"):
    """Return the best seconds of work between two checkpoints.

    order    "young" for sqrt(2 M C), Young 1974, or "daly" for the estimate
             of higher order, Daly 2006, equation 37
    """
    M, C = seconds_between_failures, checkpoint_seconds
    if not (M > 0 and C > 0 and math.isfinite(M)):
        text = "Both times must be above 0 seconds"
        raise ValueError(f"{text}, not {M!r} and {C!r}.")
    if order == "young":
        return math.sqrt(2 * M * C)
    if order == "daly":
        if C >= 2 * M:
            return M
        x = math.sqrt(C / (2 * M))
        return math.sqrt(2 * M * C) * (1 + x / 3 + x * x / 9) - C
    raise ValueError(f'order must be "young" or "daly", not {order!r}.')


@dataclass(frozen=True)
class Goodput:
    """What share of the time a run makes progress, by formula and simulated.

    formula     what `daly` says
    simulated   share of the simulated days whose work was kept
    lost        {where: share of the simulated days}
    """

    ranks: int
    seconds_between_failures: float
    interval: float
    formula: float
    simulated: float
    failures: int
    lost: dict = field(default_factory=dict)

    def __repr__(self):
        lost = [f"{name} {part:.1%}" for name, part in self.lost.items()]
        return (
            f"Goodput of {self.ranks:,} ranks: {self.simulated:.1%} simulated"
            f", {self.formula:.1%} by formula; {self.failures} failures; "
            f"lost: {', '.join(lost)}"
        )


def goodput(
    ranks, days=54.0, checkpoint=30.0, restart=600.0, every=None,
    background=0.0, spares=None, repair=DAY, gpu_life=GPU_LIFE, seed=0,
):  # fmt: skip
    """Return the Goodput of a run of so many days on so many GPUs.

    checkpoint    seconds in which training stops for a checkpoint
    background    seconds for which it is then written beside the training
    restart       seconds from a failure until training goes on
    every         seconds of work between checkpoints; by default Young's
    spares        nodes in reserve; None for as many as needed.  A node
                  that failed comes back after `repair` seconds
    """
    M = gpu_life / ranks
    tau = every or interval(M, checkpoint)
    run = _Simulation(tau, checkpoint, background, restart, spares, repair)
    run.days(days * DAY, M, random.Random(seed))
    shares = {name: lost / (days * DAY) for name, lost in run.lost.items()}
    kept, formula = 1 - sum(shares.values()), daly(tau, M, checkpoint, restart)
    return Goodput(ranks, M, tau, formula, kept, run.failures, shares)


def daly(tau, M, C, R=0.0):
    """Return the share of the time that is work which is kept.

    Failures come at random, also during a checkpoint and a restart.
    """
    if max(tau + C, R) > 500 * M:  # it never gets so far
        return 0.0
    return tau / (M * math.exp(R / M) * math.expm1((tau + C) / M))


# From one failure to the next; W is work, C a checkpoint, and after a restart
# the work since the last complete checkpoint is done again:
#
#     restart | W W W W C W W W W C W W x
#             |--- kept ---------|-lost-|
class _Simulation:
    """A run that fails at random, second by second of its clock."""

    def __init__(self, tau, checkpoint, background, restart, spares, repair):
        self.tau, self.checkpoint = tau, checkpoint
        self.background, self.restart = background, restart
        self.spares, self.repair = spares, repair
        self.failures, self.broken = 0, []  # when broken nodes come back
        names = ["checkpoints", "work again", "restarts"]
        names += ["waiting for nodes"] * (spares is not None)
        self.lost = dict.fromkeys(names, 0.0)

    def days(self, seconds, M, chance):
        """Simulate so many seconds, with a failure every M on average."""
        now, ready = 0.0, 0.0  # `ready`: when training goes on
        while now < seconds:
            fails = now + chance.expovariate(1 / M)
            end = min(fails, seconds)
            if end <= ready:  # it failed while it was starting
                self.lost["restarts"] += end - now
            else:
                self.lost["restarts"] += ready - now
                self.train(end - ready, fails < seconds)
            now = end
            if fails < seconds:
                self.failures += 1
                now, ready = self.recover(now, seconds)

    def train(self, seconds, fails):
        """Work until the end or a failure, which loses what is not saved."""
        cycle = self.tau + self.checkpoint
        whole, rest = divmod(seconds, cycle)
        self.lost["checkpoints"] += whole * self.checkpoint
        self.lost["checkpoints"] += max(rest - self.tau, 0.0)
        if fails:
            unsaved = min(rest, self.tau)
            if whole and rest < self.background:  # not written yet
                unsaved += self.tau
            self.lost["work again"] += unsaved

    def recover(self, now, end):
        """Return (when the restart begins, when training goes on)."""
        begin = now
        if self.spares is not None:
            while self.broken and self.broken[0] <= now:
                heapq.heappop(self.broken)
            heapq.heappush(self.broken, now + self.repair)
            if len(self.broken) > self.spares:
                begin = min(heapq.heappop(self.broken), end)
                self.lost["waiting for nodes"] += begin - now
        return begin, begin + self.restart


# Silent errors: nothing fails, and the results are wrong.


def checksum(tensors):
    """Return the sum of the 32-bit words that some tensors consist of.

    One flipped bit always changes it.  Two flips may cancel each other.
    """
    total = 0
    for x in tensors:
        data = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = torch.nn.functional.pad(data, (0, -len(data) % 4))
        words = data.view(torch.int32)
        total += int(words.sum(dtype=torch.int64))
    return total


def odd_ranks(tensors, group=None):
    """Return the ranks of a group whose tensors differ from most ranks'.

    All ranks call it with what must be equal on them.  Each sends one number.
    Of two ranks that differ nobody can say which is right: it returns both.
    """
    n = dist.get_world_size(group)
    mine = torch.tensor(checksum(tensors), dtype=torch.int64)
    sums = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(sums, mine, group=group)
    sums = [x.item() for x in sums]
    counts = [sums.count(x) for x in sums]
    most = max(counts)
    if 2 * most <= n and n > 1:
        return list(range(n))
    return [r for r in range(n) if counts[r] < most]
