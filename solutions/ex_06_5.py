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
from d2lpar.scatter import all_gather, all_to_all, flat_broadcast, flat_reduce

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
        what = f"an all-reduce that is right, {kind}"
        if kind in FAULTS:
            what = ex.words[kind]["sentence"].removeprefix("It accepts ")
        yield Case(
            1,
            what.removesuffix("."),
            [(allreduce,)],
            [kind not in FAULTS],
            facts={"kind": kind},
        )


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


def all_owners_at_once(x, group):
    """Everyone gives chunk i to rank i, which adds them and gives the sum to all."""
    chunks = list(x.tensor_split(dist.get_world_size(group)))
    terms = [torch.empty_like(chunks[dist.get_rank(group)]) for _ in chunks]
    all_to_all(terms, chunks, group)
    all_gather(chunks, sum(terms), group)


def by_halves(x, group):
    """Halving and doubling for powers of two, else a ring."""
    n = dist.get_world_size(group)
    way = family.ring_allreduce if n & (n - 1) else family.halving_doubling_allreduce
    way(x, group)


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


RIGHT = {  # what it does: the function
    "the ring": family.ring_allreduce,
    "the ring in small pieces": partial(family.segmented_ring_allreduce, segment=2),
    "torch's own": lambda x, group: dist.all_reduce(x, group=group),
    "one owner of a chunk after the other": owner_by_owner,
    "all owners of chunks at once": all_owners_at_once,
    "halving and doubling where n is a power of two": by_halves,
}


# Wrong


COUNTED = {  # slip: (r, n) -> is what rank r of n has in the sum?
    "rank 0 everywhere": lambda r, n: r == 0,
    "without the last": lambda r, n: n == 1 or r < n - 1,
    "powers of two": lambda r, n: r < 2 ** (n.bit_length() - 1),
}


def slipped(slip, base, x, group):
    """What this slip makes of `base`, a right one."""
    n, r, y = dist.get_world_size(group), dist.get_rank(group), x.clone()
    odd = n > 1 and n % 2
    if slip in COUNTED:
        x *= COUNTED[slip](r, n)
    if slip == "raises if few" and 0 < len(x) < n:
        raise ValueError("fewer elements than ranks")
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
    "powers of two": ["powers of two"],
    "tail": ["tail"],
    "rank 0": ["rank 0"],
    "rebinding": ["returns another", "forgets another"],
    "returns": ["returns"],
    "average": ["average"],
    "own times n": ["own times n"],
    "integers": ["integers"],
    "few elements": ["nothing if few", "raises if few"],
    "bytes": [
        family.tree_allreduce,
        family.naive_allreduce,
        family.direct_allreduce,
        family.recursive_doubling_allreduce,
    ],
    "deadlock": ["knot of odd ranks", "the odd one leaves"],
}


def draw(rng):
    """[(all-reduce, what it is in RIGHT or FAULTS)]: 3 right ones, 19 wrong ones.

    Every fault is there, in two forms at most.  The generator decides which right
    ones there are, where a fault is put in, and the order; two are always the last.
    """
    ways = list(RIGHT.values())
    names = [list(RIGHT)[i] for i in rng.permutation(len(RIGHT))[:2]]
    found = [(disguised(RIGHT[name]), name) for name in names]
    found.append((disguised(in_equal_chunks), "a ring of equal chunks"))
    for fault, forms in FAULTS.items():
        for i in rng.permutation(len(forms))[:2]:
            base, form = ways[rng.integers(len(ways))], forms[i]
            body = (form,) if callable(form) else (slipped, form, base)
            found.append((disguised(*body), fault))
    order = rng.permutation(len(found))
    last = by_the_last, partial(in_equal_chunks, more=1)
    return [found[i] for i in order] + [(disguised(body), "bytes") for body in last]


# Texts of the answer, for edits

SIZES = "[(2, 1), (3, 1), (3, 10), (4, 7), (5, 9)]"
DRAWN, ERROR = "torch.randint(2**39, 2**40, [S])", "except d2lpar.RankError:"
RESULTS, RIGHT_ONE = "in run.results:", "torch.equal(tensor, sum(tensors))"
BACK, SENT, TRUE = "back is not None or ", "max(run.bytes_sent)", "return True"


def accepts(fault):
    """An all-reduce with this fault is taken for a right one."""
    return both(wrong, lambda a: a.case.facts["kind"] == fault)


def accepted(fault, edits):
    """The mistake to accept it, which these edits make."""
    return ex.mistake(fault, accepts(fault), edits)


