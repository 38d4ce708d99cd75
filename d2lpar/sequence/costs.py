"""What a split sequence costs: bytes, messages, work and memory, in closed form.

    way        forward                      backward                        limit of n
    ring       n-1 pieces of k and v        as many, and of gradients       none
    gather     the same                     the same                        none
    ulysses    (n-1)/n of q, k, v and y     the same                        heads

With equal pieces of T/n tokens, a ring sends 6 (n-1)/n G T d numbers of a row and
Ulysses 4 (n-1)/n (H + G) T/n d: G decides up to a few ranks, n decides beyond.
Counted truth: `bytes_sent` and `messages` of a `Run`, and its `peak_memory`.
"""

from dataclasses import replace

from ..planning.memory import stages
from ..planning.model import Plan
from .order import positions

WAYS = "ring", "gather", "ulysses"


def bytes_sent(way, lengths, r, N, H, G, d, itemsize=4):
    """Return the bytes that rank r sends, (forward, backward).

    lengths    tokens of each rank

    On a ring, sums of gradients travel with 4 bytes for a number at least.
    """
    n, T, mine = len(lengths), sum(lengths), lengths[r]
    if way == "ulysses":
        qkv, y = (H + 2 * max(G, n)) // n, H // n
        away, home = (n - 1) * mine, T - mine  # tokens of own heads; of own tokens
        both = qkv * away + y * home, qkv * home + y * away
    else:
        keys = 2 * G * (T - lengths[(r + 1) % n])  # all pieces but the next rank's
        sums = 2 * G * (T - mine) * max(4, itemsize) // itemsize
        both = keys, keys + sums
    forward, backward = (N * d * itemsize * tokens for tokens in both)
    return forward + 8 * (n - 1), backward  # 8 bytes for a length


def work(T, n, order):
    """Return, for each rank, the pairs of a query and a key that it may see."""
    return [int((positions(T, n, r, order) + 1).sum()) for r in range(n)]


def plan_of(method, n, heads, zero=3, recompute="full"):
    """Return the Plan with which n GPUs share one sequence, or n sequences.

    method    "one device": each GPU has a sequence of its own
              "norms": heads and norms are split, by at most `heads` ranks
              "ring", "gather": every GPU has T/n tokens
              "ulysses": T/n tokens, n at most `heads`

    Whatever is left over is data parallel.  Weights, gradients and the optimizer
    are in shards on all GPUs, except those that the heads split already.
    """
    usual = Plan(zero=zero, recompute=recompute, flash=True)
    most = min(n, heads)
    if method == "norms":
        return replace(usual, tensor=most, data=n // most, sequence_parallel=True)
    cut = {"one device": 1, "ulysses": most, "ring": n, "gather": n}
    if method not in cut:
        raise ValueError(f"method must be norms or one of {tuple(cut)}: {method!r}.")
    return replace(usual, context=cut[method], data=n // cut[method])


def held(model, method, n, T, loss_tile=None, recompute="full"):
    """Return the bytes that a GPU holds at its peak, with sequences of T tokens.

    loss_tile    tokens whose scores of all words exist at once; None: all
    """
    plan = plan_of(method, n, model.heads, recompute=recompute)
    whole = replace(model, sequence=T)
    total = sum(stages(whole, plan, plan.data, flash=True)[0])
    own = T // plan.context
    total += extra(model, method, T, own)
    if loss_tile is not None:
        total -= 4 * model.vocabulary * max(0, own - loss_tile) // plan.tensor
    return total


def extra(model, method, T, own):
    """Return the bytes of a block's attention that only a split sequence needs.

    Keys and values have 2 bytes for a number, and sums of gradients have 4.
    """
    if method == "ring":  # a piece here and one coming; a sum more, own ones at home
        return own * model.kv * (2 * 2 * 2 + 3 * 2 * 4)
    if method == "gather":  # keys and values of all tokens, and their gradients
        return T * model.kv * (2 * 2 + 2 * 4)
    if method == "ulysses":  # what travels, beside what has come
        return own * 2 * (2 * model.q + 2 * model.kv)
    return 0


def longest(model, method, n, memory, loss_tile=None, recompute="full"):
    """Return the longest sequence that fits into `memory` bytes: whole 1024 a cut."""
    plan = plan_of(method, n, model.heads)
    step = 1024 * plan.context * plan.tensor
    fits = lambda k: held(model, method, n, k * step, loss_tile, recompute) <= memory
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * step
