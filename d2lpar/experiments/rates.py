"""Chapter 01: how fast a GPU multiplies, by type and by size, and how it copies."""

from functools import partial

import torch

from ..report.units import short_bytes
from .measuring import Case, experiment, half


@experiment(small={"n": 64})
def products_by_type(n=8192):
    """A product of two n x n matrices in each type that a GPU multiplies."""

    def prepare(dtype, multiply=torch.mm):
        x, w = torch.randn(2, n, n, dtype=dtype)
        return lambda: multiply(x, w)

    def seconds(cluster):  # TF32 has half of the 16-bit rate
        at_16_bits = cluster.compute_seconds(0, 2 * n**3, 0, "bfloat16")
        return 2 * at_16_bits + cluster.launch

    cases = {"float32": partial(prepare, torch.float32)}
    if half() == torch.bfloat16:  # a GPU of 2020 or later
        tf32 = partial(prepare, torch.float32, multiply_in_tf32)
        cases["TF32"] = Case(tf32, predicted=seconds, flops=2 * n**3)
        cases["bfloat16"] = partial(prepare, torch.bfloat16)
    return cases | {"float16": partial(prepare, torch.float16)}


def multiply_in_tf32(x, w):
    """Multiply float32 matrices whose numbers are rounded to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return x @ w
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@experiment(small={"edges": (8, 64)})
def products_by_size(edges=(256, 1024, 4096, 16384)):
    """A product of two n x n matrices of 16-bit numbers."""

    def prepare(n):
        x, w = torch.randn(2, n, n, dtype=half())
        return lambda: x @ w

    return {f"n = {n}": partial(prepare, n) for n in edges}


@experiment(small={"sizes": (10**3, 10**4)})
def copies_by_size(sizes=(10**5, 10**6, 10**7, 10**8, 10**9)):
    """A copy of S bytes within the GPU's memory: S are read and S written."""

    def prepare(S):
        x = torch.zeros(S, dtype=torch.uint8)
        return lambda: x.clone()

    cases = [Case(partial(prepare, S), moved=2 * S) for S in sizes]
    return dict(zip(map(short_bytes, sizes), cases, strict=True))
