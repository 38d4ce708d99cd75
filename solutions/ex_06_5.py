"""06.5 Be the checker: judge(allreduce), with the all-reduces that are judged."""

import threading
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

import d2lpar
from d2lpar import allreduce as family
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Attempt, Case
from d2lpar.checks.signs import both, raises, wrong
from d2lpar.launch.limits import end_thread, time_limit
from d2lpar.messages import exchange
from d2lpar.report.errors import RankError
from d2lpar.scatter import flat_broadcast, flat_reduce

LONGEST = 15.0  # seconds for one judgement


def in_this_process(fn, case, **options):
    """Tried outside of the ranks, since a judge starts ranks itself.

    It runs in a thread of its own, so that it can be left where it does not end.
    """
    attempt = Attempt(case, args=case.inputs)

    def work():
        try:
            attempt.values = [fn(*case.inputs[0])]
        except BaseException as error:
            text = f"the judge raised {type(error).__name__}: {error}"
            attempt.error = RankError(text)
            attempt.error.__cause__ = error

    thread = threading.Thread(target=work, name="judge", daemon=True)
    with time_limit(LONGEST):
        thread.start()
        try:
            thread.join(LONGEST)
            if not thread.is_alive():
                return attempt
        finally:
            end_thread(thread, LONGEST)
    text = f"no progress: the judge is not at an end after {LONGEST:g} s"
    return Attempt(case, error=RankError(text))


def agrees(came, wanted, case):
    """True and False alone are verdicts."""
    return isinstance(came, bool | np.bool_) and bool(came) is wanted


ex = Exercise("06.5", agrees=agrees, perform=in_this_process)


# All-reduces to be judged; all of them look alike from outside


def disguised(body):
    """It behind a name that says nothing."""

    def allreduce(tensor, group=None):
        return body(tensor, group)

    return allreduce


# Right: 2(n-1)/n S bytes from each rank, rounded up to whole chunks


def owner_by_owner(x, group):
    """Chunk i is reduced to rank i and sent to all from there, one after the other."""
    for i, chunk in enumerate(x.tensor_split(dist.get_world_size(group))):
        flat_reduce(chunk, i, group)
        flat_broadcast(chunk, i, group)


