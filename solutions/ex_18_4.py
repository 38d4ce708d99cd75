"""18.4 On a napkin: expert_layer(tokens, hidden, width, experts, chosen, ...)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "18.4",
    tokens=(128, 16384),
    hidden=(1024, 8192),
    width=(512, 16384),
    experts=(8, 256),
    chosen=(1, 8),
    ranks=(2, 64),
    tflops=(100.0, 1000.0),
    gbs=(10.0, 900.0),
)


@ex.formula
def times(tokens, hidden, width, experts, chosen, ranks, tflops, gbs):
    """A choice has 4 bytes for a feature, an expert 3 width + 1 weights for it."""
    bytes_sent = 4e-9 * tokens * hidden * chosen * (1 - 1 / ranks)
    products = 6e-12 * tokens * hidden * chosen * width
    share = (3 * width * chosen / experts + 1) / (3 * width + 1)
    return bytes_sent / gbs, products / tflops, share


ex.forgot(binary={"gbs * 1e9": "gbs * 2**30"}, width={"2 * 2 * rows": "2 * 4 * rows"})
ex.slip("one way", {"2 * 2 * rows": "2 * rows"}).says("""
    It sends rows to the experts, and no results home.
    Hint: Where does the next layer need what an expert makes of a row?
""")
ex.slip("own rows", {" * (ranks - 1) / ranks": ""}).says("""
    It sends all rows. Hint: How many of a rank's rows have their expert at home?
""")
ex.slip("once", {"tokens * chosen, 3": "tokens, 3"}).says("""
    It lets each token have one expert. Hint: How many rows does a token become?
""")
ex.wrong("raises", {"return sends": "return 1 / (ranks - ranks), sends"})
ex.right({"/ ranks / (gbs * 1e9)": "/ (ranks * gbs * 1e9)"})
