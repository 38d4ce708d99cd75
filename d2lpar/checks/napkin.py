"""Exercises on a napkin: estimates from given numbers, which forget no term."""

from .equality import near
from .exercise import Exercise
from .judging import Case

FORGOTTEN = {
    "backward": """It counts the forward pass alone. Hint: A parameter takes 2 FLOPs per
        token forward. How many products has the backward pass for each of these?""",
    "half": """It counts one half of an all-reduce. Hint: A ring first scatters the sum,
        and then it gathers it. A rank sends in both halves.""",
    "own part": """It lets a rank send the whole tensor. Hint: How many of the n pieces
        does a rank send in each half of a ring? One rank alone sends nothing.""",
    "width": """It takes another number of bytes for each number. Hint: How many bytes
        has a number of this type?""",
    "binary": """It counts a giga as 2^30. Hint: Rates are decimal: 1 GB/s is 10^9 bytes
        a second.""",
    "percent": """It returns 100 times as much. Hint: A share lies between 0 and 1.""",
    "other part": """It returns the other part of the whole. Hint: Which of the times is
        asked for, and which is above the fraction bar?""",
    "by the rest": """It divides one part by the other, and not by the whole. Hint: A
        share of the whole is asked for. How much is the whole?""",
    "upside down": """It has a ratio upside down. Hint: Is the result larger or smaller
        if one of the two numbers is larger?""",
}
CLOSE = 0.001  # of a number: it may be rounded on the way
DRAWS = 6  # beside the two in which all numbers are the least and the most


class Napkin(Exercise):
    """An Exercise that asks for numbers, each right to a thousandth of it.

    draws    {argument: (least, most)}, drawn evenly in their logarithm; whole numbers
             where both ends are
    """

    def __init__(self, name, **draws):
        agrees = lambda came, wanted, case: near(came, wanted, CLOSE)
        super().__init__(name, processes=(), agrees=agrees)
        self.draws = draws

    def formula(self, truth):
        """Decorate the truth, a function of the same arguments."""

        @self.cases
        def cases(rng):
            for k in range(2 + DRAWS):
                given = {
                    name: _drawn(rng, k, *ends) for name, ends in self.draws.items()
                }
                text = ", ".join(f"{name} = {x:,.6g}" for name, x in given.items())
                yield Case(1, text, [tuple(given.values())], [truth(**given)], given)

        at = lambda name: lambda case: case.facts[name] == self.draws[name][0]
        self.boundaries(**{f"least_{name}": at(name) for name in self.draws})
        return truth

    def forgot(self, **edits):
        """Add mistakes of FORGOTTEN, each with the edit that makes it."""
        for name, edit in edits.items():
            name = name.replace("_", " ")
            self.slip(name, edit).says(FORGOTTEN[name])


def _drawn(rng, k, least, most):
    if k < 2:
        return (least, most)[k]
    number = least * (most / least) ** rng.random()
    return round(number) if isinstance(least, int) else float(f"{number:.3g}")
