"""02.4 On a napkin: step_on_a_napkin(billions, layers, width, tokens, tflops, tbs)."""

from d2lpar.checks.napkin import Napkin

ex = Napkin(
    "02.4",
    billions=(0.5, 70.0),
    layers=(12, 96),
    width=(1024, 12288),
    tokens=(1024, 65536),
    tflops=(100.0, 1000.0),
    tbs=(1.5, 8.0),
)


@ex.formula
def step(billions, layers, width, tokens, tflops, tbs):
    """16 bytes of state and 28 bytes moved for each parameter."""
    gigabytes = 16 * billions + 34 * layers * width * tokens / 1e9
    return gigabytes, 6 * billions * tokens / tflops / 1000, 28 * billions / tbs / 1000


ex.forgot(
    backward={"6 * parameters": "2 * parameters"},
    binary={"kept) / 1e9": "kept) / 2**30"},
)
ALL, MOVED = "(2 + 2 + 4 + 8)", "(2 + 4 + 8 + 4 + 8 + 2)"
for missing, edit, hint in (
    ("optimizer's numbers", {ALL: "(2 + 2 + 4)"}, "What has Adam for each parameter?"),
    ("master copy", {ALL: "(2 + 2 + 8)"}, "What does the optimizer step in float32?"),
    ("gradients", {ALL: "(2 + 4 + 8)"}, "What is there when the backward pass ends?"),
    ("activations", {"state + kept": "state"}, "What waits for the backward pass?"),
    ("other layers", {" * layers": ""}, "Which layers wait when the loss is known?"),
    ("writing of the update", {MOVED: "(2 + 4 + 8)"}, "Where do the new numbers go?"),
):
    ex.slip(missing, edit).says(f"It lacks the {missing}. Hint: {hint}")
ex.wrong("raises", {"34 * tokens": "34 / 0 * tokens"})
ex.right({ALL: "16"})
