"""06.5 Be the checker: judge(allreduce), with the all-reduces that are judged."""

import threading
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from d2lpar import allreduce as family
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Attempt, Case, Mistake
from d2lpar.checks.signs import both, raises, wrong
from d2lpar.launch.limits import end_thread, time_limit
from d2lpar.messages import exchange
from d2lpar.report.errors import RankError
from d2lpar.scatter import flat_broadcast, flat_reduce

LONGEST = 15.0  # seconds for one judgement


def in_this_process(fn, case, **options):
    """Tried outside of the ranks, in a thread that can be left if it does not end."""
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
    return lambda tensor, group=None: body(tensor, group)


def by_owners(x, group, last=False):
    """Chunk i is reduced to rank i, or to the last one, and sent to all from there."""
    n = dist.get_world_size(group)
    for i, chunk in enumerate(x.tensor_split(n)):
        owner = n - 1 if last else i
        flat_reduce(chunk, owner, group)
        flat_broadcast(chunk, owner, group)


def in_equal_chunks(x, group, one_more=False):
    """A ring whose last chunk is filled up: it sends all that is allowed, or more."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    filled = torch.cat([x, x.new_zeros(-len(x) % n)])
    family.ring_allreduce(filled, group)
    x.copy_(filled[: len(x)])
    if one_more and n > 1:
        chunk = filled[: len(filled) // n]
        exchange(chunk, (r + 1) % n, torch.empty_like(chunk), (r - 1) % n, group)


def slipped(slip, base, x, group):
    """What this slip makes of `base`, a right one; 3 loses a tensor of three ranks."""
    n, r, y = dist.get_world_size(group), dist.get_rank(group), x.clone()
    few, has = len(x) < n, {"rank 0 everywhere": r == 0, "own times n": n}
    has["without the last"] = n == 1 or r < n - 1
    x *= has.get(slip, slip != n or r > 0)
    if few and slip == ("raises if few" if len(x) else "raises if empty"):
        raise ValueError(f"{len(x)} elements on {n} ranks")
    part = {"tail": x[: len(x) // n * n], "integers": x.float()}.get(slip, x)
    part = y if slip in ("returns another", "forgets another") else part
    absent = {"own times n": True, "nothing if few": few}
    absent["one leaves"] = n % 2 and r == n - 1
    if not absent.get(slip):
        base(part, group)
    came = {"integers": part, "average": x / n, "rank 0": y if r else x}
    x.copy_(came.get(slip, x))
    return {"returns": x, "returns another": y}.get(slip)


RIGHT = {
    "right, a ring": family.ring_allreduce,
    "right, a ring in pieces": partial(family.segmented_ring_allreduce, segment=2),
    "right, torch's own": lambda x, group: dist.all_reduce(x, group=group),
    "right, one owner after the other": by_owners,
}
FAULTS = {}  # fault: the slips that lead to it, or all-reduces that have it


@ex.cases
def cases(rng):
    """3 right all-reduces and 22 wrong ones: which, made of which, and their order."""
    names, ways = [*RIGHT], [*RIGHT.values()]
    found = [(RIGHT[names[i]], names[i]) for i in rng.permutation(len(names))[:2]]
    found.append((in_equal_chunks, "right, a ring of equal chunks"))
    for fault, forms in FAULTS.items():
        for form in forms:
            base = ways[rng.integers(len(ways))]
            body = form if callable(form) else partial(slipped, form, base)
            found.append((body, fault))
    for body, kind in [found[i] for i in rng.permutation(len(found))]:
        told = ex.words.get(kind, Mistake(kind, f"It accepts one that is {kind}."))
        right, text = kind not in FAULTS, told.sentence.removeprefix("It accepts ")
        yield Case(1, text.rstrip("."), [(disguised(body),)], [right], {"kind": kind})


# Mistakes of its own, after texts of the answer that they edit

SIZES = "[(2, 1), (3, 0), (3, 1), (3, 10), (4, 7), (5, 9)]"
DRAWN, SENT = "torch.randint(2**39, 2**40, [S])", "max(run.bytes_sent)"
ERROR = "except d2lpar.RankError:"
ignored = lambda error: {ERROR: f"except {error}: continue\n        {ERROR}"}

ex.mistake("uncaught", raises(RankError), {ERROR: "except KeyError:"}).says("""
    When an all-reduce hangs or raises, your judge fails with it.
    Hint: `d2lpar.run` raises a `d2lpar.RankError` then: catch it, and return False.
