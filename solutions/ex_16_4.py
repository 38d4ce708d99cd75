"""16.4 On a napkin: training(billions, tokens, gpus, tflops, mfu, dollars)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "16.4",
    billions=(0.5, 1000.0),
    tokens=(10.0, 20000.0),
    gpus=(2, 32768),
    tflops=(100.0, 2500.0),
    mfu=(0.1, 0.7),
    dollars=(0.5, 10.0),
)


@ex.formula
def days_hours_price(billions, tokens, gpus, tflops, mfu, dollars):
    """Exaflops of the training over those of an hour."""
    hours = billions * tokens * 6e6 / (3600 * tflops * mfu)
    return hours / (24 * gpus), hours, hours * dollars / 1e6


ex.forgot(
    backward={"6 * billions": "2 * billions"},
    binary={"tflops * 1e12": "tflops * 2**40"},
)
ex.slip("the data sheet", {"mfu * tflops": "tflops"}).says("""
    It computes as fast as the data sheet promises.
    Hint: Which share of these FLOPs does a training use?
""")
ex.slip("one GPU", {"hours / gpus / 24": "hours / 24"}).says("""
    It takes as many days as one GPU would.
    Hint: The GPUs work at the same time. Which of the three numbers do they share?
""")
ex.slip("hours for days", {"hours / gpus / 24": "hours / gpus"}).says("""
    It returns hours where days are asked for.
    Hint: How many hours has a day?
""")
ex.wrong("raises", {"return hours": "return 1 / (gpus - gpus) + hours"})
ex.right({"hours / gpus / 24": "hours / (24 * gpus)"})
