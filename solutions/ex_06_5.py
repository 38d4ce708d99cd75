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


def verdict(came):
    """True or False; None where it is neither."""
    return bool(came) if isinstance(came, bool | np.bool_) else None


ex = Exercise(
    "06.5",
    agrees=lambda came, wanted, case: verdict(came) is wanted,
    perform=in_this_process,
)


@ex.cases
def cases(rng):
    """Three right all-reduces and the wrong ones, mixed."""
    for allreduce, kind in draw(rng):
        told = ex.words.get(kind, {}).get("sentence", f"It accepts one that is {kind}.")
        right, text = kind not in FAULTS, told.removeprefix("It accepts ").rstrip(".")
        yield Case(1, text, [(allreduce,)], [right], facts={"kind": kind})


# All-reduces to be judged; all of them look alike from outside


def disguised(body, *arguments):
    """`body(*arguments, tensor, group)` behind a name that says nothing."""

    def allreduce(tensor, group=None):
        return body(*arguments, tensor, group)

    return allreduce


# Right: 2(n-1)/n S bytes from each rank, rounded up to whole chunks


def owner_by_owner(x, group):
    """Chunk i is reduced to rank i and sent to all from there, one after the other."""
    for i, chunk in enumerate(x.tensor_split(dist.get_world_size(group))):
        flat_reduce(chunk, i, group)
        flat_broadcast(chunk, i, group)


