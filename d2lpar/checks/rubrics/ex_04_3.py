"""04.3 Name the cycle.

The truth is what the simulator reports when it runs the programs, so it cannot drift.
"""

import torch
import torch.distributed as dist

from ..equality import NO_NUMBER
from ..judging import Case, Exercise, on_ranks
from ..signs import hangs, waiting, wrong


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


def cases(rng):
    """A case per program; nothing is drawn."""
    for letter, program in PROGRAMS.items():
        facts = {"letter": letter, "truth": knots(program)}
        yield Case(1, f"program {letter}", [()], [Secret()], facts)


def knots(program):
    """The pairs (who, waits for whom) in cycles; None where the program ends."""
    attempt = on_ranks(program, Case(4, "", [()] * 4))
    if not hangs(attempt):
        return None
    pairs = {(who, whom) for who, _, whom in waiting(attempt)}
    for _ in range(4):  # nobody waits for one who is behind a cycle
        pairs = {(a, b) for a, b in pairs if a in {whom for _, whom in pairs}}
    return pairs


class Secret:
    """Stands in a report where the answer would be given away."""

    def __repr__(self):
        return "what the simulator reports"


def answer(attempt, rank):
    """What the dictionary says of this program."""
    letter, answers = attempt.case.facts["letter"], attempt.values[rank]
    if isinstance(answers, dict) and letter in answers:
        return answers[letter]
    return f"no entry for {letter!r}"


def pairs(answer):
    """The pairs as a set, None for None, False where the answer has another form."""
    try:
        return None if answer is None else {(int(a), int(b)) for a, b in answer}
    except NO_NUMBER:
        return False


def stuck(pairs):
    """The ranks that wait."""
    return {who for who, _ in pairs}


def says(question):
    """`question(named, truth)` about a wrong answer."""
    return lambda a: wrong(a) and question(pairs(a.came[0]), a.case.facts["truth"])


exercise = Exercise(
    "04.3",
    cases,
    mistakes={
        "form": says(
            lambda named, truth: named is False or (truth is None and not named)
        ),
        "one by one": says(lambda named, truth: truth is None),
        "buffered": says(lambda named, truth: not named),
        "swapped": says(lambda named, truth: {(b, a) for a, b in named} == truth),
        "queue": says(lambda named, truth: named > truth),
        "part": says(lambda named, truth: named < truth),
        "later call": says(lambda named, truth: stuck(named - truth) & stuck(truth)),
    },
    outcome=answer,
    agrees=lambda came, wanted, case: pairs(came) == case.facts["truth"],
)
