"""16.1 The utilisation of what?: comparable(model, printed, convention, ...)."""

from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.planning.model import Model

CONVENTIONS = "model", "hardware", "causal", "parameters", "parameters and scores"
AGAIN = "none", "selective", "full"
KINDS = [{}, {"gated": True, "tied": False, "positions": False}, {"tied": False}]
KINDS += [{"gated": True, "kv_heads": 2, "positions": False, "tied": False}]
KINDS += [{"head_size": 32}]
PEAKS = [(1979.0, 989.0), (989.0, 989.0), (312.0, 989.0)]
SIX_DIGITS = lambda came, wanted, case: near(came, wanted, 1e-5)
ex = Exercise("16.1", agrees=SIX_DIGITS, processes=())


@ex.cases
def cases(rng):
    """Every convention, with each recomputation and each order of the peaks."""
    pairs = [(convention, again) for convention in CONVENTIONS for again in AGAIN]
    for number, (convention, again) in enumerate(pairs):
        heads = 4 * int(rng.integers(1, 5))
        layers, words = int(rng.integers(2, 6)), int(rng.integers(100, 3000))
        layers = 1 if again == "none" else layers
        sizes = layers, 16 * heads, heads, words, 16 * int(rng.integers(8, 60))
        model = Model(*sizes, **KINDS[number % len(KINDS)])
        printed = round(float(rng.uniform(0.2, 0.5)), 3)
        peaks = PEAKS[(number + number // 3) % 3]
        given = model, printed, convention, again, peaks
        text = f"{convention}, {again} recomputed, peaks {peaks}"
        yield Case(1, text, [given], [truth(*given)])


def truth(model, printed, convention, recompute, peaks):
    """The share that comes of the rate: FLOP/s of the author, rows, FLOP/s."""
    scores, s = model.layers * 4 * model.sequence**2 * model.q, model.sequence
    own, six = model.flops(1), 6 * model.parameters * s
    again = {"none": 0, "selective": scores, "full": model.flops(1, "full") - own}
    counted = own, own + again[recompute], own - 3 * scores / 2, six, six + 3 * scores
    rows = printed * peaks[0] / counted[CONVENTIONS.index(convention)]
    return rows * own / peaks[1]


given = lambda case: case.inputs[0]
kept = lambda name, again: lambda case: given(case)[2:4] == (name, again)
ex.boundaries(
    only_scores_again=kept("hardware", "selective"),
    all_again=kept("hardware", "full"),
    none_again=kept("hardware", "none"),
    one_block=lambda case: given(case)[0].layers == 1,
    wide_heads=lambda case: given(case)[0].q != given(case)[0].hidden,
    few_heads=lambda case: given(case)[0].kv != given(case)[0].q,
    equal_peaks=lambda case: given(case)[4][0] == given(case)[4][1],
    lower_peak=lambda case: given(case)[4][0] < given(case)[4][1],
    recomputation_not_counted=kept("parameters and scores", "full"),
)

# Texts of the answer, for edits

AGAIN_ALL, CAUSAL = "model.flops(1, recompute)", "model.flops(1, causal=True)"
SIX, SCORES = "6 * model.parameters", "3 * model.layers * model.scores()"
IF_SCORES = 'if convention == "parameters and scores":'
PRINTED, RATIO, PEAK = "return printed", "useful / counted", "* used / dense"

# Mistakes of its own

ex.slip("upside down", {RATIO: "counted / useful"}).says("""
    It multiplies where it should divide: the ratio of the FLOPs is upside down.
    Hint: If an author counts more FLOPs than the model needs, is the comparable
    utilisation higher or lower?
""")
ex.slip("peaks", {PEAK: ""}).says("""
    It does not turn a share of the one peak into a share of the other.
    Hint: The printed share is one of the author's peak. What share is it of yours? A
    share of a higher peak is a larger share of a lower one.
""")
ex.slip("peaks", {PEAK: "* dense / used"})
ex.slip("recomputed", {AGAIN_ALL: "model.flops(1)"}).says("""
    In the convention "hardware" it does not count what this run has recomputed.
    Hint: `flops` takes the kind of recomputation as an argument.
""")
ex.slip("recomputed", {AGAIN_ALL: 'model.flops(1, "full")'})
ex.slip("parameters", {SIX: "2 * model.parameters"}).says("""
    In a convention with parameters it counts too few FLOPs, or too many.
    Hint: A backward pass takes twice as many FLOPs as a forward pass, so there are 6
    for each parameter and token. "parameters" has no scores.
""")
forward = {SCORES: "model.layers * model.scores()"}
ex.slip("parameters", {SIX: "2 * model.parameters", **forward})
ex.slip("parameters", {IF_SCORES: "if True:"})
ex.slip("scores", {SCORES: "3 * model.scores()"}).says("""
    In "parameters and scores" it does not count the scores of all blocks, forward and
    backward.
    Hint: `model.scores()` counts those of one block and a row, forward. What is left?
""")
ex.slip("scores", forward)
ex.slip("scores", {SCORES: "0"})
everywhere = {'if convention == "hardware"': 'if convention in ("hardware", "model")'}
everywhere[CAUSAL] = "model.flops(1, recompute, causal=True)"
ex.slip("elsewhere", everywhere).says("""
    It counts recomputed products in a convention where they play no role.
    Hint: Which of the five conventions includes what is computed twice?
""")
ex.slip("no table", {SIX: "6 * (model.parameters - model.table)"}).says("""
    It leaves a table of tokens out of the parameters.
    Hint: What does "every parameter" include? This convention takes 6 FLOPs for each,
    whether it is used in a product or not.
""")
ex.slip("half of everything", {CAUSAL: "model.flops(1) / 2"}).says("""
    It takes half of all FLOPs for "causal".
    Hint: Only the scores have a triangle of which half is needed.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {"* model.sequence": ""})
ex.right({PRINTED: "return round(printed", "used / dense": "used / dense, 7)"})
ex.right({RATIO: "(1 / (counted / useful))", PEAK: "/ (dense / used)"})

ex.variation(
    "b",
    varied="which of the two peaks comes first",
    differs="It takes the first peak for the author's, as in the public exercise, but "
    "here the second one is.",
    given=lambda n, *given: (*given[:-1], given[-1][::-1]),
)