def in_equal_chunks(x, group, more=0):
    """A ring whose last chunk is filled up: it sends all that is allowed, or more."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    filled = torch.cat([x, x.new_zeros(-len(x) % n)])
    family.ring_allreduce(filled, group)
    x.copy_(filled[: len(x)])
    for _ in range(more if n > 1 else 0):
        chunk = filled[: len(filled) // n]
        work = dist.isend(chunk, group=group, group_dst=(r + 1) % n)
        dist.recv(torch.empty_like(chunk), group=group, group_src=(r - 1) % n)
        work.wait()


RIGHT = {
    "right, a ring": family.ring_allreduce,
    "right, a ring in pieces": partial(family.segmented_ring_allreduce, segment=2),
    "right, torch's own": lambda x, group: dist.all_reduce(x, group=group),
    "right, one owner after the other": owner_by_owner,
}

# Wrong

COUNTED = {  # slip: (r, n) -> is what rank r of n has in the sum?
    "rank 0 everywhere": lambda r, n: r == 0,
    "without the last": lambda r, n: n == 1 or r < n - 1,
    "powers of two": lambda r, n: r < 2 ** (n.bit_length() - 1),
    "two": lambda r, n: n != 2 or r == 0,
    "from four on": lambda r, n: n < 4 or r > 0,
}


def slipped(slip, base, x, group):
    """What this slip makes of `base`, a right one."""
    n, r, y = dist.get_world_size(group), dist.get_rank(group), x.clone()
    odd = n > 1 and n % 2
    if slip in COUNTED:
        x *= COUNTED[slip](r, n)
    if len(x) < n and slip == {0: "raises if empty"}.get(len(x), "raises if few"):
        raise ValueError(f"{len(x)} elements on {n} ranks")
    if slip == "knot of odd ranks" and odd:
        dist.send(x, group=group, group_dst=(r + 1) % n)
        dist.recv(y, group=group, group_src=(r - 1) % n)
    match slip:
        case "own times n":
            x *= n
        case "tail":
            base(x[: len(x) // n * n], group)
        case "returns another" | "forgets another":
            base(y, group)
        case "integers":
            base(y := x.float(), group)
            x.copy_(y)
        case "nothing if few" if len(x) < n:
            pass
        case "the odd one leaves" if odd and r == n - 1:
            pass
        case _:
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
    "equal but wrong": ["rank 0 everywhere", "without the last"],
    "number of ranks": ["powers of two", "two", "from four on"],
    "tail": ["tail"],
    "rank 0": ["rank 0"],
    "rebinding": ["returns another", "forgets another"],
    "returns": ["returns"],
    "average": ["average"],
    "own times n": ["own times n"],
    "integers": ["integers"],
    "few elements": ["nothing if few", "raises if few", "raises if empty"],
    "bytes": [family.tree_allreduce, family.naive_allreduce, family.direct_allreduce],
    "deadlock": ["knot of odd ranks", "the odd one leaves"],
}


def draw(rng):
    """[(all-reduce, what it is in RIGHT or FAULTS)]: 3 right ones, 22 wrong ones.

    Every form of a fault is there.  The generator decides which right ones there are,
    where a fault is put in, and the order; two are always the last.
    """
    ways = list(RIGHT.values())
    names = [list(RIGHT)[i] for i in rng.permutation(len(RIGHT))[:2]]
    found = [(disguised(RIGHT[name]), name) for name in names]
    found.append((disguised(in_equal_chunks), "right, a ring of equal chunks"))
    for fault, forms in FAULTS.items():
        for form in forms:
            base = ways[rng.integers(len(ways))]
            body = (form,) if callable(form) else (slipped, form, base)
            found.append((disguised(*body), fault))
    order = rng.permutation(len(found))
    last = by_the_last, partial(in_equal_chunks, more=1)
    return [found[i] for i in order] + [(disguised(body), "bytes") for body in last]


# Texts of the answer, for edits

SIZES = "[(2, 1), (3, 0), (3, 1), (3, 10), (4, 7), (5, 9)]"
DRAWN, ERROR = "torch.randint(2**39, 2**40, [S])", "except d2lpar.RankError:"
RESULTS, RIGHT_ONE = "in run.results:", "torch.equal(tensor, sum(tensors))"
BACK, SENT, TRUE = "back is not None or ", "max(run.bytes_sent)", "return True"


def accepted(fault, edits, that, hint):
    """The mistake to take an all-reduce with this fault for a right one."""
    taken = both(wrong, lambda a: a.case.facts["kind"] == fault)
    text = f"It accepts an all-reduce that {that}. Hint: {hint}"
    ex.mistake(fault, taken, edits).says(text)


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
that = "gives all ranks the same numbers, but not the sum"
hint = "Compare with the sum, computed in one process."
accepted("equal but wrong", {"sum(tensors)": "run.results[0][1]"}, that, hint)
several = {SIZES: "[(2, 1), (2, 9), (4, 9), (8, 1), (8, 9), (2, 0)]"}
that = "is right only for some numbers of ranks"
accepted("number of ranks", several, that, "Try every number from 2 to 5.")
ex.wrong("number of ranks", {SIZES: "[(3, 0), (3, 1), (4, 10), (5, 9)]"})
ex.wrong("number of ranks", {SIZES: "[(2, 1), (3, 0), (3, 1), (3, 10)]"})
that = "is right only when the number of ranks divides the size"
hint = "Try sizes that the number of ranks does not divide."
accepted("tail", {SIZES: "[(2, 2), (3, 6), (4, 4), (5, 10), (2, 0)]"}, that, hint)
hint = "Compare the tensor of every rank with the sum, not only that of rank 0."
accepted("rank 0", {RESULTS: "in run.results[:1]:"}, "is right on rank 0 only", hint)
either = {BACK: "", "equal(tensor,": "equal(tensor if back is None else back,"}
that = "leaves its tensor unchanged and puts the sum into another one"
hint = "Look at the tensor that you passed in, whatever the function returns."
accepted("rebinding", either, that, hint)
that = "is right in place but also returns the tensor"
hint = "Look at what the function returns. A right one returns None."
accepted("returns", {BACK: ""}, that, hint)
mean = "torch.allclose(n * tensor.double(), sum(tensors).double())"
hint = "Compare with the sum itself, so that a constant factor is noticed."
that = "computes the average instead of the sum"
accepted("average", {f"not {RIGHT_ONE}": f"not ({RIGHT_ONE} or {mean})"}, that, hint)
that = "multiplies its own numbers by n, without any communication"
hint = (
    "Give every rank different numbers, so that a multiple of its own is not the sum."
)
accepted("own times n", {DRAWN: "torch.full([S], 2**33 + 1)"}, that, hint)
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
ex.wrong("bytes", {SENT: "(n == 2) * max(run.bytes_sent)"})
ex.wrong("bytes", {SENT: "sum(run.bytes_sent) / n"})
ex.wrong("bytes", {"2 * (n - 1)": "2 * n"})
no_fault = f"except d2lpar.DeadlockError:\n            continue\n        {ERROR}"
hint = (
    "Try an odd number of ranks. If they wait for ever, `d2lpar.run` raises an error."
)
that = "hangs when the number of ranks is odd"
accepted("deadlock", {ERROR: no_fault}, that, hint)


@ex.wrong("error")
def never_ends(allreduce):
    while True:
        try:
            d2lpar.run(allreduce, torch.ones(2), world_size=2, backend="sim")
        except Exception:
            pass


ex.right({SIZES: "[(n, S) for n in (5, 4, 3, 2, 1) for S in (0, 1, 10)]"})
ex.right({"2 * (n - 1) * math.ceil(S / n) * 8": "16 * (n - 1) * -(-S // n)"})
