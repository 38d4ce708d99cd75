"""What the exercises of chapter 03 ask for: lists of tensors, one per device, no ranks.

The devices are played.  A tensor knows on which one it is, and refuses to meet a tensor
of another, as on real GPUs.  What goes from one to another goes by `Wire.send`, which
counts it.
"""

from itertools import product

import torch

from ...world.played import Wire, put
from ..judging import Case, Exercise, Mistake, Requirement, same
from ..signs import both, raises, right, wrong


def _numbers(rng, *shape):
    """Positive, so that no sum is near zero."""
    return torch.from_numpy(rng.uniform(1, 9, size=shape))


def _digits(rng, *shape):
    """Whole numbers from 1 to 9, so that a report is easy to read."""
    return torch.from_numpy(rng.integers(1, 10, size=shape)).double()


def _devices(n):
    return f"{n} device{'s' * (n != 1)}"


def _wire(attempt):
    """The wire is the last argument."""
    return attempt.args[0][-1]


class _PerDevice(Requirement):
    """A requirement with a figure for each device."""

    def texts(self, attempt):
        measured, allowed = super().texts(attempt)
        return measured.replace("(rank ", "(device "), allowed


def _deaf(attempt):
    """Devices that have received less than they need, by whatever algorithm."""
    needs = attempt.case.facts["needs"]
    heard = _wire(attempt).elements(len(needs), end=1)
    return sum(a < b for a, b in zip(heard, needs, strict=True))


def _heard_enough():
    """Nothing comes to a device but by the wire."""
    return Requirement(
        "devices that received too little", _deaf, lambda case: 0, instead=_deaf
    )


def _mixed(attempt):
    return raises(RuntimeError)(attempt) and "device" in str(attempt.cause)


OFF_THE_WIRE = Mistake(
    "off the wire",
    _mixed,
    "Tensors of two devices meet in one operation, or one is sent from elsewhere.",
    "`theirs = wire.send(x, src, dst)` is on dst; only there it can be used.",
)
UNSENT = Mistake(
    "unsent",
    both(right, lambda a: _deaf(a) > 0),
    "The values are right, but they have not come by the wire.",
    "What a device needs of another is a message, and is counted.",
)


# 03.1 Mend the mean

COUNTS = (  # examples on each device
    (3,),
    (2, 2),
    (4, 1),
    (5, 0, 2),
    (0, 3, 1, 6),
    (7, 7, 6, 0, 1),
)


def mean_cases(rng):
    """The mean over the share of each device; NaN where there is no example."""
    for counts, size in product(COUNTS, (1, 4)):
        n, means = len(counts), [_numbers(rng, size) for _ in counts]
        total = sum(k * x for k, x in zip(counts, means, strict=True))
        truth = (total / sum(counts)).tolist()
        given = [x if k else x * torch.nan for x, k in zip(means, counts, strict=True)]
        tensors = [put(x, i) for i, x in enumerate(given)]
        yield Case(
            1,
            f"{_devices(n)} with {', '.join(map(str, counts))} examples, S = {size}",
            inputs=[(list(tensors), list(counts), _Owned(tensors))],
            expected=[[truth] * n],
            facts={
                "before": [x.tolist() for x in given],
                "counts": counts,
                "means": means,
                "size": size,
                "needs": [size if n > 1 else 0] * n,
            },
        )


class _Owned(Wire):
    """A wire that remembers whose gradients they are, whatever becomes of a list."""

    def __init__(self, tensors):
        super().__init__()
        self.tensors = tensors


def _gradients(attempt, rank):
    return [x.tolist() for x in _wire(attempt).tensors]


def _like(fake):
    """Every device holds `fake(counts, means)`, and that is wrong."""

    def ask(attempt):
        facts = attempt.case.facts
        x = fake(facts["counts"], facts["means"]).tolist()
        return wrong(attempt) and same(attempt.came[0], [x] * len(facts["counts"]))

    return ask


