"""03.2 A product on a grid: grid_step(xs, ws, dys, a, b, wire)."""

from functools import partial
from itertools import chain, product, starmap
from math import ceil

import torch

from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import both, wrong
from d2lpar.checks.solutions.chapter_03 import HEARD, wire
from d2lpar.shared.played import Wire, put

GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (4, 1), (1, 5))
SIZES = ((2, 6, 6), (3, 7, 5))  # N, D, O; the numbers of the second are large
EMPTY = ((3, 1), (1, 2, 2)), ((1, 3), (2, 3, 2)), ((2, 3), (2, 1, 2))


def lists(attempt, rank):
    """The three lists that were returned, or what was returned in their place."""
    value = attempt.values[rank]
    try:
        named = zip(("y", "dx", "dw"), value, strict=True)
        return {name: [x.as_subclass(torch.Tensor) for x in xs] for name, xs in named}
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return [value] if isinstance(value, dict) else value


ex = Exercise("03.2", "grid_reference", outcome=lists)


@ex.cases
def cases(rng, reference):
    """Device (i, j) of a x b has block i of x, block ij of w, block j of dy."""
    for (a, b), (N, D, O) in [*product(GRIDS, SIZES), *EMPTY]:  # noqa: E741
        low, high = (4_000, 9_000) if D == 7 else (1, 10)
        shapes, draw = ((N, D), (D, O), (N, O)), partial(rng.integers, low, high)
        x, w, dy = (torch.tensor(draw(shape)).double() for shape in shapes)
        xs, dys = x.tensor_split(a, dim=1), dy.tensor_split(b, dim=1)
        ws = [row.tensor_split(b, dim=1) for row in w.tensor_split(a)]
        blocks = [(xs[i], ws[i][j], dys[j]) for i in range(a) for j in range(b)]
        placed = [[put(x, d) for x in some] for d, some in enumerate(blocks)]
        sizes = [(N * w.shape[1], N * w.shape[0]) for _, w, _ in blocks]  # of y, dx
        right = zip(("y", "dx", "dw"), reference(x, w, dy, a, b), strict=True)
        yield Case(
            1,
            f"{a} x {b} devices, x [{N}, {D}], w [{D}, {O}]",
            [(*map(list, zip(*placed, strict=True)), a, b, Wire())],
            [dict(right)],
            facts={
                "needs": [(a > 1) * y + (b > 1) * dx for y, dx in sizes],
                "limits": [
                    2 * (a - 1) * ceil(y / a) + 2 * (b - 1) * ceil(dx / b)
                    for y, dx in sizes
                ],
            },
        )


def elsewhere(attempt):
    """Results that are on another device than that of their place in the list."""
    lists = attempt.values[0] if isinstance(attempt.came[0], dict) else []
    pairs = chain(*map(enumerate, lists))
    return sum(getattr(x, "place", d) != d for d, x in pairs)


def changed(attempt):
    """Blocks that are not what they were."""
    after, before = (chain(*x[0][:3]) for x in (attempt.args, attempt.case.inputs))
    return sum(not alike for alike in starmap(same, zip(after, before, strict=False)))


class PerDevice(Requirement):
    """A requirement with a figure for each device."""

    def texts(self, attempt):
        measured, allowed = super().texts(attempt)
        return measured.replace("(rank ", "(device "), allowed


SHARES = PerDevice(
    "elements sent by a device",
    lambda a: wire(a).elements(len(a.case.facts["limits"])),
    lambda case: case.facts["limits"],
    exactly=False,
)
PLACES = Requirement("results on another device", elsewhere, lambda case: 0)
BLOCKS = Requirement("blocks that were changed", changed, lambda case: 0)
ex.require(SHARES, PLACES, BLOCKS, HEARD)


grid = lambda case: case.inputs[0][3:5]  # a, b
devices = lambda case: len(case.inputs[0][0])
cut = lambda case: [w.shape for w in case.inputs[0][1]]
ex.boundaries(
    one_device=lambda case: grid(case) == (1, 1),
    two_devices=lambda case: devices(case) == 2,
    no_power_of_two=lambda case: devices(case) & (devices(case) - 1),
    cut_by_rows=lambda case: grid(case)[1] == 1 < devices(case),
    cut_by_columns=lambda case: grid(case)[0] == 1 < devices(case),
    does_not_divide=lambda case: all(
        len({*k}) > 1 for k in zip(*cut(case), strict=True)
    ),
    no_rows_of_w=lambda case: any(rows == 0 for rows, _ in cut(case)),
    no_columns_of_w=lambda case: any(columns == 0 for _, columns in cut(case)),
    beyond_float32=lambda case: case.expected[0]["y"][0].max() > 2**24,
)