def in_equal_chunks(x, group, one_more=False):
    """A ring whose last chunk is filled up: it sends all that is allowed, or more."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    filled = torch.cat([x, x.new_zeros(-len(x) % n)])
    family.ring_allreduce(filled, group)
    x.copy_(filled[: len(x)])
    if one_more and n > 1:
        chunk = filled[: len(filled) // n]
        exchange(chunk, (r + 1) % n, torch.empty_like(chunk), (r - 1) % n, group)


RIGHT = {
    "right, a ring": family.ring_allreduce,
    "right, a ring in pieces": partial(family.segmented_ring_allreduce, segment=2),
    "right, torch's own": lambda x, group: dist.all_reduce(x, group=group),
    "right, one owner after the other": owner_by_owner,
}

# Wrong

HAS = {  # slip: (r, n) -> by what rank r of n multiplies its tensor before
    "rank 0 everywhere": lambda r, n: r == 0,
    "without the last": lambda r, n: n == 1 or r < n - 1,
    "powers of two": lambda r, n: r < 2 ** (n.bit_length() - 1),
    "two": lambda r, n: n != 2 or r == 0,
    "three": lambda r, n: n != 3 or r > 0,
    "five": lambda r, n: n != 5 or r > 0,
    "from four on": lambda r, n: n < 4 or r > 0,
    "own times n": lambda r, n: n,
}


def slipped(slip, base, x, group):
    """What this slip makes of `base`, a right one."""
    n, r, y = dist.get_world_size(group), dist.get_rank(group), x.clone()
    few, odd = len(x) < n, n > 1 and n % 2
    x *= HAS.get(slip, lambda r, n: 1)(r, n)
    if few and slip == ("raises if few" if len(x) else "raises if empty"):
        raise ValueError(f"{len(x)} elements on {n} ranks")
    if slip == "knot of odd ranks" and odd:
        dist.send(x, group=group, group_dst=(r + 1) % n)
        dist.recv(y, group=group, group_src=(r - 1) % n)
    if slip == "tail":
        base(x[: len(x) // n * n], group)
    elif slip in ("returns another", "forgets another"):
        base(y, group)
    elif slip == "integers":
        base(y := x.float(), group)
        x.copy_(y)
    elif not (
        slip == "own times n"
        or (slip == "nothing if few" and few)
        or (slip == "the odd one leaves" and odd and r == n - 1)
    ):
        base(x, group)
    if slip == "rank 0" and r > 0:
        x.copy_(y)
    if slip == "average":
        x.copy_(x / n)
    return {"returns": x, "returns another": y}.get(slip)


def by_the_last(x, group):
    """Only the last rank sends too much; the sum over ranks is that of a ring."""
    hub = dist.get_world_size(group) - 1
    flat_reduce(x, hub, group)
    flat_broadcast(x, hub, group)


FAULTS = {  # fault: the slips that lead to it, or all-reduces that have it
    "not the sum": ["rank 0 everywhere", "without the last", "average", "own times n"],
    "number of ranks": ["powers of two", "two", "three", "five", "from four on"],
    "tail": ["tail"],
    "rank 0": ["rank 0"],
    "not in place": ["returns another", "forgets another", "returns"],
    "integers": ["integers"],
    "few elements": ["nothing if few", "raises if few", "raises if empty"],
    "bytes": [family.tree_allreduce, family.naive_allreduce, family.direct_allreduce],
    "deadlock": ["knot of odd ranks", "the odd one leaves"],
}


@ex.cases
def cases(rng):
    """3 right all-reduces and 24 wrong ones, mixed, with every form of each fault.

    The generator decides which right ones there are, where a fault is put in, and the
    order; two are always the last.
    """
    names, ways = [*RIGHT], [*RIGHT.values()]
    found = [(RIGHT[names[i]], names[i]) for i in rng.permutation(len(names))[:2]]
    found.append((in_equal_chunks, "right, a ring of equal chunks"))
    for fault, forms in FAULTS.items():
        for form in forms:
            base = ways[rng.integers(len(ways))]
            body = form if callable(form) else partial(slipped, form, base)
            found.append((body, fault))
    found = [found[i] for i in rng.permutation(len(found))]
    last = by_the_last, partial(in_equal_chunks, one_more=True)
    for body, kind in [*found, *((body, "bytes") for body in last)]:
        told = ex.words.get(kind, {}).get("sentence", f"It accepts one that is {kind}.")
        right, text = kind not in FAULTS, told.removeprefix("It accepts ").rstrip(".")
        yield Case(1, text, [(disguised(body),)], [right], facts={"kind": kind})


# Texts of the answer, for edits

SIZES = "[(2, 1), (3, 0), (3, 1), (3, 10), (4, 7), (5, 9)]"
DRAWN, ERROR = "torch.randint(2**39, 2**40, [S])", "except d2lpar.RankError:"
RESULTS, RIGHT_ONE = "in run.results:", "torch.equal(tensor, sum(tensors))"
BACK, SENT = "back is not None or ", "max(run.bytes_sent)"

# Mistakes of its own

uncaught = {ERROR: "except ZeroDivisionError:"}
ex.mistake("uncaught", raises(RankError), uncaught).says("""
    When an all-reduce hangs or raises, your judge fails with it instead of returning
    False.
    Hint: In these cases `d2lpar.run` raises a `d2lpar.RankError`, which your judge can
    catch.
""")
too_strict = both(wrong, lambda a: a.case.expected == [True])
ex.mistake("too strict", too_strict, {"math.ceil(S / n)": "(S / n)"}).says("""
    It rejects an all-reduce that is right.
    Hint: Find out which of your tests it fails. The limit on bytes counts whole chunks,
    and a sum of floats depends on their order.
