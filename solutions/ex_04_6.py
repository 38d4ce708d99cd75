"""04.6 On a napkin: shift_times(n, mb, us, gbs)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin("04.6", n=(2, 33), mb=(0.01, 1000.0), us=(1.0, 50.0), gbs=(1.0, 450.0))


@ex.formula
def seconds(n, mb, us, gbs):
    """n, two or three, and one message after the other."""
    one = us / 1e6 + mb / gbs / 1e3
    return n * one, (3 if n % 2 else 2) * one, one


ex.boundaries(odd=lambda case: case.facts["n"] % 2)
ex.forgot(binary={"gbs * 1e9": "gbs * 2**30"})
ex.slip("two rounds", {"2 + n % 2": "2"}).says("""
    It forgets the ring of an odd number of ranks.
    Hint: Let the even ranks send first. Which two neighbours are both even?
""")
ex.slip("no latency", {"us * 1e-6 + ": ""}).says("""
    It counts the bytes, and not what each message costs besides.
    Hint: What does a message of no bytes take? That comes with each message.
""")
ex.slip("a line", {"return n * ": "return (n - 1) * "}).says("""
    It counts one message too few.
    Hint: In a ring the last rank sends, too: to rank 0.
""")
ex.slip("bits", {"mb * 1e6": "8 * mb * 1e6"}).says("""
    It counts bits.
    Hint: GB/s are bytes, Gbit/s are bits. Which of them is given?
""")
ex.wrong("raises", {" / (gbs": " / 0 / (gbs"})
ex.right({"2 + n % 2": "(3 if n % 2 else 2)"})
