"""Predict what a mesh sends and holds, from the sizes of a GPT.

Bytes are those of all ranks together, with collectives that send the least: an
all-reduce of S bytes among n ranks sends 2(n-1) S.  N rows of the whole batch, T tokens
in a row.  Counted truth: `grid.bytes_per_axis` of a `Run`, and its `peak_memory`.
"""

from .gpt_parts import blocks_of


def bytes_per_step(config, mesh, N, T, itemsize=4):
    """Return {axis: bytes that a step sends along it}, without clipping.

    For the schedules with one stage per rank, zero=0 and no recomputation.
    """
    d, p, t = (mesh.sizes[axis] for axis in ("data", "pipeline", "tensor"))
    row = T * config.D * itemsize  # bytes of a row between two blocks
    scores = 3 * T * itemsize  # of a row: maximum, sum and target's score
    sums = (4 * config.depth + 2) * row + scores  # of a row: blocks, tables
    tensor = 2 * (t - 1) * N * sums
    table = config.vocabulary * config.D * itemsize
    pipeline = (p - 1) * t * 2 * N * row + (2 * d * table if p > 1 else 0)
    own = [numbers(config, mesh, stage) for stage in range(p)]
    flags = [tensors(config, mesh, stage) for stage in range(p)]
    data = 2 * (d - 1) * t * (sum(own) + sum(flags)) * itemsize
    loss = 8  # bytes, summed over both of these axes
    pipeline += 2 * (p - 1) * d * t * loss
    data += 2 * (d - 1) * p * t * loss
    return {"data": data, "pipeline": pipeline, "tensor": tensor}


def numbers(config, mesh, stage):
    """Return how many parameters a rank of this stage has."""
    D, t, p = config.D, mesh.sizes["tensor"], mesh.sizes["pipeline"]
    split = 12 * D * D + 7 * D  # qkv, out, both of the MLP; their split biases
    whole = 6 * D  # two norms, the biases of out and of the second of the MLP
    count = len(blocks_of(config.depth, stage, p)) * (split // t + whole)
    if stage in (0, p - 1):
        count += config.vocabulary * D // t
    if stage == 0:
        count += config.context * D
    return count + (2 * D if stage == p - 1 else 0)


def tensors(config, mesh, stage):
    """Return how many tensors these parameters are."""
    p = mesh.sizes["pipeline"]
    ends = 2 * (stage == 0) + 2 * (stage == p - 1) + (stage == p - 1 > 0)
    return 12 * len(blocks_of(config.depth, stage, p)) + ends
