"""08.2 What is exposed: exposed(layers, bucket_bytes, seconds)."""

import numpy as np

from d2lpar.checks.equality import numbers
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case


def agrees(came, wanted, case):
    """Two numbers that are right to six digits."""
    came = numbers(came)
    return came.shape == (2,) and np.allclose(came, wanted, rtol=1e-6, atol=1e-12)


ex = Exercise("08.2", agrees=agrees, processes=())
# Bytes per second, and bucket_bytes in MB.
LINKS = [(1e9, 0), (1e9, 2), (2e8, 1), (5e9, 1.5), (1e9, 1000), (1e8, 0.5)]
LINKS += [(3e9, 1e-6), (1e10, 2.5), (6e8, 4), (4e8, 5)]


@ex.cases
def cases(rng):
    """Layers with and without parameters; slow and fast networks."""
    for i, (rate, limit) in enumerate(LINKS):
        layers = []
        for _ in range(int(rng.integers(3, 9)) if i < 8 else 8):
            forward = float(rng.uniform(0.5e-3, 2e-3))
            size = int(rng.integers(200_000, 3_000_000)) * (rng.random() >= 0.25)
            layers.append((forward, 2 * forward, size))
        if i in (3, 7):
            layers[0] = (*layers[0][:2], 0)  # nothing left to send at the end
        yield call(layers, round(limit * 1e6), rate)
    layers = [(1e-3, 2e-3, million * 10**6) for million in (1, 0, 2, 0, 1, 1)]
    yield call(layers, 2 * 10**6, 3e8)  # full to the byte
    yield call(layers, 2 * 10**6 + 1, 3e8)  # and not, for a byte
    yield call(layers, 0, 1e8)  # what has no parameters makes no bucket
    yield call(layers[:1], 2 * 10**6, 1e9)
    yield call(layers[1:2], 0, 1e9)


def call(layers, limit, rate, alpha=5e-5):
    """One case."""

    seconds = lambda size: alpha + size / rate
    text = f"{len(layers)} layer{'s' * (len(layers) > 1)}, buckets of {limit:,} bytes"
    expected = [timing(layers, limit, seconds)]
    return Case(1, f"{text}, {rate / 1e9:g} GB/s", [(layers, limit, seconds)], expected)


def timing(layers, limit, seconds):
    """(step, exposed): from some bucket on, all travel without a gap."""
    clock, sent = sum(forward for forward, _, _ in layers), []
    for _, backward, size in reversed(layers):
        clock += backward
        if size and (not sent or sent[-1][1] >= limit):
            sent.append((clock, size))
        elif size:
            sent[-1] = clock, sent[-1][1] + size
    took = [seconds(size) for _, size in sent]
    ends = [moment + sum(took[k:]) for k, (moment, _) in enumerate(sent)]
    step = max([clock, *ends])
    return step, step - clock


layers = lambda case: case.inputs[0][0]
sizes = lambda case: [size for _, _, size in layers(case)]
hidden = lambda case: case.expected[0][1] == 0
ex.boundaries(
    one_layer=lambda case: len(layers(case)) == 1,
    no_parameters=lambda case: not any(sizes(case)),
    none_in_the_last=lambda case: any(sizes(case)) and not sizes(case)[-1],
    none_in_the_first=lambda case: any(sizes(case)) and not sizes(case)[0],
    no_limit=lambda case: case.inputs[0][1] == 0,
    one_bucket=lambda case: sum(sizes(case)) < case.inputs[0][1],
    full_to_the_byte=lambda case: case.inputs[0][1] in sizes(case),
    all_hidden=lambda case: any(sizes(case)) and hidden(case),
    exposed=lambda case: not hidden(case),
)

# Texts of the answer, for edits

REST = "    if size:\n        buckets.append((moment, size))"
TAKE, FULL, WHERE = "size, moment = size + more, clock", "size >= bucket", "if more:"
QUEUE, ORDER, LATE = "max(free, moment) + sec", "layers[::-1]", "max(free - clock, 0.0)"
RETURN, SEND = f"return max(free, clock), {LATE}", f"free = {QUEUE}onds(size)"

# Mistakes of its own

ex.slip("rest", {REST: ""}).says("""
    It leaves out the last bucket when that bucket is not full.
    Hint: Look at what is left when the backward pass is over.
""")
at_the_end = {REST: REST.replace("moment", "clock")}
ex.slip("moment", at_the_end).says("""
    A bucket does not start when its last gradient is complete.
    Hint: Until when must a bucket wait, and for what need it not wait any more? In the
    backward pass, layers without parameters may follow its last gradient.
""")
ex.slip("moment", {TAKE: "size, moment = size + more, moment if size else clock"})
ex.slip("queue", {QUEUE: "moment + sec"}).says("""
    It starts an all-reduce while the previous one is still on the network.
    Hint: The network carries one bucket at a time.
""")
ex.slip("queue", {SEND: "free = max(free, moment + seconds(size))"})
ex.slip("front", {ORDER: "layers"}).says("""
    It runs the backward passes starting from the first layer.
    Hint: Which gradient is complete first?
""")
ex.slip("front", {ORDER: "layers", **at_the_end})
ex.slip("negative", {LATE: "free - clock"}).says("""
    Its exposed time is negative where the backward pass ends after the network.
    Hint: What is exposed if everything has arrived by the end of the backward pass?
""")
ex.slip("negative", {RETURN: "return free or clock, (free or clock) - clock"})
ex.slip("overfull", {FULL: "size > bucket"}).says("""
    A bucket with exactly `bucket_bytes` still waits for another gradient.
    Hint: A bucket is full as soon as it has `bucket_bytes` or more.
""")
ex.slip("empty bucket", {WHERE: "if True:"}).says("""
    A layer without parameters fills a bucket, though it has nothing to send.
    Hint: `seconds(0)` is not 0, so a bucket without bytes still costs time.
""")
ex.slip("empty bucket", {WHERE: "if more or not bucket_bytes:"})

# Answers to which the general sentences apply

ex.wrong("wrong", {RETURN: f"return {LATE}, max(free, clock)"})
ex.wrong("wrong", {RETURN: f"return {LATE}"})
ex.wrong("wrong", {"free = 0.0": "free = clock"})
ex.wrong("wrong", {RETURN: "return 0.0, 0.0"})
ex.right({RETURN: f"return [clock + {LATE}, {LATE}]"})
ex.right(
    {RETURN: f"import torch; return torch.tensor([clock + {LATE}, {LATE}]).numpy()"}
)
