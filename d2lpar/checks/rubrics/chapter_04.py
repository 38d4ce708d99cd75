"""What exercises of chapter 04 share."""

from ...report.engine import UNBATCHED
from .. import requirements as rows
from ..judging import Requirement

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
WAITED = rows.all_waited()


def unbatched(attempt):
    """How many pairs of ranks started opposite messages one by one."""
    end = UNBATCHED.partition("}")[2].rpartition("}")[2]
    return sum(sentence.endswith(end) for sentence in attempt.run.warnings)


BATCHED = Requirement(
    "pairs of ranks with opposite messages and no batch", unbatched, lambda case: 0
)
