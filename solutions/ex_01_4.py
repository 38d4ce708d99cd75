"""01.4 On a napkin: product(D, N, tflops, tbs)."""

import math

from d2lpar.checks.napkin import Napkin

D, N, tflops, tbs = (4096, 32768), (1, 2048), (100.0, 1000.0), (1.0, 8.0)
ex = Napkin("01.4", D=D, N=N, tflops=tflops, tbs=tbs)


@ex.formula
def estimate(D, N, tflops, tbs):
    bound = tflops / tbs / (1 - 2 * tflops / tbs / D)
    return max(N * D / tflops, (D + 2 * N) / tbs) * 2 * D / 1e12, math.ceil(bound)


ex.boundaries(arithmetic=lambda case: case.expected[0][1] <= case.facts["N"])
ex.forgot(width={"moved = 2 *": "moved = 4 *"}, binary={"tbs * 1e12": "tbs * 2**40"})
ex.slip("weights alone", {"D * D + 2 * N * D": "D * D"}).says("""
    It moves the weights alone.
    Hint: What else does a product read, and what does it write? How many numbers?
""")
ex.slip("sum", {"max(arithmetic, memory)": "arithmetic + memory"}).says("""
    It adds the two times.
    Hint: A GPU computes and moves at the same time. Which of the two is it waiting for?
""")
ex.slip("one FLOP", {"2 * N * D * D,": "N * D * D,"}).says("""
    It counts one FLOP for each weight and example.
    Hint: Each weight is multiplied by a number, and the product is added to a sum.
""")
ex.slip("rate alone", {" * D / (D - 2 * ridge)": ""}).says("""
    Its smallest batch is the FLOPs per byte of the machine, and a little too small.
    Hint: The inputs and outputs grow with N, too. How many bytes are they at that N?
""")
ex.slip("down", {"math.ceil": "math.floor"}).says("""
    Its batch is one example too small.
    Hint: With the number that you return, arithmetic has to take at least as long.
""")
ex.wrong("raises", {"return ": "return 1 / 0, "})
ex.right({"2 * (D * D + 2 * N * D)": "2 * D * D + 4 * N * D"})
