"""06.6 On a napkin: allreduce_times(k, mb, us, gbs)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin("06.6", k=(1, 12), mb=(0.01, 1e4), us=(1.0, 50.0), gbs=(1.0, 450.0))


@ex.formula
def seconds(k, mb, us, gbs):
    """2(n-1) or 2k latencies, and the bytes of the lower bound."""
    n = 2**k
    passing = 2 * (n - 1) / n * mb / gbs / 1e3
    ring, halving = ((2 * m * us / 1e6 + passing) for m in (n - 1, k))
    return ring, halving, n * us * gbs / 1e3


ex.forgot(
    binary={"gbs * 1e9": "gbs * 2**30"},
    own_part={"2 * (n - 1) / n": "2"},
    half={"2 * (n - 1) / n": "(n - 1) / n"},
)
ex.slip("one way", {"2 * k * alpha": "k * alpha"}).says("""
    It counts the rounds of one half alone.
    Hint: Halving takes log2 n rounds. What does a rank have then, and what is missing?
""")
ex.slip("no latency", {"2 * (n - 1) * alpha + ": ""}).says("""
    It counts a ring's bytes, and not what each message costs besides.
    Hint: What does a ring with a tensor of no bytes take?
""")
ex.slip(
    "one message", {"return ring, halving, n * ": "return ring, halving, "}
).says("""
    It returns the size at which one message is equal in both parts.
    Hint: In a ring a message is only a piece of the tensor. How large a piece?
""")
ex.wrong("raises", {"1 / (gbs * 1e9)": "1 / (0 * gbs)"})
ex.right({"2 * (n - 1) / n * beta": "2 * (1 - 1 / n) * beta"})
