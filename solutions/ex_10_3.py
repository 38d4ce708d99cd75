"""10.3 Which stage?: choose(units, n, card), a function of numbers."""

from functools import partial

from d2lpar.checks.equality import NO_NUMBER, same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, wrong

STAGES = (1, 2, 3)
SIX = [100] * 6
LARGE = [2**24 + 1, 2**33 + 5, 2**31]  # no float32, no int32


def floats(came):
    """Numbers of Python, numpy or torch as floats; what it was, if they are none."""
    try:
        return [float(value) for value in came]
    except NO_NUMBER:
        return came


agrees = lambda came, wanted, case: same(floats(came), wanted)
ex = Exercise("10.3", agrees=agrees, processes=())


def drawn(state, rng):
    """Models on cards where another stage just fits, or none, by a byte."""
    for units, n in (SIX, 4), (SIX, 3), ([10], 4), ([1], 1), ([5, 3], 64), (LARGE, 8):
        needs = [need(units, n, stage, state) for stage in STAGES]
        for card in (*needs, min(needs) - 1):
            yield draw(units, n, card, state)
    for _ in range(30):
        units = [int(x) for x in rng.integers(1, 3000, size=rng.integers(1, 7))]
        n = int(rng.choice([1, 2, 3, 4, 7, 8, 64]))
        card = need(units, n, int(rng.integers(1, 4)), state)
        yield draw(units, n, card - int(rng.integers(0, 2)), state)


