"""03.4 On a napkin: break_even(D, out, n, gradient, activation)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "03.4",
    D=(64, 16384),
    out=(96, 12288),
    n=(2, 64),
    gradient=(2, 8),
    activation=(1, 4),
)


@ex.formula
def tokens(D, out, n, gradient, activation):
    """The part (n-1)/n of the bytes is in all of them, and cancels."""
    data = 2 * D * out * gradient / activation
    return data / (2 * out + D), data / (out + 2 * D)


ex.forgot(
    half={"data = 2 * ": "data = "},
    width={" * gradient": " * activation"},
    upside_down={" * gradient": " * activation**2 / gradient"},
    own_part={"2 * out + D": "2 * out + n * D", "out + 2 * D": "n * out + 2 * D"},
)
ex.slip("one way", {"(2 * out + D)": "2 * out", "(out + 2 * D)": "out"}).says("""
    It counts what is sent forward, and not what comes back.
    Hint: By rows y is added forward. What has to be put together in the backward pass?
""")
ex.slip(
    "add or stack", {"(2 * out + D)": "(out + D)", "(out + 2 * D)": "(out + D)"}
).says("""
    It lets an addition and a stack send the same.
    Hint: A stack sends (n-1)/n of a tensor. A ring that adds passes each piece twice.
""")
ex.slip("add or stack", {"2 * out + D": "2 * (out + D)", "out + 2": "2 * out + 2"})
ex.slip("columns first", {"/ row, data / column": "/ column, data / row"}).says("""
    It takes rows for columns.
    Hint: Which split adds y, and stacks dx? It sends the more, the wider y is.
""")
ex.wrong("raises", {" / row": " / (row - row)"})
ex.right({"(n - 1) / n * D": "(1 - 1 / n) * D"})