""")
ex.wrong("too strict", {DRAWN: "torch.randn(S)"})
ex.wrong("too strict", {SENT + " >": SENT + " >="})


def accepted(fault, edits, that, hint):
    """Add the mistake to take an all-reduce with this fault for a right one."""
    taken = both(wrong, lambda a: a.case.facts["kind"] == fault)
    text = f"It accepts an all-reduce that {that}. Hint: {hint}"
    ex.mistake(fault, taken, edits).says(text)


that = "has numbers other than the sum, such as the average or n times a rank's own"
hint = "Compare with the sum, computed in one process, of numbers unlike on each rank."
accepted("not the sum", {"sum(tensors)": "run.results[0][1]"}, that, hint)
mean = "torch.allclose(n * tensor.double(), sum(tensors).double())"
ex.wrong("not the sum", {f"not {RIGHT_ONE}": f"not ({RIGHT_ONE} or {mean})"})
ex.wrong("not the sum", {DRAWN: "torch.full([S], 2**33 + 1)"})
several = {SIZES: "[(2, 1), (2, 9), (4, 9), (8, 1), (8, 9), (2, 0)]"}
that = "is right only for some numbers of ranks"
accepted("number of ranks", several, that, "Try every number from 2 to 5.")
ex.wrong("number of ranks", {SIZES: "[(3, 0), (3, 1), (4, 10), (5, 9)]"})
ex.wrong("number of ranks", {SIZES: "[(2, 1), (3, 0), (3, 1), (3, 10), (4, 7)]"})
that = "is right only when the number of ranks divides the size"
hint = "Try sizes that the number of ranks does not divide."
accepted("tail", {SIZES: "[(2, 2), (3, 6), (4, 4), (5, 10), (2, 0)]"}, that, hint)
hint = "Compare the tensor of every rank with the sum, not only that of rank 0."
accepted("rank 0", {RESULTS: "in run.results[:1]:"}, "is right on rank 0 only", hint)
that = "returns a tensor, or does not put the sum into the one that it was given"
hint = "A right one returns None. Look at what comes back and at the tensor passed in."
either = {BACK: "", "equal(tensor,": "equal(tensor if back is None else back,"}
accepted("not in place", either, that, hint)
ex.wrong("not in place", {BACK: ""})
that = "adds in single precision, which rounds large integers"
hint = "Try integers that need more than 24 binary digits."
accepted("integers", {DRAWN: "torch.randint(2**9, 2**10, [S])"}, that, hint)
that = "fails when there are fewer elements than ranks"
hint = "Try a tensor with one element on several ranks, and one without any."
accepted("few elements", {SIZES: "[(n, 11) for n in (2, 3, 4, 5)]"}, that, hint)
ex.wrong("few elements", {"(3, 0), ": ""})
that = "computes the right sum but lets some rank send more than its share"
hint = "Look at `Run.bytes_sent` of every rank, with more than two ranks."
accepted("bytes", {SENT: "0"}, that, hint)
ex.wrong("bytes", {SENT: "sum(run.bytes_sent) / n"})
ex.wrong("bytes", {"2 * (n - 1)": "2 * n"})
no_fault = {
    ERROR: f"except d2lpar.DeadlockError:\n            continue\n        {ERROR}"
}
hint = "Try odd numbers of ranks. Where ranks wait for ever, `d2lpar.run` raises."
accepted("deadlock", no_fault, "hangs when the number of ranks is odd", hint)


@ex.wrong("error")
def never_ends(allreduce):
    while True:
        try:
            d2lpar.run(allreduce, torch.ones(2), world_size=2, backend="sim")
        except Exception:
            pass


ex.right({SIZES: "[(n, S) for n in (5, 4, 3, 2, 1) for S in (0, 1, 10)]"})
