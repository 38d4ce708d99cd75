"""A different split for every layer: one weird trick, halos, and the cheapest splits.

`weird_trick` splits convolutions by pictures and dense layers by weights, `domain` cuts
each picture into rows, `split_choice` finds the cheapest split of every layer.
"""

from .domain import DomainConv2d, halo_exchange
from .split_choice import best_splits
from .weird_trick import (
    EagerTrick,
    WeirdTrick,
    all_rows,
    check_scheme,
    passes,
    split_dense,
    without_empty,
)
