"""03.1 Mend the mean: average(means, counts, wire), in place."""

from itertools import product, starmap

import torch

from d2lpar.checks import signs
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import WireAndMemory
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import always, wrong
from d2lpar.checks.solutions.chapter_03 import HEARD, wire
from d2lpar.shared.played import put


def memory(attempt, rank):
    """What is in the memory of the tensors that came in the list."""
    return [x.tolist() for x in wire(attempt).memory]


ex = Exercise("03.1", outcome=memory)
COUNTS = (3,), (2, 2), (4, 1), (0, 2), (5, 0, 2), (0, 3, 1, 6), (7, 7, 6, 0, 1)


@ex.cases
def cases(rng, reference):
    """The mean over the share of each device; NaN where there is no example."""
    for counts, S in product(COUNTS, (1, 4)):
        n, listed = len(counts), ", ".join(map(str, counts))
        means = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
        pairs = enumerate(zip(means, counts, strict=True))
        given = [put(x if k else x * torch.nan, i) for i, (x, k) in pairs]
        yield Case(
            1,
            f"{n} device{'s' * (n != 1)} with {listed} examples, S = {S}",
            [(given, list(counts), WireAndMemory(given))],
            [[reference(means, counts).tolist()] * n],
            facts={"counts": counts, "needs": [S * x for x in others(counts)], "S": S},
        )


def others(counts):
    """For each device: has any other device examples?"""
    return [any(counts[:i] + counts[i + 1 :]) for i in range(len(counts))]


counts = lambda case: case.facts["counts"]
devices = lambda case: len(counts(case))
ELEMENTS = Requirement(
    "elements sent, all devices",
    lambda a: sum(wire(a).elements(devices(a.case))),
    lambda case: 2 * (devices(case) - 1) * case.facts["S"],
    exactly=False,
)
ex.require(ELEMENTS, HEARD)
ex.boundaries(
    one_device=lambda case: devices(case) == 1,
    two_devices=lambda case: devices(case) == 2,
    no_power_of_two=lambda case: devices(case) & (devices(case) - 1),
    equal_shares=lambda case: devices(case) > 1 and len({*counts(case)}) == 1,
    device_0_is_empty=lambda case: counts(case)[0] == 0,
    another_is_empty=lambda case: 0 in counts(case)[1:],
    one_has_all=lambda case: devices(case) > 1 == sum(map(bool, counts(case))),
    one_number=lambda case: case.facts["S"] == 1,
)

# Texts of the answer, for edits

WEIGH, EMPTY, DIVIDE = "x *= count  # a sum again", "x.zero_()", "sum(counts)"
ADD, TAKE = "means[0] += wire.send(means[i], i, 0)", "means[i][:] ="

# Mistakes of its own


def rebound(attempt):
    """An entry of the list is not what is in the memory that was there."""
    if not wrong(attempt):
        return False
    listed = [x.flatten().tolist() for x in attempt.args[0][0]]
    return str(listed) != str(attempt.came[0])


def partly(attempt):
    """Some devices have the mean, and others do not."""
    if not wrong(attempt):
        return False
    pairs = zip(attempt.came[0], attempt.case.expected[0], strict=True)
    return 0 < sum(starmap(same, pairs)) < devices(attempt.case)


ex.mistake("rebound", rebound, {TAKE: "means[i] ="}).says("""
    The memory of some tensors that came in the list does not hold what the list holds
    now, so the optimizer would not see it.
    Hint: Does the line that assigns the result write into the tensor, or put another
    one in its place? `means[i][:] = ...` and `copy_` write into it; `means[i] = ...`
    and `means[i].data = ...` do not.
""")
ex.wrong("rebound", {TAKE: "means[i].data ="})
full_ones = {"means[i][:]": "if counts[i]: means[i][:]"}
ex.mistake("partly", always(partly), full_ones).says("""
    Some devices have the mean afterwards, and others do not.
    Hint: The mean is needed everywhere in the end, also where there are no examples.
""")
ex.wrong("partly", {f"{TAKE} wire.send(means[0], 0, i)": "pass"})
ex.mistake("nan", signs.not_a_number, {EMPTY: "x *= count"}).says("""
    The NaN of a device without examples gets into the mean.
    Hint: A weight of 0 does not help, because 0 times NaN is NaN. Leave this tensor out
    of the sum; such a device may also be device 0.
""")
ex.wrong("nan", {"if count > 0:": "if count > 0 or x is means[0]:"})
unweighted = {WEIGH: "pass", DIVIDE: "sum(k > 0 for k in counts)"}
ex.slip("unweighted", unweighted).says("""
    It gives every device the same weight, although the devices hold different numbers
    of examples.
    Hint: A mean times its count is a sum again, and sums can be added.
""")
ex.slip("unweighted", {WEIGH: "pass", DIVIDE: "len(counts)"})
ex.slip("unweighted", {WEIGH: "pass"})
ex.slip("undivided", {f"means[0] /= {DIVIDE}": ""}).says("""
    It computes the sum over all examples, but the exercise asks for the mean.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {ADD: "means[0] += means[i]"})
ex.wrong("costly", {ADD: "means[0] += means[0].new_tensor(means[i].tolist())"})
ex.wrong("costly", {ADD: f"{ADD}; wire.send(means[i], i, 0)"})
ex.right({f"{TAKE} wire": "means[i].data[:] = wire"})


@ex.right
def a_ring_of_weighted_sums(means, counts, wire):
    n = len(means)
    for x, k in zip(means, counts, strict=True):
        x[:] = torch.nan_to_num(x) * k / sum(counts)
    chunks = [x.tensor_split(n) for x in means]
    for k in range(2 * (n - 1)):
        for i in range(n):
            c, j = (i - k) % n, (i + 1) % n
            coming = wire.send(chunks[i][c], i, j)
            chunks[j][c][:] = coming + chunks[j][c] if k < n - 1 else coming