def _weighted_sum(counts, means):
    return sum(k * x for k, x in zip(counts, means, strict=True))


def _plain_mean(counts, means):
    full = [x for k, x in zip(counts, means, strict=True) if k]
    return sum(full) / len(full)


def _plain_share(counts, means):
    return sum(x for k, x in zip(counts, means, strict=True) if k) / len(counts)


def _stale(attempt):
    """Some device has the mean, and another what it had before."""
    if not wrong(attempt):
        return False
    truth = attempt.case.expected[0][0]
    came, before = attempt.came[0], attempt.case.facts["before"]
    old = [str(a) == str(b) for a, b in zip(came, before, strict=True)]
    return any(old) and any(same(x, truth) for x in came)


def _nan(attempt):
    return wrong(attempt) and "nan" in str(attempt.came[0])


def _total_limit(case):
    return 2 * (len(case.facts["counts"]) - 1) * case.facts["size"]


mean = Exercise(
    "03.1",
    "Mend the mean",
    mean_cases,
    [
        Requirement(
            "elements sent, all devices",
            lambda a: sum(_wire(a).elements(len(a.case.facts["counts"]))),
            _total_limit,
            exactly=False,
        ),
        _heard_enough(),
    ],
    [
        OFF_THE_WIRE,
        Mistake(
            "stale",
            _stale,
            "Some devices still have what they had before.",
            "`means[i] = ...` puts another tensor into the list. `means[i][:] = ...` "
            "writes into the one that is there.",
        ),
        Mistake(
            "nan",
            _nan,
            "A device without examples spoils the mean: 0 times NaN is NaN.",
            "Its tensor must not be added, whatever its weight. It may be device 0.",
        ),
        Mistake(
            "unweighted",
            lambda a: _like(_plain_mean)(a) or _like(_plain_share)(a),
            "Each device counts alike, but their numbers of examples differ.",
            "A mean times its count is a sum again.",
        ),
        Mistake(
            "undivided",
            _like(_weighted_sum),
            "It is the sum over all examples; the mean is wanted.",
        ),
        UNSENT,
        Mistake(
            "costly",
            both(right, lambda a: _wire(a).moved),
            "The mean is right, but more is sent than 2(n-1) S.",
            "Everything to one device and back is enough, and so is a ring.",
        ),
    ],
    outcome=_gradients,
)


# 03.2 A product on a grid

GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (4, 1), (1, 5))
SHAPES = ((2, 6, 6), (3, 7, 5))  # N, D, O


def grid_cases(rng):
    """Device (i, j) of a x b has block i of x, block ij of w, block j of dy."""
    for (a, b), (N, D, O) in product(GRIDS, SHAPES):  # noqa: E741
        x, w, dy = (_digits(rng, *shape) for shape in ((N, D), (D, O), (N, O)))
        xs, dys = x.tensor_split(a, dim=1), dy.tensor_split(b, dim=1)
        ws = [row.tensor_split(b, dim=1) for row in w.tensor_split(a)]
        ys, dxs = (x @ w).tensor_split(b, dim=1), (dy @ w.T).tensor_split(a, dim=1)
        places = list(product(range(a), range(b)))
        blocks = (
            [put(xs[i], d) for d, (i, _) in enumerate(places)],
            [put(ws[i][j], d) for d, (i, j) in enumerate(places)],
            [put(dys[j], d) for d, (_, j) in enumerate(places)],
        )
        truth = _Lists(
            y=[ys[j].tolist() for _, j in places],
            dx=[dxs[i].tolist() for i, _ in places],
            dw=[(xs[i].T @ dys[j]).tolist() for i, j in places],
        )
        added = [(ys[j].numel(), dxs[i].numel()) for i, j in places]
        yield Case(
            1,
            f"{a} x {b} devices, x [{N}, {D}], w [{D}, {O}]",
            inputs=[(*blocks, a, b, Wire())],
            expected=[truth],
            facts={
                "grid": (a, b),
                "added": added,
                "needs": [y * (a > 1) + dx * (b > 1) for y, dx in added],
                "own": [
                    ((x @ w).tolist(), (dy @ w.T).tolist())
                    for x, w, dy in zip(*blocks, strict=True)
                ],
                "before": [[t.tolist() for t in some] for some in blocks],
            },
        )


