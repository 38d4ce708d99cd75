"""14.4 On a napkin: meeting(n, rows, features, hidden, outputs, gbs)."""

from d2lpar.checks.napkin import Napkin

widths = {"features": (256, 32768), "hidden": (512, 16384), "outputs": (10, 8192)}
sizes = {"n": (2, 64), "rows": (16, 4096), **widths, "gbs": (1.0, 450.0)}
ex = Napkin("14.4", **sizes)


@ex.formula
def meet(n, rows, features, hidden, outputs, gbs):
    """Adds up hidden rows of weights, or all rows of the batch."""
    one = 2 * 4 * (n - 1) / n * (features + outputs) / (gbs * 1e9)
    return one * hidden, one * (n * rows), hidden / n


gradients_win = lambda case: case.facts["n"] * case.facts["rows"] > case.facts["hidden"]
ex.boundaries(gradients_win=gradients_win)
ex.forgot(
    half={"one * hidden": "one / 2 * hidden"},
    own_part={"(n - 1) / n": "1"},
    width={"n * 4": "n * 2"},
    binary={"1e9": "2**30"},
)
ex.slip("own rows", {"one * n * rows": "one * rows"}).says("""
    It lets one rank's rows meet. Hint: Whose rows do the dense layers take?
""")
ex.slip("no way back", {"one * n * rows": "one / 2 * n * rows"}).says("""
    It sends the rows one way. Hint: What has to return to the ranks with these rows?
""")
ex.slip("whole batch", {"hidden / n": "hidden"}).says("""
    Its third number is the rows of all ranks. Hint: How many of these has each rank?
""")
ex.wrong("raises", {"return one * hidden": "return one / (n - n) * hidden"})
ex.right({"one * n * rows": "one * (n * rows)"})