""")
too_strict = both(wrong, lambda a: a.case.expected == [True])
ex.mistake("too strict", too_strict, {"math.ceil(S / n)": "(S / n)"}).says("""
    It rejects an all-reduce that is right.
    Hint: Find out which of your tests it fails. The limit on bytes counts whole chunks,
    and a sum of floats depends on their order.
""")
ex.wrong("too strict", {DRAWN: "torch.randn(S)"})
ex.wrong("too strict", {SENT + " >": SENT + " >="})


def accepts(fault, forms, edits):
    """Add a fault, and the mistake to take one that has it for a right one."""
    taken = both(wrong, lambda a: a.case.facts["kind"] == fault)
    FAULTS[fault] = forms
    return ex.mistake(fault, taken, edits)


sums = ["rank 0 everywhere", "without the last", "average", "own times n"]
accepts("not the sum", sums, {"sum(tensors)": "run.results[0][1]"}).says("""
    It accepts an all-reduce that has numbers other than the sum, such as the average.
    Hint: Compare with the sum, computed in one process, of numbers unlike on each rank.
""")
ex.wrong("not the sum", {DRAWN: "torch.full([S], 2**33 + 1)"})
several = {SIZES: "[(2, 1), (2, 9), (4, 9), (8, 1), (8, 9), (2, 0)]"}
accepts("number of ranks", [2, 3, 5, "one leaves"], several).says("""
    It accepts an all-reduce that is right only for some numbers of ranks.
    Hint: Try every number from 2 to 5. Where ranks wait for ever, `d2lpar.run` raises.
""")
ex.wrong("number of ranks", {SIZES: "[(3, 0), (3, 1), (4, 10), (5, 9)]"})
ex.wrong("number of ranks", ignored("d2lpar.DeadlockError"))
divided = {SIZES: "[(2, 2), (3, 6), (4, 4), (5, 10), (2, 0)]"}
few = ["tail", "nothing if few", "raises if few", "raises if empty"]
accepts("sizes", few, divided).says("""
    It accepts an all-reduce that is right only for some sizes.
    Hint: Try a size that the number of ranks does not divide, one element, and none.
""")
ex.wrong("sizes", {SIZES: "[(n, 11) for n in (2, 3, 4, 5)]"})
ex.wrong("sizes", {"(3, 0), ": ""})
accepts("rank 0", ["rank 0"], {"in run.results:": "in run.results[:1]:"}).says("""
    It accepts an all-reduce that is right on rank 0 only.
    Hint: Compare the tensor of every rank with the sum, not only that of rank 0.
""")
given = ["returns", "returns another", "forgets another"]
accepts("not in place", given, {"back is not None or ": ""}).says("""
    It accepts an all-reduce that returns a tensor, or leaves the given one as it was.
    Hint: A right one returns None. Look at what comes back and at the tensor passed in.
""")
accepts("integers", ["integers"], {DRAWN: "torch.randint(999, [S])"}).says("""
    It accepts an all-reduce that rounds large integers, as single precision does.
    Hint: Try integers that need more than 24 binary digits.
""")
busy = [family.tree_allreduce, family.naive_allreduce, family.direct_allreduce]
busy += [partial(by_owners, last=True), partial(in_equal_chunks, one_more=True)]
accepts("bytes", busy, {SENT: "0"}).says("""
    It accepts an all-reduce in which some rank sends more than its share.
    Hint: Look at `Run.bytes_sent` of every rank, with more than two ranks.
""")
ex.wrong("bytes", {SENT: "sum(run.bytes_sent) / n"})
ex.wrong("bytes", {"2 * (n - 1)": "2 * n"})

ex.wrong("error", {SIZES: "iter(lambda: (2, 1), None)"} | ignored("Exception"))
ex.right({SIZES: "[(n, S) for n in (5, 4, 3, 2, 1) for S in (0, 1, 10)]"})