class _Lists(dict):
    """y, dx and dw, a list per device; shows the first entry that is wrong."""

    shown = ("y", 0)

    def __repr__(self):
        name, d = self.shown
        return f"{name} of device {d}: {self[name][d]}"


def _three_lists(attempt, rank):
    """The three lists that came, or what came in their place."""
    truth = attempt.case.expected[0]
    try:
        lists = dict(zip(truth, attempt.values[rank], strict=True))
        came = _Lists({k: [x.tolist() for x in some] for k, some in lists.items()})
        for name, wanted in truth.items():
            pairs = zip(came[name], wanted, strict=True)
            bad = [d for d, pair in enumerate(pairs) if not same(*pair)]
            if bad:
                came.shown = truth.shown = (name, bad[0])
                break
    except (TypeError, ValueError, AttributeError):
        return attempt.values[rank]
    return came


def _grid_limit(case):
    """A ring of a devices adds y, a ring of b devices adds dx, in whole chunks."""
    a, b = case.facts["grid"]
    limits = []
    for y, dx in case.facts["added"]:
        limits.append(2 * (a - 1) * -(-y // a) + 2 * (b - 1) * -(-dx // b))
    return limits


def _elsewhere(attempt):
    """Results that are on another device than that of their place in the list."""
    if not isinstance(attempt.came[0], dict):
        return 0
    found = [x for some in attempt.values[0] for x in enumerate(some)]
    return sum(getattr(x, "place", d) != d for d, x in found)


def _touched(attempt):
    before = attempt.case.facts["before"]
    after = [[t.tolist() for t in some] for some in attempt.args[0][:3]]
    return sum(a != b for x, y in zip(after, before, strict=True) for a, b in zip(x, y))  # noqa: B905


def _lists(attempt):
    return attempt.came[0] if wrong(attempt) else None


def _no_lists(attempt):
    return wrong(attempt) and not isinstance(attempt.came[0], dict)


def _left_partial(k, name):
    """The k-th result is on some device only the device's own term of the sum."""

    def ask(attempt):
        came = _lists(attempt)
        truth, own = attempt.case.expected[0], attempt.case.facts["own"]
        if not isinstance(came, dict) or same(came[name], truth[name]):
            return False
        return any(same(x, mine[k]) for x, mine in zip(came[name], own, strict=True))

    return ask


def _some_partial(name, k):
    """Partial on some devices, complete on others."""

    def ask(attempt):
        if not _left_partial(k, name)(attempt):
            return False
        truth = attempt.case.expected[0][name]
        pairs = zip(attempt.came[0][name], truth, strict=True)
        a, b = attempt.case.facts["grid"]
        return (a if name == "y" else b) > 1 and any(same(x, t) for x, t in pairs)

    return ask


def _wrong_groups(attempt):
    """Something is added that does not belong there: shapes differ, or a sum of one
    term has become another, or the devices are neither in a row nor in a column."""
    text = str(attempt.cause)
    if raises(RuntimeError)(attempt) and ("size" in text or "shape" in text):
        return True
    came, truth = _lists(attempt), attempt.case.expected[0]
    if not isinstance(came, dict):
        return False
    a, b = attempt.case.facts["grid"]
    pairs = [(divmod(src, b), divmod(dst, b)) for src, dst, _ in _wire(attempt).moved]
    if any(i != k and j != m for (i, j), (k, m) in pairs):
        return True
    alone = (a == 1 and "y") or (b == 1 and "dx")  # what nobody else has a term of
    return bool(pairs and alone) and not same(came[alone], truth[alone])


grid = Exercise(
    "03.2",
    "A product on a grid",
    grid_cases,
    [
        _PerDevice(
            "elements sent by a device",
            lambda a: _wire(a).elements(len(a.case.facts["added"])),
            _grid_limit,
            exactly=False,
        ),
        Requirement("results on another device", _elsewhere, lambda case: 0),
        Requirement("blocks that were changed", _touched, lambda case: 0),
        _heard_enough(),
    ],
    [
        OFF_THE_WIRE,
        Mistake(
            "form",
            _no_lists,
            "It does not return three lists of tensors.",
            "`return ys, dxs, dws`, each with one tensor per device.",
        ),
        Mistake(
            "wrong groups",
            _wrong_groups,
            "It adds blocks that do not belong together.",
            "Device (i, j) is number i b + j. y is added over i, dx over j.",
        ),
        Mistake(
            "stale",
            lambda a: _some_partial("y", 0)(a) or _some_partial("dx", 1)(a),
            "Some devices have the sum, others only their own term of it.",
            "After the sum is complete it must go back to all that gave a term.",
        ),
        Mistake(
            "y is partial",
            _left_partial(0, "y"),
            "y is only the device's own term: the blocks of x are parts of a sum.",
            "Devices with the same j have the same columns of y. Add over i.",
        ),
        Mistake(
            "dx is partial",
            _left_partial(1, "dx"),
            "dx is only the device's own term: the blocks of dy are parts of a sum.",
            "Devices with the same i have the same columns of dx. Add over j.",
        ),
        Mistake(
            "changed",
            lambda a: a.error is None and _touched(a) > 0,
            "A block that came as an argument has been changed.",
            "Add into what you have computed, not into what was given.",
        ),
        UNSENT,
        Mistake(
            "elsewhere",
            both(right, _elsewhere),
            "The values are right, but entry d is not on device d.",
            "What device d shall hold must be sent to it.",
        ),
        Mistake(
            "root",
            both(right, lambda a: max(_grid_limit(a.case)) > 0),
            "It is right, but some device sends more than its share.",
            "Cut the sum into as many chunks as there are devices in it. Each "
            "device takes care of one chunk.",
        ),
    ],
    outcome=_three_lists,
)


# 03.3 When is the last sample done?

LINES = (  # seconds of the stages, seconds of the links between them
    ((3.0,), ()),
    ((1.0, 1.0, 1.0), (0.0, 0.0)),
    ((1.0, 4.0, 2.0), (0.5, 0.25)),
    ((2.0, 1.0), (5.0,)),
    ((2.0, 3.0, 3.0, 1.0), (1.0, 4.5, 0.5)),
    ((6.0, 1.0, 1.0, 1.0, 2.0), (0.5, 2.0, 0.125, 2.5)),
)


def line_cases(rng):
    """Given lines and drawn ones, few samples and many, both ways to run them."""
    drawn = []
    for p in (2, 4, 7):
        times = tuple(float(t) for t in rng.uniform(1, 5, size=p))
        drawn.append((times, tuple(float(t) for t in rng.uniform(0, 6, size=p - 1))))
    for (times, links), m in product((*LINES, *drawn), (1, 3, 20)):
        for pipelined in (True, False):
            way = "a pipeline" if pipelined else "one by one"
            p = len(times)
            yield Case(
                1,
                f"{p} stage{'s' * (p != 1)}, m = {m}, {way}",
                inputs=[(list(times), list(links), m, pipelined)],
                expected=[simulated(times, links, m, pipelined)],
                facts={"times": times, "links": links, "m": m, "way": pipelined},
            )


def simulated(times, links, m, pipelined):
    """Seconds until the last of m samples leaves the last stage, slot by slot.

    Stages and links take turns on the way of a sample, each has one at a time.
    """
    spans = [times[0]]
    for link, time in zip(links, times[1:], strict=True):
        spans += [link, time]
    free, done = [0.0] * len(spans), 0.0
    for _ in range(m):
        ready = 0.0 if pipelined else done
        for k, span in enumerate(spans):
            ready = free[k] = max(ready, free[k]) + span
        done = ready
    return done


def _number(came):
    try:
        return float(came)
    except (TypeError, ValueError):
        return None


def _near(came, wanted, case):
    number = _number(came)
    return number is not None and abs(number - wanted) <= 1e-9 * wanted


def _gives(fake):
    """The wrong answer is `fake(times, links, m)`, and that is not right by chance."""

    def ask(attempt):
        facts = attempt.case.facts
        if not wrong(attempt):
            return False
        value = fake(facts["times"], facts["links"], facts["m"])
        return _near(attempt.came[0], value, attempt.case)

    return ask


def _way(pipelined):
    return lambda attempt: attempt.case.facts["way"] is pipelined


def _slow(times, links):
    return max([*times, *links])


line = Exercise(
    "03.3",
    "When is the last sample done?",
    line_cases,
    [],
    [
        Mistake(
            "no number",
            lambda a: wrong(a) and _number(a.came[0]) is None,
            "It does not return a number of seconds.",
        ),
        Mistake(
            "no links",
            both(
                lambda a: len(a.case.facts["links"]) > 0,
                lambda a: (
                    both(_way(True), _gives(lambda t, c, m: sum(t) + (m - 1) * max(t)))(
                        a
                    )
                    or both(_way(False), _gives(lambda t, c, m: m * sum(t)))(a)
                ),
            ),
            "The links are left out.",
            "The first sample passes every stage and every link.",
        ),
        Mistake(
            "slots",
            both(
                _way(True),
                lambda a: (
                    _gives(lambda t, c, m: (len(t) + m - 1) * max(t))(a)
                    or _gives(lambda t, c, m: (len(t) + m - 1) * _slow(t, c))(a)
                    or _gives(lambda t, c, m: (len(t) + m - 1) * max(t) + sum(c))(a)
                ),
            ),
            "It counts p + m - 1 equal slots, but here no two stages need be equal.",
            "How long is the way of the first sample? How much later comes each next?",
        ),
        Mistake(
            "fast links",
            both(
                _way(True), _gives(lambda t, c, m: sum(t) + sum(c) + (m - 1) * max(t))
            ),
            "It is right only while no link is slower than the slowest stage.",
            "A link carries one sample at a time. What else is like that?",
        ),
        Mistake(
            "one too many",
            both(_way(True), _gives(lambda t, c, m: sum(t) + sum(c) + m * _slow(t, c))),
            "The first sample is counted twice: its way, and a step behind itself.",
        ),
        Mistake(
            "links wait",
            both(
                _way(True),
                lambda a: any(
                    _gives(fake)(a)
                    for fake in (
                        lambda t, c, m: (
                            sum(t) + sum(c) + (m - 1) * (max(t) + max([*c, 0]))
                        ),
                        lambda t, c, m: (
                            sum(t)
                            + sum(c)
                            + (m - 1) * max(map(sum, zip(t, [*c, 0], strict=True)))
                        ),
                    )
                ),
            ),
            "Each stage waits while its result travels. It need not: it goes on.",
            "A stage and the link behind it work at the same time, on two samples.",
        ),
        Mistake(
            "mean",
            both(
                _way(True),
                _gives(
                    lambda t, c, m: (
                        sum(t) + sum(c) + (m - 1) * sum([*t, *c]) / (len(t) + len(c))
                    )
                ),
            ),
            "Samples do not follow at the mean pace. Somebody holds them all up.",
            "Look at the slowest.",
        ),
        Mistake(
            "always a pipeline",
            both(
                _way(False),
                _gives(lambda t, c, m: sum(t) + sum(c) + (m - 1) * _slow(t, c)),
            ),
            "Without a pipeline a sample starts when the last one is through.",
        ),
    ],
    agrees=_near,
)

EXERCISES = [mean, grid, line]
