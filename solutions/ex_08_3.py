"""08.3 The forgotten buffers: train(model, batches, lr)."""

import copy

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Drift
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import always, both, wrong
from d2lpar.checks.varying import mirror

ex = Exercise("08.3")
LR = 0.1
WORLDS = (1, 2, 3), (2, 0, 3), (2, 1, 3), (2, 3, 4), (3, 2, 5), (4, 3, 3)


@ex.cases
def cases(rng, reference):
    """Each rank has another start and other data; some steps, or none."""
    for n, steps, D in WORLDS:
        models = [Drift(D, int(seed)) for seed in rng.integers(1, 10**6, size=n)]
        batches = [[*torch.from_numpy(rng.normal(size=(steps, 5, D)))] for _ in models]
        inputs = [(*pair, LR) for pair in zip(models, batches, strict=True)]
        replicas = copy.deepcopy(models)
        for model in replicas:
            model.scale.copy_(models[0].scale)  # it is in no `state_dict`
        state = dict(reference(replicas, batches, LR))
        yield Case.of(n, inputs, [state] * n, steps=steps, features=D)


def allowed(case):
    """Parameters once, buffers before each step and at the end; the gradients."""
    D, steps = case.facts["features"], case.facts["steps"]
    parameters, buffers = 8 * (D * D + D), 8 * D + 16
    return (case.n - 1) * (parameters + (steps + 1) * buffers + 2 * steps * parameters)


steps = lambda case: case.facts["steps"]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    no_batch=lambda case: steps(case) == 0,
    one_batch=lambda case: steps(case) == 1,
    more_than_53_bits=lambda case: case.expected[0]["seen"] > 2**53,
)
total = lambda attempt: sum(attempt.run.bytes_sent)
TOTAL = Requirement("bytes of all ranks", total, allowed, exactly=False)
ex.require(TOTAL, rows.from_messages())

# Texts of the answer, for edits

EACH, SHARE = "for buffer in model.buffers():", "flat_broadcast(buffer, 0)"
BEFORE = f"        {EACH}\n            {SHARE}\n        model.zero"
AT_END = f"    {EACH}\n        {SHARE}\n    return"
LOOP, STATE, P = "for x in batches:", "return model.state_dict()", "flat_broadcast(p"


def everywhere(old, new):
    """Edits: both loops over buffers have this new text."""
    return {loop: loop.replace(old, new) for loop in (BEFORE, AT_END)}


def once(text):
    """Edits: the buffers are shared there, and neither before a step nor at the end."""
    return {BEFORE: "        model.zero", AT_END: "    return"} | text


# Mistakes of its own

ex.slip("never shared", once({})).says("""
    It never shares the buffers, so they differ between the ranks from the start.
    Hint: `model.parameters()` contains no buffers. What else does a module have?
""")
start = f"{EACH}\n        {SHARE}\n    {LOOP}"
ex.slip("only the start", once({LOOP: start})).says("""
    The buffers are equal at the start, but drift apart from step to step.
    Hint: Each forward pass changes the buffers, differently on each rank.
""")
later = {LOOP: "for k, x in enumerate(batches):"}
later[BEFORE] = BEFORE.replace("buffers():", "buffers() if k else ():")
ex.slip("not at the start", later).says("""
    It does not share the buffers before the first forward pass.
    Hint: Every rank starts with other numbers, and the first gradient already depends
    on them.
""")
ex.slip("at the end", {AT_END: "    return"}).says("""
    After the last step, the ranks are left with different buffers.
    Hint: Which of the passes changes the buffers last?
""")
unless = AT_END.replace("buffers():", "buffers() if not batches else ():")
ex.slip("at the end", {AT_END: unless})
floats = "for buffer in [b for b in model.buffers() if b.is_floating_point()]:"
ex.slip("some buffers", everywhere(EACH, floats)).says("""
    It does not share every buffer that the model has at that moment.
    Hint: A buffer may hold integers, it may be missing in `state_dict()`, and a forward
    pass may give its name to a new tensor. Ask the model for all of them, each time.
""")
names = "dict(model.named_buffers())"
saved = f"for buffer in [x for k, x in model.state_dict().items() if k in {names}]:"
ex.slip("some buffers", everywhere(EACH, saved))
found = {LOOP: f"found = list(model.buffers())\n    {LOOP}"}
ex.slip("some buffers", everywhere(EACH, "for buffer in found:") | found)
as_floats = f"y = buffer.double(); {SHARE.replace('buffer', 'y')}; buffer.copy_(y)"
ex.slip("counter", everywhere(SHARE, as_floats)).says("""
    The integer buffer has lost its last digits on the way between ranks.
    Hint: A float64 holds only 53 bits. In which dtype does a large integer survive?
""")


agreed = lambda a: all(same(came, a.came[0]) for came in a.came)
others = always(both(wrong, agreed, lambda a: a.case.n > 1))
last = everywhere(SHARE, "flat_broadcast(buffer, n - 1)")
ex.mistake("root", others, last).says("""
    All ranks return the same state, but it is not the one of rank 0. Perhaps the
    buffers come from another rank, or are a mean.
    Hint: Each buffer is a copy of that of one rank, and of the same one each time.
""")
ex.wrong("root", last | {f"{P}.detach(), 0)": f"{P}.detach(), n - 1)"})
mean = "(ring_allreduce(buffer), buffer.div_(n)) if buffer.is_floating_point() else"
ex.wrong("root", everywhere(SHARE, f"{mean} {SHARE}"))

# Answers to which the general sentences apply

ex.wrong("wrong", {STATE: "return dict(model.named_parameters())"})
ex.wrong("returns None", {STATE: "model.state_dict()"})
again = f"        for p in model.parameters(): {P}.detach(), 0)\n{BEFORE}"
ex.wrong("costly", {BEFORE: again})
ex.wrong("native collective", everywhere(SHARE, "dist.broadcast(buffer, 0)"))
after = f"lr * p.grad / n\n        {EACH}\n            {SHARE}"
ex.right(once({LOOP: start, "lr * p.grad / n": after}))


# All buffers in one message, as bytes
each = "[x.reshape(-1).view(torch.uint8) for x in model.buffers()]"
together = f"""flat = torch.cat({each})
        flat_broadcast(flat, 0)
        for buffer, piece in zip(model.buffers(), flat.split([*map(len, {each})])):
            buffer.copy_(piece.clone().view(buffer.dtype).view(buffer.shape))
"""
ex.right({BEFORE: f"        {together}        model.zero"})

ex.variation(
    "b",
    varied="root: the last rank's model",
    differs="All ranks train rank 0's model, not that of the last rank.",
    part=mirror,
    reads={"rank 0": "the last rank"},
)
