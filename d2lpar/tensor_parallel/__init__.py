"""Tensor parallelism: split the weights of a layer, and let all ranks compute it.

`products` splits linear layers, `attention` heads, `vocabulary` the table of words and
the loss; `trips` sends tensors there and back, with gradients.
"""

from .products import (
    Add,
    ColumnParallel,
    Enter,
    Join,
    Part,
    RowParallel,
    add_bias,
    own_parameter,
    own_part,
    parallel_mlp,
    parts_of,
    product_of,
    ring_columns,
)
