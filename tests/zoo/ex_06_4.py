"""06.4 Which one, when: fastest(S, n, alpha, beta)."""

import math

from zoo import right, wrong


def times(S, n, alpha, beta, log=None):
    """Seconds of all six; `log` gives the rounds of the doublings, if not exact."""
    whole, chunk = alpha + beta * S, alpha + beta * S / n
    k = n.bit_length() - 1
    p, folds = 2**k, 2 * (n & (n - 1) > 0)
    levels = math.ceil(math.log2(n))
    if log is not None:
        k, p, folds = log(n), n, 0
    return {
        "naive": 2 * (n - 1) * whole,
        "tree": 2 * levels * whole,
        "direct": (n - 1) * whole,
        "ring": 2 * (n - 1) * chunk,
        "recursive doubling": (k + folds) * whole,
        "halving-doubling": 2 * k * alpha + 2 * (p - 1) / p * beta * S + folds * whole,
    }


def best(seconds):
    name = min(seconds, key=seconds.get)
    return name, seconds[name]


@right
def round_by_round(S, n, alpha, beta):
    """The messages of each round in a list, and the sum over them."""
    p = 1 << (n.bit_length() - 1)
    doublings = range(p.bit_length() - 1)
    fold = [S] if n > p else []
    halves = [S / 2 ** (k + 1) for k in doublings]
    sizes = {
        "ring": [S / n] * (2 * n - 2),
        "halving-doubling": fold + halves + halves[::-1] + fold,
        "recursive doubling": fold + [S for _ in doublings] + fold,
        "direct": [S] * (n - 1),
    }
    seconds = {w: sum(alpha + beta * b for b in sizes[w]) for w in sizes}
    return min(seconds.items(), key=lambda item: item[1])


@right
def ties_to_the_last(S, n, alpha, beta):
    seconds = times(S, n, alpha, beta)
    name = min(reversed(seconds), key=seconds.get)
    return [name, seconds[name] * 1.02]


@wrong("no alpha")
def bytes_only(S, n, alpha, beta):
    return best(times(S, n, 0, beta))


@wrong("no beta")
def rounds_only(S, n, alpha, beta):
    return best(times(S, n, alpha, 0))


@wrong("bits")
def bits_for_bytes(S, n, alpha, beta):
    return best(times(8 * S, n, alpha, beta))


@wrong("fold")
def log2_rounded_up(S, n, alpha, beta):
    return best(times(S, n, alpha, beta, log=lambda n: math.ceil(math.log2(n))))


@wrong("fold")
def log2_not_rounded(S, n, alpha, beta):
    return best(times(S, n, alpha, beta, log=math.log2))


@wrong("large")
def bytes_of_all_ranks(S, n, alpha, beta):
    """The ring's 2(n-1) S of all ranks together, as if one rank sent them."""
    seconds = times(S, n, alpha, beta)
    seconds["ring"] = 2 * (n - 1) * (alpha + beta * S)
    seconds["halving-doubling"] = 2 * math.log2(n) * alpha + 2 * (n - 1) * beta * S
    return best(seconds)


@wrong("small")
def always_the_ring(S, n, alpha, beta):
    return "ring", times(S, n, alpha, beta)["ring"]


@wrong("small")
def one_threshold(S, n, alpha, beta):
    """The right seconds of a choice that looks at the size only."""
    seconds = times(S, n, alpha, beta)
    name = "ring" if S > 10_000 else "recursive doubling"
    return name, seconds[name]


@wrong("large")
def forgets_halving_doubling(S, n, alpha, beta):
    """A threshold on alpha over beta S, and no chunks below it."""
    seconds = times(S, n, alpha, beta)
    del seconds["ring"], seconds["halving-doubling"]
    return best(seconds)


@wrong("seconds")
def half_the_rounds(S, n, alpha, beta):
    """Counts the ring's first half only, but only in the answer."""
    name, seconds = best(times(S, n, alpha, beta))
    return name, seconds / 2


@wrong("no pair")
def the_name_alone(S, n, alpha, beta):
    return best(times(S, n, alpha, beta))[0]


@wrong("no pair")
def another_name(S, n, alpha, beta):
    name, seconds = best(times(S, n, alpha, beta))
    return f"{name}_allreduce", seconds


@wrong("seconds")
def one_round_at_least(S, n, alpha, beta):
    """One rank alone has nothing to send."""
    name, seconds = best(times(S, n, alpha, beta))
    return name, max(seconds, alpha)


@wrong("fold")
def ranks_beyond_the_power_of_two_are_free(S, n, alpha, beta):
    return best(times(S, n, alpha, beta, log=lambda n: n.bit_length() - 1))


@wrong("chunks")
def the_ring_wherever_chunks_pay(S, n, alpha, beta):
    seconds = times(S, n, alpha, beta)
    name, least = best(seconds)
    return ("ring", seconds["ring"]) if name == "halving-doubling" else (name, least)


@wrong("seconds")
def halving_doubling_keeps_nothing(S, n, alpha, beta):
    """Every rank sends S bytes on each way, as if it kept no part of them."""
    seconds = times(S, n, alpha, beta)
    seconds["halving-doubling"] += 2 * beta * S / 2 ** (n.bit_length() - 1)
    return best(seconds)
