"""05.6 On a napkin: gather_times(n, mb, us, gbs)."""

from d2lpar.checks.napkin import Napkin

given = {"n": (2, 300), "mb": (0.01, 9000.0), "us": (1.0, 50.0), "gbs": (1.0, 450.0)}
ex = Napkin("05.6", **given)


@ex.formula
def seconds(n, mb, us, gbs):
    """A gather takes what a ring takes; whole tensors follow, n-1 or a few."""
    steps, rounds = n - 1, sum(2**k < n for k in range(9))
    ring = steps * us / 1e6 + steps / n * mb / gbs / 1e3
    whole = us / 1e6 + mb / gbs / 1e3
    return ring + steps * whole, ring + rounds * whole, ring, n * us * gbs / 1e3


ex.boundaries(no_power_of_two=lambda case: case.facts["n"] & (case.facts["n"] - 1))
ex.forgot(binary={"gbs * 1e9": "gbs * 2**30"}, own_part={"size / n": "size / (n - 1)"})
ex.slip("rounds", {"(n - 1).bit_length()": "(n.bit_length() - 1)"}).says("""
    It does not round up the rounds of a tree.
    Hint: After k rounds a tree has reached 2^k ranks. From which k on is it n or more?
""")
ex.slip("whole", {"size / n": "size"}).says("""
    It sends the whole tensor in each message of the gather or of the ring.
    Hint: What does one rank hold at the beginning, and how much of the whole is that?
""")
ex.slip("no gather", {"return ring +": "return", "ring + tree": "tree"}).says("""
    It begins with the broadcast.
    Hint: Before rank 0 can send the whole, it has to collect what the others hold.
""")
ex.slip("message", {"n * alpha / beta": "alpha / beta"}).says("""
    It finds the end of latency for one message that carries the whole tensor.
    Hint: At which S do the bytes of one message of the ring take alpha seconds?
""")
ex.wrong("raises", {"/ beta / 1e6": "/ beta / 1e6 / (n - 2)"})
ex.right({"(n - 1).bit_length()": "sum(2**k < n for k in range(9))"})
