"""13.5 On a napkin: step_and_idle(p, v, m, billions, tokens, tflops)."""

from d2lpar.checks.napkin import Napkin

pieces = {"p": (2, 32), "v": (1, 5), "m": (32, 256)}
sizes = {"billions": (0.5, 400.0), "tokens": (512, 16384)}
ex = Napkin("13.5", **pieces, **sizes, tflops=(100.0, 1000.0))


@ex.formula
def pipeline(p, v, m, billions, tokens, tflops):
    """The whole batch on one GPU, shared by p, and what fills and drains."""
    work = 6 * billions * tokens * m / (1000 * tflops)
    slots = (m * v + p - 1) / (m * v)
    return work / p * slots, 1 - 1 / slots


ex.boundaries(plain=lambda case: case.facts["v"] == 1)
ex.forgot(
    backward={"6 * billions": "2 * billions"},
    binary={"tflops * 1e12": "tflops * 2**40"},
    percent={"bubble / (m + bubble)": "100 * bubble / (m + bubble)"},
    other_part={"bubble / (m + bubble)": "m / (m + bubble)"},
    by_the_rest={"bubble / (m + bubble)": "bubble / m"},
)
ex.slip("each stage", {"1e9 / p": "1e9"}).says("""
    It lets every rank compute the whole network.
    Hint: Which part of the parameters has a rank? Its stages together have 1/p.
""")
ex.slip("long stages", {"(p - 1) / v": "(p - 1)"}).says("""
    It fills and drains the pipeline with all stages of a rank.
    Hint: A micro-batch goes on as soon as one stage is over, a v-th of the rank's work.
""")
ex.wrong("raises", {"return (m": "return 1 / (p - p) * (m"})
ex.right({"(p - 1) / v": "(p / v - 1 / v)"})
