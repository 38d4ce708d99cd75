"""09.4 On a napkin: served(n, servers, gb, gbs, seconds)."""

from math import ceil

from d2lpar.checks.napkin import Napkin

numbers = {"gb": (0.1, 200.0), "gbs": (1.0, 100.0), "seconds": (0.05, 60.0)}
ex = Napkin("09.4", n=(2, 500), servers=(3, 400), **numbers)


@ex.formula
def step(n, servers, gb, gbs, seconds):
    """The busiest port: a server's, or a worker's if there are more servers."""
    one = gb / gbs
    fewest = ceil(2 * one * n / seconds) if 2 * one <= seconds else 0
    step, ring = 2 * one * max(n / servers, 1), 2 * one * (n - 1) / n
    return seconds + step, seconds + ring, fewest


ex.boundaries(more_servers=lambda case: case.facts["servers"] > case.facts["n"])
ex.forgot(
    half={"2 * one * busiest": "one * busiest"},
    own_part={"(n - 1) / n": "1"},
    binary={"gb / gbs": "gb / (gbs * 2**30 / 1e9)"},
)
ex.slip("its own port", {"max(n / servers, 1)": "(n / servers)"}).says("""
    It lets a worker pull faster than its own port can.
    Hint: How many bytes must a worker receive, however many servers there are?
""")
ex.slip("any number", {"if 2 * one <= seconds else 0": ""}).says("""
    It names a number of servers where none is enough.
    Hint: How short is a step with very many servers? Whose port limits it?
""")
ex.slip("rounds down", {"math.ceil(": "int("}).says("""
    Its fewest servers are not enough. Hint: There are no halves of servers.
""")
ex.wrong("raises", {"return step": "return step / (n - n)"})
ex.right({"max(n / servers, 1)": "(n / servers if n > servers else 1)"})
