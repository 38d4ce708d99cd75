"""07.4 On a napkin: computing_share(billions, tokens, micro, n, tflops, link)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "07.4",
    billions=(0.5, 70.0),
    tokens=(512, 8192),
    micro=(1, 8),
    n=(1, 64),
    tflops=(100.0, 1000.0),
    link=(25.0, 900.0),
)


@ex.formula
def share(billions, tokens, micro, n, tflops, link):
    """The parameters count once above and once below, and cancel."""
    computing = 6 * micro * tokens / (1000 * tflops)
    sending = 4 * (n - 1) / (n * link)
    return computing / (computing + sending)


ex.forgot(
    backward={"6 * parameters": "2 * parameters"},
    half={"2 * (n - 1)": "(n - 1)"},
    own_part={"2 * (n - 1) / n": "2"},
    width={"2 * parameters  #": "4 * parameters  #"},
    binary={"link * 1e9": "link * 2**30"},
    other_part={"return computing /": "return sending /"},
    percent={"return computing": "return 100 * computing"},
)
ex.slip("each micro-batch", {"/ (link * 1e9)": "* micro / (link * 1e9)"}).says("""
    Its micro-batches change nothing: each one is sent, or only one is computed.
    Hint: When does a rank need the sum over ranks? Before the update, which comes once.
""")
ex.wrong("each micro-batch", {" * tokens * micro": " * tokens"})
ex.wrong("raises", {"return computing": "return computing / (n - 1)"})
ex.right({"(n - 1) / n * ": "(1 - 1 / n) * "})
