"""06.5 Be the checker: judge(allreduce)."""

import torch
import torch.distributed as dist

import d2lpar
from zoo import right, wrong


def attempt(allreduce, xs):
    """What the all-reduce returned on this rank, and its tensor afterwards."""
    x = xs[dist.get_rank()]
    return allreduce(x), x


def large(n, S, step=2**33 + 1):
    """Integers with many digits, other ones on each rank."""
    return [step * (torch.arange(S) * (r + 2) + r * r + 1) for r in range(n)]


def share(n, S):
    return 2 * (n - 1) * -(-S // n) * 8


def run(allreduce, xs):
    return d2lpar.run(attempt, allreduce, xs, world_size=len(xs), backend="sim")


def fair(allreduce, xs, bytes_too=True, none_too=True):
    """Does this call go as it should?"""
    try:
        result = run(allreduce, xs)
    except d2lpar.RankError:
        return False
    total, limit = sum(xs), share(len(xs), len(xs[0]))
    good = all(torch.equal(x, total) for _, x in result.results)
    good &= not none_too or all(back is None for back, _ in result.results)
    return good and (not bytes_too or max(result.bytes_sent) <= limit)


@right
def random_integers_until_one_fails(allreduce):
    sizes = [(n, S) for n in (3, 4, 5) for S in (1, 4, 10)]
    for n, S in sizes:
        xs = [torch.randint(2**30, 2**40, (S,)) for _ in range(n)]
        if not fair(allreduce, xs):
            return False
    return True


@right
def one_rank_to_five_in_floats_and_integers(allreduce):
    """float64 to ten digits; the traffic is added up by hand; errors are counted."""
    faults = 0
    for n, S in ((5, 3), (1, 2), (3, 10), (4, 9), (2, 1)):
        for dtype in (torch.float64, torch.int64):
            xs = [x.to(dtype) for x in large(n, S)]
            try:
                result = run(allreduce, xs)
            except Exception:
                return False
            for back, x in result.results:
                alike = torch.allclose(x.double(), sum(xs).double(), rtol=1e-10)
                exact = dtype == torch.float64 or bool((x == sum(xs)).all())
                faults += not (alike and exact and back is None)
            faults += bool((result.traffic.sum(axis=1) > share(n, S)).any())
    return faults == 0


@wrong("equal but wrong")
def all_ranks_agree(allreduce):
    for n, S in ((3, 1), (4, 3), (5, 10)):
        try:
            result = run(allreduce, large(n, S))
        except d2lpar.RankError:
            return False
        first = result.results[0][1]
        if not all(torch.equal(x, first) and b is None for b, x in result.results):
            return False
        if max(result.bytes_sent) > share(n, S):
            return False
    return True


@wrong("powers of two")
def two_four_and_eight(allreduce):
    return all(fair(allreduce, large(n, S)) for n in (2, 4, 8) for S in (1, 9))


@wrong("tail")
def sizes_that_divide(allreduce):
    return all(fair(allreduce, large(n, S)) for n, S in ((2, 2), (3, 6), (5, 10)))


@wrong("rank 0")
def looks_at_rank_0(allreduce):
    for n, S in ((3, 1), (5, 3), (4, 10)):
        xs = large(n, S)
        try:
            result = run(allreduce, xs)
        except d2lpar.RankError:
            return False
        back, x = result.results[0]
        if back is not None or not torch.equal(x, sum(xs)):
            return False
        if max(result.bytes_sent) > share(n, S):
            return False
    return True


@wrong("bytes")
def values_only(allreduce):
    return all(
        fair(allreduce, large(n, S), bytes_too=False)
        for n, S in ((3, 1), (5, 3), (4, 10))
    )


@wrong("bytes")
def two_ranks_for_the_bytes(allreduce):
    return all(
        fair(allreduce, large(n, S), bytes_too=n == 2)
        for n, S in ((2, 10), (3, 1), (5, 3))
    )


@wrong("integers")
def small_integers(allreduce):
    return all(
        fair(allreduce, large(n, S, step=1)) for n, S in ((3, 1), (5, 3), (4, 10))
    )


@wrong("few elements")
def many_elements(allreduce):
    return all(fair(allreduce, large(n, 11)) for n in (2, 3, 4, 5))


@wrong("own times n")
def ones(allreduce):
    """Ones on every rank; the other faults are found with other numbers, apart."""
    same = all(
        fair(allreduce, [torch.full((S,), 2**33 + 1)] * n)
        for n, S in ((3, 1), (5, 3), (4, 10))
    )
    if not same:
        return False
    result = run(allreduce, large(4, 8))
    head = result.results[0][1][0] == sum(large(4, 8))[0]
    return bool(head) or sum(result.bytes_sent) == 0


@wrong("rebinding")
def takes_what_is_returned(allreduce):
    for n, S in ((3, 1), (5, 3), (4, 10)):
        xs = large(n, S)
        try:
            result = run(allreduce, xs)
        except d2lpar.RankError:
            return False
        for back, x in result.results:
            if not torch.equal(x if back is None else back, sum(xs)):
                return False
        if max(result.bytes_sent) > share(n, S):
            return False
    return True


@wrong("average")
def up_to_a_factor(allreduce):
    """Compares directions, as one does with gradients."""
    for n, S in ((3, 2), (5, 3), (4, 10)):
        xs = large(n, S)
        try:
            result = run(allreduce, xs)
        except d2lpar.RankError:
            return False
        if max(result.bytes_sent) > share(n, S):
            return False
        for back, x in result.results:
            ratio = x.double() / sum(xs)
            if back is not None or (ratio - ratio[0]).abs().max() > 1e-6:
                return False
    return True


@wrong("uncaught")
def does_not_catch(allreduce):
    for n, S in ((2, 2), (3, 1), (5, 3), (4, 10)):
        xs = large(n, S)
        result = run(allreduce, xs)
        if not all(b is None and torch.equal(x, sum(xs)) for b, x in result.results):
            return False
        if max(result.bytes_sent) > share(n, S):
            return False
    return True


@wrong("deadlock")
def a_hang_is_no_fault(allreduce):
    for n, S in ((2, 1), (3, 1), (5, 3), (4, 10), (8, 3)):
        xs = large(n, S)
        try:
            result = run(allreduce, xs)
        except d2lpar.DeadlockError:
            continue
        except d2lpar.RankError:
            return False
        if not all(b is None and torch.equal(x, sum(xs)) for b, x in result.results):
            return False
        if max(result.bytes_sent) > share(n, S):
            return False
    return True


@wrong("too strict")
def exact_fractions(allreduce):
    """2(n-1)/n S bytes are not possible where n does not divide S."""
    for n, S in ((3, 1), (5, 3), (4, 10)):
        xs = large(n, S)
        if not fair(allreduce, xs):
            return False
        if max(run(allreduce, xs).bytes_sent) > 2 * (n - 1) / n * S * 8:
            return False
    return True


@wrong("too strict")
def floats_bit_by_bit(allreduce):
    """Sums of floats depend on their order."""
    torch.manual_seed(1)
    for n, S in ((3, 1), (5, 10), (4, 10)):
        if not fair(allreduce, [torch.randn(S) for _ in range(n)]):
            return False
    return all(fair(allreduce, large(n, S)) for n, S in ((3, 1), (5, 3)))


@wrong("too strict")
def nobody_is_right(allreduce):
    return False


@wrong("no verdict")
def says_nothing(allreduce):
    fair(allreduce, large(3, 4))


@wrong("raises")
def is_broken(allreduce):
    return fair(allreduce, large(3, 4)) and undefined  # noqa: F821


@wrong("error")
def never_ends(allreduce):
    while True:
        try:
            fair(allreduce, large(2, 2))
        except Exception:
            pass


@wrong("returns")
def does_not_look_at_what_comes_back(allreduce):
    calls = [large(n, S) for n in (2, 3, 4, 5) for S in (1, 4, 10)]
    return all(fair(allreduce, xs, none_too=False) for xs in calls)


def counted(allreduce, enough):
    """Judges by one call each, with bytes as `enough(bytes_sent, share)` says."""
    for n, S in ((3, 1), (5, 3), (4, 10)):
        xs = large(n, S)
        if not fair(allreduce, xs, bytes_too=False):
            return False
        if not enough(run(allreduce, xs).bytes_sent, share(n, S)):
            return False
    return True


@wrong("bytes")
def bytes_of_all_ranks_together(allreduce):
    return counted(allreduce, lambda sent, share: sum(sent) <= share * len(sent))


@wrong("bytes")
def bytes_of_rank_0(allreduce):
    return counted(allreduce, lambda sent, share: sent[0] <= share)


@wrong("too strict")
def less_than_what_is_allowed(allreduce):
    return counted(allreduce, lambda sent, limit: max(sent) < limit)


@wrong("bytes")
def two_n_chunks(allreduce):
    """Counts n chunks on each way, not n-1."""
    one = lambda n, limit: limit // (2 * (n - 1))
    return counted(
        allreduce, lambda sent, limit: max(sent) <= limit + 2 * one(len(sent), limit)
    )
