"""11.4 On a napkin: turns(billions, width, tokens, p, tflops, gbs, room)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "11.4",
    billions=(1, 400),
    width=(1024, 16384),
    tokens=(512, 16384),
    p=(1, 16),
    tflops=(100.0, 1000.0),
    gbs=(10.0, 900.0),
    room=(24, 192),
)


@ex.formula
def in_turns(billions, width, tokens, p, tflops, gbs, room):
    """A border costs 2 width / (3 billions 10^9) FLOP/s by bytes/s of the work."""
    work = 3 * billions * tokens / (500 * tflops)
    extra = 2 * (p - 1) * width * tflops / (3 * billions * 1e6 * gbs)
    return work * (1 + extra), extra / (1 + extra), -(-16 * billions // room)


ex.forgot(
    backward={"6 * billions * 1e9": "2 * billions * 1e9"},
    width={"2 * tokens * width": "4 * tokens * width"},
    binary={"gbs * 1e9": "gbs * 2**30"},
    other_part={"borders / (c": "computing / (c"},
)
ex.slip("at once", {"(tflops * 1e12)": "(p * tflops * 1e12)"}).says("""
    It lets all GPUs compute at once. Hint: What does the second part wait for?
""")
ex.slip("one way", {"2 * (p - 1)": "(p - 1)"}).says("""
    It counts one direction. Hint: What comes back over each border?
""")
ex.slip("rounded", {"math.ceil(": "round("}).says("It rounds. Hint: Does a rest fit?")
ex.wrong("raises", {"borders / (c": "borders / (p - 1) / (c"})
ex.right({"16 * billions / room": "16 * billions * 1e9 / (room * 1e9)"})