uncaught = {ERROR: "except ZeroDivisionError:"}
ex.mistake("uncaught", raises(RankError), uncaught).says("""
    When an all-reduce hangs or raises, your judge fails with it instead of returning
    False.
    Hint: In these cases `d2lpar.run` raises a `d2lpar.RankError`, which your judge can
    catch.
""")
ex.mistake("raises", raises(BaseException), {TRUE: "return undefined"}).says("""
    Your judge itself raises an error, which is shown above.
""")
no_verdict = both(wrong, lambda a: verdict(a.came[0]) is None)
ex.mistake("no verdict", no_verdict, {TRUE: "return None"}).says("""
    Your judge returns something that is neither True nor False.
""")
too_strict = both(wrong, lambda a: a.case.expected == [True])
ex.mistake("too strict", too_strict, {"math.ceil(S / n)": "(S / n)"}).says("""
    It rejects an all-reduce that is right.
    Hint: Find out which of your tests it fails. The limit on bytes counts whole chunks,
    and a sum of floats depends on their order.
""")
ex.wrong("too strict", {DRAWN: "torch.randn(S)"})
ex.wrong("too strict", {SENT + " >": SENT + " >="})
accepted("equal but wrong", {"sum(tensors)": "run.results[0][1]"}).says("""
    It accepts an all-reduce that gives all ranks the same numbers, but not the sum.
    Hint: Compare with the sum, computed in one process.
""")
accepted("powers of two", {SIZES: "[(2, 1), (2, 9), (4, 9), (8, 1), (8, 9)]"}).says("""
    It accepts an all-reduce that is right only when the number of ranks is a power of
    two.
    Hint: Try it on 3 and on 5 ranks.
""")
accepted("tail", {SIZES: "[(2, 2), (3, 6), (5, 10)]"}).says("""
    It accepts an all-reduce that is right only when the number of ranks divides the
    size.
    Hint: Try sizes that the number of ranks does not divide.
""")
accepted("rank 0", {RESULTS: "in run.results[:1]:"}).says("""
    It accepts an all-reduce that is right on rank 0 only.
    Hint: Compare the tensor of every rank with the sum, not only that of rank 0.
""")
either = {BACK: "", "equal(tensor,": "equal(tensor if back is None else back,"}
accepted("rebinding", either).says("""
    It accepts an all-reduce that leaves its tensor unchanged and puts the sum into
    another one.
    Hint: Look at the tensor that you passed in, whatever the function returns.
""")
accepted("returns", {BACK: ""}).says("""
    It accepts an all-reduce that is right in place but also returns the tensor.
    Hint: Look at what the function returns. A right one returns None.
""")
direction = {f"not {RIGHT_ONE}": "(tensor / sum(tensors)).std() > 1e-6"}
accepted("average", {SIZES: "[(3, 2), (5, 3), (4, 10)]", **direction}).says("""
    It accepts an all-reduce that computes the average instead of the sum.
    Hint: Compare with the sum itself, so that a constant factor is noticed.
""")
accepted("own times n", {DRAWN: "torch.full([S], 2**33 + 1)"}).says("""
    It accepts an all-reduce that multiplies its own numbers by n, without any
    communication.
    Hint: Give every rank different numbers, so that a multiple of its own is not the
    sum.
""")
accepted("integers", {DRAWN: "torch.randint(2**9, 2**10, [S])"}).says("""
    It accepts an all-reduce that adds in single precision, which rounds large integers.
    Hint: Try integers that need more than 24 binary digits.
""")
accepted("few elements", {SIZES: "[(n, 11) for n in (2, 3, 4, 5)]"}).says("""
    It accepts an all-reduce that fails when there are fewer elements than ranks.
    Hint: Try a tensor with one element on several ranks.
""")
accepted("bytes", {SENT: "0"}).says("""
    It accepts an all-reduce that computes the right sum but lets some rank send more
    than its share.
    Hint: Look at `Run.bytes_sent` of every rank, with more than two ranks.
""")
ex.wrong("bytes", {SENT: "(n == 2) * max(run.bytes_sent)"})
ex.wrong("bytes", {SENT: "sum(run.bytes_sent) / n"})
ex.wrong("bytes", {SENT: "run.bytes_sent[0]"})
ex.wrong("bytes", {"2 * (n - 1)": "2 * n"})
no_fault = {
    ERROR: f"except d2lpar.DeadlockError:\n            continue\n        {ERROR}"
}
accepted("deadlock", no_fault).says("""
    It accepts an all-reduce that hangs when the number of ranks is odd.
    Hint: Try an odd number of ranks. If they wait for ever, `d2lpar.run` raises a
    `d2lpar.RankError`.
""")


@ex.wrong("error")
def never_ends(allreduce):
    while True:
        try:
            d2lpar.run(allreduce, torch.ones(2), world_size=2, backend="sim")
        except Exception:
            pass


@ex.right
def in_floats_and_integers(allreduce):
    def on_a_rank(xs):
        x = xs[dist.get_rank()]
        return allreduce(x), x

    faults = 0
    for n, S in ((5, 3), (1, 2), (3, 10), (4, 9), (2, 1)):
        for dtype in (torch.float64, torch.int64):
            xs = [(torch.arange(S) * (r + 2) + r * r + 1) for r in range(n)]
            xs = [(x * (2**33 + 1)).to(dtype) for x in xs]
            try:
                run = d2lpar.run(on_a_rank, xs, world_size=n, backend="sim")
            except Exception:
                return False
            for back, x in run.results:
                alike = torch.allclose(x.double(), sum(xs).double(), rtol=1e-10)
                exact = dtype == torch.float64 or bool((x == sum(xs)).all())
                faults += not (alike and exact and back is None)
            faults += bool((run.traffic.sum(1) > 2 * (n - 1) * -(-S // n) * 8).any())
    return faults == 0