def draw(units, n, card, state):
    """One case; the answer that it edits has 12 bytes."""
    needs = {stage: need(units, n, stage, state) for stage in STAGES}
    stage = next((stage for stage in STAGES if needs[stage] <= card), None)
    sent = sum(-(-size // n) for size in units) * 2 * (n - 1) * (3 if stage == 3 else 2)
    told = stage and (stage, needs[stage], sent)
    text = f"units of {units}, n = {n}, GPUs with {card:,} bytes"
    facts = {"edits": {STATE: f"{state} * k"}}
    return Case(1, text, [(units, n, card)], [told], facts)


def need(units, n, stage, state):
    """Bytes that a rank needs, of units that are padded to n equal shards."""
    padded = [size + -size % n for size in units]
    whole, shard = sum(padded), sum(padded) // n
    held = {1: 4 * whole, 2: 2 * whole + 2 * shard, 3: 4 * shard}[stage]
    return held + state * shard + 4 * (stage - 1) * max(padded)


ex.cases(partial(drawn, 12))  # bytes of Adam's state for an element
given = lambda case: case.inputs[0]
first = lambda stage: lambda case: (case.expected[0] or [None])[0] == stage
ex.boundaries(
    one_rank=lambda case: given(case)[1] == 1,
    two_ranks=lambda case: given(case)[1] == 2,
    no_power_of_two=lambda case: given(case)[1] & (given(case)[1] - 1),
    does_not_divide=lambda case: any(size % given(case)[1] for size in given(case)[0]),
    fewer_elements_than_ranks=lambda case: max(given(case)[0]) < given(case)[1],
    one_element=lambda case: given(case)[0] == [1],
    no_float32=lambda case: 2**24 + 1 in given(case)[0],
    full=lambda case: case.expected[0] and case.expected[0][1] == given(case)[2],
    **{f"stage_{stage}": first(stage) for stage in (*STAGES, None)},
)

# Texts of the answer, for edits

STATE, SHARD, LARGEST = "12 * k", "-(-size // n)", "n * max(shards)"
ORDER, FITS, WORKING = "for stage in (1, 2, 3):", "memory <= card", "{1: 0, 2: 2, 3: 4}"
SUM, MOVES, SENT = "sum(shards)", "3 if stage == 3 else 2", "(n - 1) * k * 2"
GRADIENTS, PARAMETERS = "k if stage >= 2", "k if stage == 3 else n"
RETURN, NONE = f"stage, memory, moves * {SENT}", "return None"

# Mistakes of its own

ex.slip("first", {ORDER: "for stage in (3, 2, 1):"}).says("""
    It does not take the first stage that fits.
    Hint: In which order do you try them, and when do you stop? Stage 3 does not always
    need the least memory, because it needs the most room to work in.
""")
least = {ORDER: "found = []\n    for stage in (1, 2, 3):", NONE: "return min(found, "}
least[NONE] += "key=lambda row: row[1], default=None)"
ex.slip("first", least | {f"return {RETURN}": f"found.append(({RETURN}))"})
only_3 = f"{ORDER[:-1]} if 4 * k + {STATE} + 8 * largest <= card else ():"
ex.slip("first", {ORDER: only_3})
ex.slip("tight", {FITS: "memory < card"}).says("""
    A stage that needs exactly all of the memory does not fit here, but it should.
    Hint: Which comparison is it? A stage fits if its memory is at most `card`.
""")
for second, third in (0, 0), (2, 2), (2, 3), (1, 2), (1, 3):
    ex.slip("working", {WORKING: f"{{1: 0, 2: {second}, 3: {third}}}"}).says("""
        It leaves too little room for what is whole while stage 2 or 3 works.
        Hint: Which tensors of a unit are whole for a moment? In stage 3 one unit
        computes while the next one is being gathered, and each may have a gradient.
    """)
memory = lambda came: came and (*came[:2], ...)
ex.slip("rounding", {SHARD: "size // n"}, about=memory).says("""
    It does not count every unit as n equal shards, with padding where n does not divide
    it.
    Hint: Do you round up for each unit by itself, and also for the largest one while it
    is whole? A shard has ceil(size / n) elements, and the whole flat has n times as
    many.
""")
ex.slip("rounding", {SHARD: "size / n"})
ex.slip("rounding", {SUM: "-(-sum(units) // n)"})
ex.slip("rounding", {LARGEST: "max(units)"})
ex.slip("sharded", {GRADIENTS: "k if stage >= 3"}).says("""
    It does not shard parameters or gradients at the right stage.
    Hint: Every stage shards the optimizer's state. Look up in the chapter which stage
    also shards gradients, and which one parameters.
""")
ex.slip("sharded", {PARAMETERS: "k if stage >= 2 else n"})
ex.slip("sharded", {GRADIENTS: "k if stage >= 1"})
ex.slip("sharded", {GRADIENTS: "k if stage > 3", PARAMETERS: "k if stage == 2 else n"})
ex.slip("order", {RETURN: f"stage, moves * {SENT}, memory"}).says("""
    The three numbers are right, but they stand in another order.
    Hint: What comes first? The stage, then its bytes of memory, then the bytes sent.
""")
ex.slip("order", {RETURN: f"memory, stage, moves * {SENT}"})
else_right = always(lambda a: a.gives([memory(a.case.expected[0])]), wrong)
ex.mistake("bytes sent", else_right, {SENT: "n * k * 2"}).says("""
    The stage and the memory are right, but the bytes sent are not.
    Hint: How many moves does a stage make, and what does a rank send in one? n-1 shards
    of 2 bytes an element. Stages 1 and 2 make two moves, and stage 3 makes three.
""")
ex.wrong("bytes sent", {MOVES: "2"})
ex.wrong("bytes sent", {SENT: "(n - 1) * k * 4"})

# Answers to which the general sentences apply

ex.wrong("raises", {NONE: "raise ValueError('no stage fits')"})
ex.wrong("wrong", {RETURN: f"stage, memory + 1, moves * {SENT}"})
ex.wrong("wrong", {NONE: "return 0, 0, 0"})
ex.wrong("wrong", {SUM: "__import__('torch').tensor(shards).float().sum().item()"})
ex.right({RETURN: f"[stage, float(memory), moves * {SENT}]"})
ex.right({SHARD: "(size + n - 1) // n", LARGEST: "max(shards) * n"})

ex.variation(
    "b",
    varied="numbers: an optimizer of 8 bytes an element",
    differs="It counts 12 bytes an element for the optimizer's state, not 8.",
    cases=partial(drawn, 8),
)
