"""15.2 The forgotten reduction: forgotten(config, sizes, N, T, counted)."""

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, wrong
from d2lpar.mesh.costs import bytes_per_step, numbers, tensors
from d2lpar.mesh.gpt_parts import Config
from d2lpar.mesh.grid import Mesh

ex = Exercise("15.2", processes=())
# data, pipeline, tensor; what is forgotten
SIZES = [(1, 1, 1, "nothing"), (2, 2, 2, "nothing"), (1, 2, 1, "nothing")]
SIZES += [(2, 2, 2, "tied"), (1, 3, 1, "tied"), (3, 2, 1, "tied"), (1, 2, 2, "tied")]
SIZES += [(1, 2, 4, "tables"), (2, 1, 2, "tables"), (1, 1, 4, "tables")]
SIZES += [(3, 1, 2, "blocks"), (2, 4, 2, "blocks"), (1, 1, 2, "blocks")]
SIZES += [(2, 1, 1, "stage 0"), (2, 3, 1, "stage 1"), (4, 2, 2, "stage 1")]
SIZES += [(3, 1, 2, "stage 0"), (2, 4, 1, "stage 1 or 2")]  # equal ones


@ex.cases
def cases(rng):
    """Every reduction is forgotten somewhere, on meshes with axes of 1 to 4."""
    for *sizes, lost in SIZES:
        d, p, t = sizes
        blocks, heads, size = 2 * p + int(rng.integers(2)), 4, int(rng.integers(2, 9))
        words = 4 * int(rng.integers(5, 30))
        config = Config(heads * size, blocks, heads, 16, words)
        N, T = d * int(rng.integers(2, 6)), int(rng.integers(4, 16))
        sent = bytes_per_step(config, Mesh(*sizes), N, T)
        axis, less = saved(config, sizes, N, T, lost)
        sent[axis] -= less
        given = config, tuple(sizes), N, T, sent
        text = f"data {d}, pipeline {p}, tensor {t}: {lost} forgotten"
        facts = {"lost": lost, "blocks": blocks}
        yield Case(1, text, [given], [lost.partition(" or ")[0]], facts)


def saved(config, sizes, N, T, lost):
    """(axis, bytes of all ranks that are not sent) if this reduction is forgotten."""
    (d, _, t), mesh = sizes, Mesh(*sizes)
    if lost == "tied":  # there and back in each copy of the model
        return "pipeline", 2 * d * config.vocabulary * config.D * 4
    if lost.startswith("stage"):
        each = int(lost[-1])
        count = numbers(config, mesh, each) + tensors(config, mesh, each)
        return "data", 2 * (d - 1) * t * count * 4
    sums = {"tables": 1, "blocks": config.depth}.get(lost, 0)
    return "tensor", sums * 2 * (t - 1) * N * T * config.D * 4


given = lambda case: case.inputs[0][1]
lost = lambda case: case.facts["lost"]
alone = lambda k: lambda case: given(case)[k] == 1 and lost(case) != "nothing"
ex.boundaries(
    one_rank=lambda case: max(given(case)) == 1,
    one_along_data=alone(0),
    one_along_pipeline=alone(1),
    one_along_tensor=alone(2),
    data_alone=lambda case: given(case)[1:] == (1, 1) != given(case)[:2],
    tensor_alone=lambda case: given(case)[:2] == (1, 1) != given(case)[1:],
    no_power_of_two=lambda case: 3 in given(case),
    ties=lambda case: " or " in lost(case),
    two_blocks=lambda case: case.facts["blocks"] == 2,
)

# Texts of the answer, for edits

TENSOR, PIPELINE, STAGE = "if tensor:", "if pipeline:", 'f"stage {stage}"'
WHICH = '"tables" if tensor == one_sum else "blocks"'
FLAGS, PARTS = " + tensors(config, mesh, stage)", "(d - 1) * t"
IF_STAGE = "if data == 2 * (d - 1) * t * held * 4 > 0:"

# Mistakes of its own


def sends_nothing(attempt):
    """The reduction that it names sends nothing on this mesh."""
    d, p, t = given(attempt.case)
    axis = {"tied": p, "tables": t, "blocks": t, "stage": d}
    return axis.get(str(attempt.came[0]).partition(" ")[0]) == 1


always = {TENSOR: "if tensor in (one_sum, one_sum * config.depth):"}
ex.mistake("zero bytes", both(wrong, sends_nothing), always).says("""
    It names a reduction that would have sent no bytes on this mesh.
    Hint: How many bytes are missing there, and how many does your formula give? Both
    are 0, because along an axis of one rank nothing is sent.
""")
ex.wrong("zero bytes", {"held * 4 > 0": "held * 4"})
ex.slip("right axis", {"== one_sum": "> one_sum"}).says("""
    It names a reduction on the axis that lacks bytes, but not the one that is missing.
    Hint: How many bytes does each reduction send? On the tensor axis one sum is missing
    for the table, and one in every block for the blocks. On the data axis every stage
    has gradients of its own.
""")
ex.slip("right axis", {WHICH: '"blocks"', IF_STAGE: "if data:"})
ex.slip("from one", {STAGE: STAGE.replace("stage}", "stage + 1}")}).says("""
    It counts stages from 1.
    Hint: What is the number of the first stage? It is 0.
""")
one_copy = {PIPELINE: "if pipeline == 2 * config.vocabulary * config.D * 4 > 0:"}
ex.slip("too few bytes", one_copy).says("""
    It does not count all bytes of a reduction: the tied table's, or that of a stage.
    Hint: Who sends what to whom? Both ends of a pipeline need the sum for the table,
    and there are as many pipelines as data ranks. For a stage, `numbers` and `tensors`
    count what one rank holds, and each tensor has a flag.
""")
ex.slip("too few bytes", {FLAGS: ""})
ex.slip("too few bytes", {PARTS: "(d - 1)"})
ex.slip("last stage", {"range(p)": "reversed(range(p))"}).says("""
    Of several stages that lack the same bytes, it names a later one.
    Hint: Stages of equal size cannot be told apart. Which of their numbers does the
    text ask for?
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {"N * T": "N // d * T"})
ex.wrong("wrong", {STAGE: 'f"stage{stage}"'})
ex.right({"tensor == one_sum else": "tensor < 2 * one_sum else"})
ex.right({IF_STAGE: "if d > 1 and data // (2 * (d - 1) * t) == held * 4:"})


def in_float64(n, config, sizes, N, T, counted):
    """The bytes of the same step with twice as large numbers; the loss stays."""
    short, long = (bytes_per_step(config, Mesh(*sizes), N, T, size) for size in (4, 8))
    seen = {k: long[k] - 2 * (short[k] - sent) for k, sent in counted.items()}
    return config, sizes, N, T, seen


ex.variation(
    "b",
    varied="the step computes in float64",
    differs="Numbers have four bytes, as in the public exercise; here they have eight.",
    given=in_float64,
)
