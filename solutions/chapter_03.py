"""What the exercises of chapter 03 share: devices that are played, no ranks.

A tensor knows on which device it is, and refuses to meet a tensor of another one, as on
real GPUs.  What goes from one device to another goes by `Wire.send`, which counts it.
"""

from d2lpar.checks.judging import Requirement


def wire(attempt):
    """The wire is the last argument."""
    return attempt.args[0][-1]


def deaf(attempt):
    """Devices that have received less than they need, by whatever algorithm."""
    needs = attempt.case.facts["needs"]
    heard = wire(attempt).elements(len(needs), end=1)
    return sum(a < b for a, b in zip(heard, needs, strict=True))


HEARD = Requirement(
    "devices that received too little", deaf, lambda case: 0, instead=deaf
)
