"""10.5 On a napkin: sharded_step(billions, layers, n, tokens, tflops, gbs)."""

from d2lpar.checks.napkin import Napkin

sizes = {"billions": (1.0, 400.0), "layers": (16, 128), "n": (2, 512)}
rates = {"tflops": (100.0, 1000.0), "gbs": (20.0, 900.0)}
ex = Napkin("10.5", **sizes, tokens=(128, 16384), **rates)


@ex.formula
def step(billions, layers, n, tokens, tflops, gbs):
    """Per parameter: 16 bytes in n parts, 10 of five layers, 6 FLOPs and 6 bytes."""
    held = billions * 16 / n
    computes = billions * 6 * tokens / (1000 * tflops)
    moves = billions * 6 * (n - 1) / (n * gbs)
    return held, held + billions * 10 / layers, max(computes, moves), computes + moves


ex.boundaries(moves=lambda case: case.facts["tokens"] / case.facts["tflops"] < 1)
ex.forgot(
    backward={"6 * parameters * tokens": "2 * parameters * tokens"},
    own_part={"3 * (n - 1) / n": "3"},
    width={"1e9, 2": "1e9, 4"},
    binary={"gbs * 1e9": "gbs * 2**30"},
)
ex.slip("two moves", {"3 * (n": "2 * (n"}).says("""
    It makes two moves in a step, as stages 1 and 2 do.
    Hint: How often does stage 3 gather a layer in a step?
""")
ex.slip("two layers", {"5 * bytes_of": "2 * bytes_of"}).says("""
    It counts fewer than five layers beside what a rank holds.
    Hint: The text names five: two gathered ones, two gradients, and one more.
""")
ex.wrong("raises", {"return held": "return held / (n - n)"})
ex.right({"max(computes, moves)": "computes if computes > moves else moves"})
