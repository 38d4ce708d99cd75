"""Mixture of experts with the experts on different ranks: the tokens travel.

`layer` routes, sends and computes; `nodes` sends each token once per node.
"""

from .layer import (
    Exchange,
    ExpertParallel,
    MoE,
    Trip,
    balance_loss,
    check_logits,
    check_sizes,
    check_tokens,
    combine,
    count_tokens,
    dispatch,
    drop,
    gathered,
    nudge,
    plan,
    route,
    start,
)
