"""04.4 Weigh the wire: weigh(trips) gives alpha and beta."""

import numpy as np
import torch

from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, wrong

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
HOPS = (1, 2, 5)
REPEATS = 8  # trips of a row, besides the first
NOISE = 0.05
CLEAN, NOISY = 3, 5  # clusters

ex = Exercise(
    "04.4", agrees=lambda came, wanted, case: near(came, wanted, case.facts["within"])
)


@ex.cases
def cases(rng):
    """Some clusters without noise, then some with it; first the slowest wire."""
    for i in range(CLEAN + NOISY):
        noisy = i >= CLEAN
        alpha = 10 ** rng.uniform(-5.7, -4.5) if i else 2e-6  # up to 30 us
        beta = 10 ** rng.uniform(-10.5, -9) if i else 1e-9  # 1 to 30 GB/s
        trips = measured(rng, alpha, beta, rng.uniform(2, 6) * alpha, noisy)
        kind = "5 % noise" if noisy else "no noise"
        text = f"cluster {i + 1}, {kind}, {len(trips)} rows"
        facts = {"within": 0.10 if noisy else 0.01, "noisy": noisy}
        yield Case(1, text, [(trips,)], [(alpha, beta)], facts)


def measured(rng, alpha, beta, overhead, noisy):
    """Rows (elements, dtype, hops, seconds) in any order; sizes around alpha / beta."""
    rows = []
    for S in np.geomspace(alpha / beta / 300, alpha / beta * 1000, 8):
        dtype = DTYPES[rng.integers(len(DTYPES))] if S > 8 else torch.float64
        elements = max(1, int(S) // dtype.itemsize)
        for hops in HOPS:
            one_way = hops * (alpha + beta * elements * dtype.itemsize)
            times = repeated(rng, overhead + 2 * one_way, noisy)
            rows.append((elements, dtype, hops, times))
    return [rows[i] for i in rng.permutation(len(rows))]


def repeated(rng, trip, noisy):
    """A warm-up, then the repeats: up to 5 % longer, at most two of them far longer."""
    times = np.full(1 + REPEATS, trip)
    if noisy:
        times *= 1 + rng.uniform(0, NOISE, size=len(times))
        disturbed = rng.integers(1, len(times), size=rng.integers(0, 3))
        times[disturbed] *= rng.uniform(2, 10)
    times[0] = trip * rng.uniform(2, 4)
    return times.tolist()


noisy = lambda case: case.facts["noisy"]
given = lambda case: case.inputs[0][0]
sizes = lambda case: [count * dtype.itemsize for count, dtype, *_ in given(case)]
disturbed = lambda row: sum(time > 1.9 * min(row[3]) for time in row[3][1:])
ex.boundaries(
    quiet=lambda case: not noisy(case),
    noisy=noisy,
    one_element=lambda case: min(count for count, *_ in given(case)) == 1,
    no_float32=lambda case: max(sizes(case)) > 2**24,
    warm_up_alone_is_long=lambda case: (
        noisy(case) and min(map(disturbed, given(case))) == 0
    ),
    two_disturbed=lambda case: max(map(disturbed, given(case))) == 2,
)

# Texts of the answer, for edits

LEGS, BYTES, PICK = "2 * hops", "elements * dtype.itemsize", "min(seconds[1:])"
COST, UNKNOWN, BETA = ", 1 / time]", "(alpha, beta, _)", "float(beta)"
ROW, ONES = "legs / time, legs * S / time, 1 / time", "np.ones(len(rows))"

# Mistakes of its own


def quiet_slip(name, edits):
    """Add a mistake that the numbers on one quiet cluster show."""
    quiet = lambda attempt: not noisy(attempt.case)
    return ex.slip(name, edits, somewhere=True, also=quiet)


quiet_slip("whole trip", {LEGS: "hops"}).says("""
    Both numbers are twice as large as they should be.
    Hint: How many hops does a trip have? The message goes there and back, which is
    `hops` hops each way.
""")
quiet_slip("no hops", {LEGS: "2"}).says("""
    It treats every trip as if it went to the neighbour and back.
    Hint: What does `hops` say of a trip? Each hop on the way there is a message, and so
    is each hop on the way back.
""")
quiet_slip("elements", {BYTES: "elements"}).says("""
    It counts elements, where the bytes of a message matter.
    Hint: How many bytes has an element? A float64 has eight and a uint8 only one:
    `dtype.itemsize`.
""")
quiet_slip("bandwidth", {BETA: "1 / beta"}).says("""
    The second number is in bytes per second.
    Hint: In which unit is beta? It is the seconds that one byte takes.
""")
quiet_slip("overhead", {COST: "]", UNKNOWN: "(alpha, beta)"}).says("""
    It counts the fixed cost of a trip as if the wire caused it, so alpha comes out too
    large.
    Hint: Which part of a trip's time does not grow with its hops? The fixed cost is
    paid once, so make it a third unknown.
""")
quiet_slip("warm-up", {PICK: "seconds[0]"}).says("""
    It counts the first trip of each row, which takes far longer than the others.
    Hint: Which of the nine times are fit for use? Leave the warm-up out.
""")
quiet_slip("warm-up", {PICK: "np.mean(seconds)"})
in_noise = both(wrong, only(noisy))
ex.mistake("noise", in_noise, {PICK: "np.mean(seconds[1:])"}).says("""
    It is right without noise, but with noise it is off by more than 10 %.
    Hint: Which of a row's eight times do you use, and how much weight does each row
    get? Noise only makes a trip longer. Seconds as they are let the longest trips
    decide alone, so divide each equation by its time.
""")
seconds = {ROW: "legs, legs * S, 1.0", ONES: "[min(s[1:]) for *_, s in trips]"}
ex.wrong("noise", seconds)
ex.wrong("noise", seconds | {ONES: "[np.mean(s[1:]) for *_, s in trips]"})

# Answers to which the general sentences apply

ex.wrong("wrong", {BETA: f"{BETA}, 0.0"})
ex.wrong("wrong", {"rows = []": "return 10e-6, 1e-10"})
ex.right({PICK: "float(np.median(seconds[1:]))"})
ex.right({"return float(alpha), float(beta)": "return torch.tensor([alpha, beta])"})
