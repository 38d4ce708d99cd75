"""What exercise 04.3 asks for: who waits for whom in four programs.

The truth is what the simulator reports when it runs them, so it cannot drift.
"""

import re

import torch
import torch.distributed as dist

from ...errors import DeadlockError
from ...world.launch import run
from ..judging import Case, Exercise, Mistake
from ..signs import wrong

N = 4  # ranks


def program_a():
    r = dist.get_rank()
    x, y = torch.ones(1), torch.empty(1)
    dist.send(x, r ^ 1)  # the partner: 0 and 1, 2 and 3
    dist.recv(y, r ^ 1)


def program_b():
    r = dist.get_rank()
    x, y = torch.ones(1), torch.empty(1)
    dist.recv(y, [1, 2, 1, 0][r])
    for dst in [[3], [2, 0], [1], []][r]:
        dist.send(x, dst)


def program_c():
    r = dist.get_rank()
    x, y = torch.ones(1), torch.empty(1)
    if r == 0:
        dist.send(x, 3)
        dist.recv(y, 1)
    elif r == 1:
        dist.send(x, 0)
        dist.send(x, 3)
        dist.recv(y, 2)
    elif r == 2:
        dist.send(x, 1)
    else:
        dist.recv(y, 1)
        dist.recv(y, 0)


def program_d():
    n, r = dist.get_world_size(), dist.get_rank()
    x, y = torch.ones(1), torch.empty(1)
    if r % 2 == 0:
        coming = dist.irecv(y, (r - 1) % n)
        dist.send(x, (r + 1) % n)
        coming.wait()
    else:
        dist.send(x, (r + 1) % n)
        dist.recv(y, (r - 1) % n)


PROGRAMS = {"A": program_a, "B": program_b, "C": program_c, "D": program_d}


def waits(program):
    """{who: waits for whom} when nobody can go on; None where the program ends."""
    try:
        run(program, world_size=N, backend="sim", device="cpu")
    except DeadlockError as error:
        lines = re.findall(r"rank (\d+): (?:send|recv)\(\w+=(\d+)\)", str(error))
        return {int(who): int(whom) for who, whom in lines}
    return None


def knots(waiting):
    """The pairs of `waiting` that lie in a cycle; None stays None."""
    if waiting is None:
        return None
    return {(who, whom) for who, whom in waiting.items() if _returns(who, waiting)}


def _returns(start, waiting):
    """Does the way from `start` come back to it?"""
    rank = waiting[start]
    for _ in waiting:
        if rank == start:
            return True
        rank = waiting.get(rank)
    return False


# The exercise


def cycle_cases(rng):
    """A case per program; nothing is drawn."""
    for letter, program in PROGRAMS.items():
        yield Case(
            1,
            f"program {letter}",
            inputs=[()],
            expected=[_Secret()],
            facts={"letter": letter, "truth": knots(waits(program))},
        )


def _answer(attempt, rank):
    """What the dictionary says of this program."""
    letter, answer = attempt.case.facts["letter"], attempt.values[rank]
    if isinstance(answer, dict) and letter in answer:
        return answer[letter]
    return f"no entry for {letter!r}"


def _pairs(answer):
    """The pairs as a set, None for None; raises where it has another form."""
    return None if answer is None else {(int(a), int(b)) for a, b in answer}


def _well_formed(answer):
    try:
        _pairs(answer)
    except (TypeError, ValueError):
        return False
    return True


def _names_the_cycle(came, expected, case):
    return _well_formed(came) and _pairs(came) == case.facts["truth"]


def _names(question):
    """`question(named, truth)` about a wrong answer of the right form."""

    def ask(attempt):
        if not wrong(attempt) or not _well_formed(attempt.came[0]):
            return False
        return bool(question(_pairs(attempt.came[0]), attempt.case.facts["truth"]))

    return ask


def _ill_formed(attempt):
    return wrong(attempt) and not _well_formed(attempt.came[0])


def _turned(pairs):
    return {(whom, who) for who, whom in pairs}


class _Secret:
    """Stands in a report where the answer would be given away."""

    def __repr__(self):
        return "what the simulator reports"


cycles = Exercise(
    "04.3",
    "Name the cycle",
    cycle_cases,
    [],
    [
        Mistake(
            "form",
            _ill_formed,
            "The answer is a dictionary: a letter and its list of pairs, or None.",
            'Such as {"A": [(0, 3), (3, 0)], "B": None, ...}, with two ranks a pair.',
        ),
        Mistake(
            "one by one",
            _names(lambda named, truth: truth is None),
            "This program ends; nobody is stuck.",
            "`irecv` comes back at once, and what it waits for can be sent from then "
            "on.",
        ),
        Mistake(
            "buffered",
            _names(lambda named, truth: not named),
            "This program does not end. Nothing is kept on the way: a send is over "
            "when its receive is.",
            "Write down the first call of each rank, and whom it needs for it.",
        ),
        Mistake(
            "swapped",
            _names(lambda named, truth: named == _turned(truth)),
            "Who waits and for whom have changed places.",
            "A rank in `recv` waits for its sender. A rank in `send` waits for its "
            "receiver.",
        ),
        Mistake(
            "queue",
            _names(lambda named, truth: named > truth),
            "It names ranks that only wait behind a cycle.",
            "Follow the arrows from a rank. Only if you come back to it, it is in a "
            "cycle.",
        ),
        Mistake(
            "part",
            _names(lambda named, truth: named < truth),
            "What it names is right, but it is not all.",
            "A cycle has as many pairs as ranks, and there may be two cycles.",
        ),
    ],
    outcome=_answer,
    agrees=_names_the_cycle,
)
