"""15.4 On a napkin: step(layers, tensor, pipeline, data, rows, F, B, ...)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "15.4",
    layers=(16, 160),
    tensor=(2, 16),
    pipeline=(2, 32),
    data=(2, 128),
    rows=(512, 8192),
    F=(1.0, 20.0),
    B=(2.0, 40.0),
    billions=(1.0, 1000.0),
    rate=(10.0, 400.0),
)


@ex.formula
def pair(layers, tensor, pipeline, data, rows, F, B, billions, rate):
    """The slots of a schedule, and a ring of numbers in two bytes."""
    slots = rows / data + pipeline - 1
    ring = 4 * billions / (tensor * pipeline) * (data - 1) / data / rate
    return slots * layers * (2 * F + B) / pipeline / 1000, ring


ex.forgot(half={"2 * (data - 1)": "(data - 1)"}, own_part={"(data - 1)": "data"})
ex.slip("no bubble", {" + pipeline - 1": ""}).says("""
    It has no bubble. Hint: How long does a stage wait until the pipeline is full?
""")
ex.slip("runs forward once", {"2 * F": "F"}).says("""
    It keeps all activations. Hint: What does recomputing repeat in the backward pass?
""")
ex.slip("all layers", {"layers / pipeline": "layers"}).says("""
    Each stage has all layers. Hint: How many of them has one of the stages?
""")
ex.wrong("raises", {"return seconds": "return 1 / (data - data) + seconds"})
ex.right({"rows / data + pipeline - 1": "pipeline - 1 + rows / data"})
