"""08.5 On a napkin: exposed_and_tokens(billions, tokens, buckets, n, tflops, gbs)."""

from d2lpar.checks.napkin import Napkin

sizes = {"billions": (0.5, 70.0), "tokens": (512, 32768), "buckets": (2, 100)}
rates = {"tflops": (100.0, 1000.0), "gbs": (12.0, 900.0)}
ex = Napkin("08.5", **sizes, n=(2, 64), **rates)


@ex.formula
def hidden(billions, tokens, buckets, n, tflops, gbs):
    """By bucket: its all-reduce and its backward pass, and the longer of them."""
    c = 4 * (n - 1) / n * billions / gbs / buckets
    b = 4 * billions * tokens / tflops / 1e3 / buckets
    return c + (buckets - 1) * max(c - b, 0), tokens * c / b


ex.forgot(
    half={"2 * (n - 1)": "(n - 1)"},
    own_part={"2 * (n - 1) / n": "2"},
    width={"2 * parameters  #": "4 * parameters  #"},
    backward={"4 * parameters": "2 * parameters"},
    binary={"gbs * 1e9": "gbs * 2**30"},
)
ex.slip("forward, too", {"4 * parameters": "6 * parameters"}).says("""
    It hides messages behind the forward pass.
    Hint: Which gradients are there before the backward pass begins?
""")
ex.slip("the first bucket", {"(buckets - 1) * ": "buckets * "}).says("""
    It lets the network start with the backward pass.
    Hint: When is the first bucket full? What does the network do until then?
""")
ex.slip("the last bucket", {"c + (buckets": "(buckets"}).says("""
    It hides the last bucket.
    Hint: What is left to compute when the last gradient is complete?
""")
ex.wrong("raises", {"4 * parameters": "4 / (n - n) * parameters"})
ex.right({"(n - 1) / n * ": "(1 - 1 / n) * "})
