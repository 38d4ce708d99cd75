"""19.4 On a napkin: lost_time(years, n, stop, restart)."""

from math import sqrt

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "19.4", years=(1.0, 20.0), n=(64, 100000), stop=(0.5, 60.0), restart=(10.0, 600.0)
)


@ex.formula
def lost(years, n, stop, restart):
    """At the best interval, checkpoints and work again cost the same."""
    M = years * 31557600 / n
    return M / 3600, sqrt(2 * M * stop) / 60, sqrt(2 * stop / M) + restart / M


ex.slip("one GPU", {" * 3600 / n": " * 3600"}).says("""
    It takes as long from one failure to the next as for a single GPU.
    Hint: The run stops as soon as any of its GPUs fails.
""")
ex.slip("a whole interval", {"interval / 2 / between": "interval / between"}).says("""
    It loses a whole interval with each failure.
    Hint: When does a failure come, on average, between two checkpoints?
""")
ex.slip("no restarts", {" + restart / between": ""}).says("""
    It restarts in no time.
    Hint: What goes by after each failure until training goes on?
""")
ex.slip("without the 2", {"(2 * between": "(between"}).says("""
    It does not save at the best interval.
    Hint: Where is C / tau + tau / 2M the smallest?
""")
ex.wrong("raises", {"return between": "return 1 / (n - n) + between"})
ex.right({"interval / 2 / between": "0.5 * interval / between"})