# Texts of the answer, for edits

ADD_Y, ADD_DX = "add([ys[d] for d in ids], ids)", "add([dxs[d] for d in ids], ids)"
COLUMN, ROW = "range(j, a * b, b)", "range(i * b, (i + 1) * b)"
STEPS, RETURN = "2 * (n - 1)", "return ys, dxs, dws"
SEND, COPY = "wire.send(chunks[k][c], ids[k], ids[to])", "copy_(coming)"
STAR = "[{0}[ids[0]].add_(wire.send({0}[d], d, ids[0])) for d in ids[1:]]"
BACK = "[{0}[d].copy_(wire.send({0}[ids[0]], ids[0], d)) for d in ids[1:]]"

# Mistakes of its own

form = both(wrong, lambda attempt: not isinstance(attempt.came[0], dict))
per_device = {RETURN: "return list(zip(ys, dxs, dws))"}
ex.mistake("form", form, per_device).says("""
    It does not return three lists of tensors.
    Hint: End with `return ys, dxs, dws`, each a list with one tensor per device.
""")
ex.wrong("form", {RETURN: "return ys, dxs"})
ex.wrong("form", {RETURN: "return {'y': ys, 'dx': dxs, 'dw': dws}"})
ex.slip("partial", {ADD_Y: "pass"}).says("""
    It returns each device's own term of y or dx and never adds the terms up.
    Hint: Which devices have the same columns of y? Those with the same j, so add over
    i. For dx it is the other way round.
""")
ex.slip("partial", {ADD_DX: "pass"})
ex.slip("partial", {ADD_Y: "pass", ADD_DX: "pass"})
stars = {ADD_Y: STAR.format("ys"), ADD_DX: STAR.format("dxs")}
ex.slip("stale", stars).says("""
    The sums are complete, but not on every device that needs them.
    Hint: A device does not know what another one has added up. Send the finished sum
    back to every device that gave a term.
""")
ex.slip("stale", {ADD_Y: stars[ADD_Y]})
ex.slip("stale", {ADD_DX: stars[ADD_DX]})
ex.slip("stale", {STEPS: "n - 1"})
by_columns = {COLUMN: "range(j * a, (j + 1) * a)", ROW: "range(i, a * b, a)"}
ex.slip("wrong groups", by_columns).says("""
    It adds blocks that do not belong together.
    Hint: Who is device d in the grid? Device (i, j) has number i b + j. Add y over i,
    and dx over j.
""")
over_j = {"for j in range(b)": "for j in range(a)", COLUMN: "range(j * b, (j + 1) * b)"}
over_i = {"for i in range(a)": "for i in range(b)", ROW: "range(i, a * b, b)"}
ex.slip("wrong groups", over_j | over_i)
ex.slip("wrong groups", {COLUMN: "range(a * b)", ROW: "range(a * b)"})

# Answers to which the general sentences apply

ex.wrong("raises", {SEND: "chunks[k][c]"})
ex.wrong("costly", {ADD_Y: f"{STAR}; {BACK}".format("ys")})
ex.wrong("costly", {RETURN: "return [ys[d % b] for d in range(a * b)], dxs, dws"})
over_w = f"[w.copy_(dw) for w, dw in zip(ws, dws)]\n    {RETURN}"
ex.wrong("costly", {RETURN: over_w})
ex.wrong("costly", {SEND: "chunks[to][c].new_tensor(chunks[k][c].tolist())"})
ex.wrong("wrong", {COPY: "add_(coming)"})
ex.wrong("wrong", {COLUMN: "[d for d in range(j, a * b, b) if xs[d].numel()]"})
ex.wrong("wrong", {RETURN: "return [y.float().double() for y in ys], dxs, dws"})
ex.right({RETURN: "return tuple(ys), tuple(dxs), dws", "2 * (n - 1)": "2 * n - 2"})
