"""17.4 On a napkin: ring_round(tokens, n, heads, kv_heads, size, tflops, gbs)."""

from d2lpar.checks.napkin import Napkin

sizes = {"tokens": (4096, 1048576), "n": (2, 128)}
widths = {"heads": (8, 128), "kv_heads": (1, 8), "size": (64, 256)}
rates = {"tflops": (100.0, 1000.0), "gbs": (10.0, 900.0)}
ex = Napkin("17.4", **sizes, **widths, **rates)


@ex.formula
def times(tokens, n, heads, kv_heads, size, tflops, gbs):
    """Two FLOPs for a pair and feature are left, and four bytes for a token."""
    c = tokens / n
    computes = 2 * c * c * heads * size / (tflops * 1e12)
    sends = 4 * c * kv_heads * size / (gbs * 1e9)
    return computes, sends, 2000 * kv_heads * tflops / (heads * gbs)


ex.forgot(binary={"gbs * 1e9": "gbs * 2**30"}, width={"2 * 2 * piece": "2 * 4 * piece"})
ex.slip("no mask", {"size / 2 / flops": "size / flops"}).says("""
    It computes the scores that the mask hides.
    Hint: How many pairs of a query and an earlier key are there among all pairs?
""")
ex.slip("keys alone", {"2 * 2 * piece": "2 * piece"}).says("""
    It sends keys, and no values.
    Hint: What does a rank need besides the scores to form the averages?
""")
ex.slip("all heads travel", {"piece * kv_heads": "piece * heads"}).says("""
    It sends as many heads of keys and values as there are of queries.
    Hint: Several heads of queries share one head of keys. Which of them travels?
""")
ex.slip("scores alone", {"4 * piece**2": "2 * piece**2"}).says("""
    It computes the scores, and no averages.
    Hint: There are two products: queries with keys, and weights with values.
""")
ex.wrong("raises", {"return computes": "return 1 / (n - n), computes"})
ex.right({"size / 2 / flops": "size / (2 * flops)"})
