"""Sharded training: ZeRO-1, 2, 3, and activations that are computed again.

`zero` has the trainers, `checkpoint` recomputation.
"""

from .zero import (
    FSDP,
    Sharded,
    ZeRO1,
    ZeRO2,
    add_hooks,
    arrive,
    collect,
    gather,
    gather_all,
    parts,
    reduce,
    reduce_rest,
    settle,
    split_parameters,
    step_shards,
    watch,
)
