"""What exercises of chapter 04 share."""

from d2lpar.checks.judging import Requirement
from d2lpar.report.engine import UNBATCHED


def unbatched(attempt):
    """How many pairs of ranks started opposite messages one by one."""
    end = UNBATCHED.partition("}")[2].rpartition("}")[2]
    return sum(sentence.endswith(end) for sentence in attempt.run.warnings)


BATCHED = Requirement(
    "pairs of ranks with opposite messages and no batch", unbatched, lambda case: 0
)
NO_BATCH = """
    Two ranks send to each other by `isend` and `irecv` one by one, which may hang on
    GPUs.
    Hint: NCCL runs the messages of two ranks in the order of their calls. `exchange`
    and `batch_isend_irecv` hand over both at once.
"""
