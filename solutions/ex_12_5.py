"""12.5 On a napkin: forward_times(h, tokens, t, tflops, gbs)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "12.5",
    h=(1024, 16384),
    tokens=(512, 16384),
    t=(1, 16),
    tflops=(100.0, 1000.0),
    gbs=(25.0, 900.0),
)


@ex.formula
def times(h, tokens, t, tflops, gbs):
    """For each token and feature: 24 h and 4 tokens FLOPs, and 4 bytes, 2 (t-1)/t."""
    products = 4 * tokens * h * (6 * h + tokens) / (t * tflops * 1e12)
    sums = 8 * (t - 1) * tokens * h / (t * gbs * 1e9)
    return products, sums, sums / (products + sums)


ex.forgot(
    own_part={"2 * (t - 1) / t": "2"},
    width={"2 * tokens * h  #": "4 * tokens * h  #"},
    binary={"gbs * 1e9": "gbs * 2**30"},
    other_part={"sums / (p": "products / (p"},
    by_the_rest={"sums / (products + sums)": "sums / products"},
)
ex.slip("scores", {" + 4 * tokens**2 * h": ""}).says("""
    It counts the weights alone, or too few of the scores.
    Hint: Each query meets all tokens' keys, and then as many values.
""")
ex.slip("scores", {" + 4 * tokens": " + 2 * tokens"})
ex.slip("one sum", {"sums = 2 * one": "sums = one"}).says("""
    It counts half of what a rank sends.
    Hint: How many halves has a block, and how many a ring all-reduce?
""")
ex.wrong("raises", {"sums / (p": "sums / (t - 1) / (p"})
ex.right({"(t - 1) / t * ": "(1 - 1 / t) * "})
