"""What each pipeline rank of a plan holds: weights, gradients, optimizer, activations.

Bytes that a block keeps for its backward pass, per token, with items of i bytes.  What
stands under `whole` every tensor rank has; with sequence_parallel they share it, too:

    whole     two norms, input and output     4 i h       masks of dropout   2 h
    split     queries, keys, values, result   i (2 q + 2 kv)
              of the MLP: both sides of its function  2 i f, gated 3 i f
    scores    of all heads, s for each token  i a s       with dropout  (2 i + 1) a s

Without gates, h = q = kv and f = 4 h, this is s b h (10 + 24/t + 5 a s / (h t)) for two
bytes: Korthikanti et al. 2022, section 4.  Counted truth: `footprint.kept` of a block,
and the `peak_memory` of a `Run`.
"""

from typing import NamedTuple

from ..shared.footprint import memory


class Held(NamedTuple):
    """Bytes that a rank of one pipeline stage holds at its peak."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int


def blocks_of_ranks(layers, p):
    """Return how many blocks each pipeline rank has.

    Ranks between the ends get one more first: the ends have the tables.
    """
    each, more = divmod(layers, p)
    order = [*range(1, p - 1), 0, p - 1][:more]
    return [each + (r in order) for r in range(p)]


def numbers(model, plan, rank):
    """Return how many parameters each GPU of this pipeline rank has."""
    t, p = plan.tensor, plan.pipeline
    block = -(-model.split // t) + model.whole
    count = blocks_of_ranks(model.layers, p)[rank] * block
    table = -(-model.table // t)
    if rank == 0:
        count += table + model.positions * model.sequence * model.hidden
    if rank == p - 1:
        count += (table if p > 1 or not model.tied else 0) + model.hidden
        count += model.biased * model.hidden
    return count


def block_bytes(model, plan, itemsize=2, dropout=None, scores=True):
    """Return the bytes that a block keeps of one micro-batch."""
    dropout = model.biased if dropout is None else dropout
    h, t, i = model.hidden, plan.tensor, itemsize
    norms = 1 if model.parallel else 2
    whole = 2 * norms * i * h + 2 * dropout * h
    wide = (3 if model.gated else 2) * model.f
    split = i * (2 * model.q + 2 * model.kv + wide)
    if scores:
        split += ((2 * i + 1) if dropout else i) * model.heads * model.sequence
    return tokens(model, plan) * (whole / _cut(plan) + split / t)


def tokens(model, plan):
    """Return the tokens of a micro-batch that a rank works on."""
    return plan.micro_batch * model.sequence // plan.context


def in_flight(plan, rank, m):
    """Return the micro-batches that a pipeline rank holds at once.

    With interleave v it counts stages, in parts of a rank's v: the first rank
    holds p + (p-1)/v.  Narayanan et al. 2021, 2.2; Korthikanti 2022, 4.2.3.
    """
    p, v = plan.pipeline, plan.interleave
    if v == 1:
        return min(m, p - rank)
    return min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v


def activations(model, plan, rank, m, flash=False, itemsize=2, dropout=None):
    """Return the bytes of activations that a GPU holds at its peak."""
    written = plan.recompute == "none" and not flash
    how = model, plan, itemsize, dropout
    kept = whole = block_bytes(*how, scores=written)
    again = 0.0
    if plan.recompute == "full":
        kept = tokens(model, plan) * itemsize * model.hidden / _cut(plan)
        again = block_bytes(*how, scores=not flash)
    elif plan.recompute == "selective" and not flash:
        again = block_bytes(*how) - whole
    held = blocks_of_ranks(model.layers, plan.pipeline)[rank]
    total = in_flight(plan, rank, m) * held * kept + again
    if rank == plan.pipeline - 1:  # last norm; scores of words in float32
        wide = 2 * itemsize * model.hidden / _cut(plan)
        words = 4 * model.vocabulary / plan.tensor
        total += tokens(model, plan) * (wide + words)
    return int(total)


def stages(model, plan, batch, flash=False):
    """Return what the GPUs of each pipeline rank hold, in mixed precision.

    A weight and its gradient take 2 bytes each, Adam 12 (ZeRO 2020).
    zero=3 gathers two blocks' weights at once, and one block's gradients.
    """
    m, cut = plan.micro_batches(batch), plan.data * plan.context
    found = []
    for rank in range(plan.pipeline):
        count = numbers(model, plan, rank)
        held = memory([count], cut, plan.zero, 2, 2, 12)
        block = -(-model.split // plan.tensor) + model.whole
        if plan.zero == 3:
            held = held._replace(parameters=held.parameters + 4 * block)
        if plan.zero >= 2:
            held = held._replace(gradients=held.gradients + 2 * block)
        kept = activations(model, plan, rank, m, flash)
        found.append(Held(*held, kept))
    return found


def _cut(plan):
    return plan.tensor if plan.sequence_parallel else 1
