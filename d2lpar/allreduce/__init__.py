"""All-reduce in many ways, and what each of them costs.

`algorithms` has them, `channels` two trees at once, `shared_memory` the one for
processes of one host, `half` sums of two-byte numbers, `fastest` the choice by `costs`.
"""

from .algorithms import (
    direct_allreduce,
    flat_view,
    halving_doubling_allreduce,
    hierarchical_allreduce,
    naive_allreduce,
    node_groups,
    recursive_doubling_allreduce,
    ring_allreduce,
    segmented_ring_allreduce,
    split_into_nodes,
    tree_allreduce,
)
