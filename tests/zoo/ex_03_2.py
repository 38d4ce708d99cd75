"""03.2 A product on a grid: grid_step(xs, ws, dys, a, b, wire)."""

import torch

from zoo import right, wrong


def ring(parts, ids, wire):
    """Sum in place over the devices `ids`; parts[k] is on ids[k]."""
    n = len(ids)
    chunks = [x.view(-1).tensor_split(n) for x in parts]
    for step in range(2 * (n - 1)):
        for k in range(n):
            c, to = (k - step) % n, (k + 1) % n
            coming = wire.send(chunks[k][c], ids[k], ids[to])
            if step < n - 1:
                chunks[to][c].add_(coming)
            else:
                chunks[to][c].copy_(coming)


def star(parts, ids, wire, back=True):
    for k in range(1, len(ids)):
        parts[0] += wire.send(parts[k], ids[k], ids[0])
    for k in range(1, len(ids)) if back else ():
        parts[k].copy_(wire.send(parts[0], ids[0], ids[k]))


def owners(parts, ids, wire):
    n = len(ids)
    chunks = [x.view(-1).tensor_split(n) for x in parts]
    for o in range(n):
        others = [k for k in range(n) if k != o]
        for k in others:
            chunks[o][o].add_(wire.send(chunks[k][o], ids[k], ids[o]))
        for k in others:
            chunks[k][o].copy_(wire.send(chunks[o][o], ids[o], ids[k]))


def column(j, a, b):
    return [i * b + j for i in range(a)]


def row(i, b):
    return [i * b + j for j in range(b)]


def local(xs, ws, dys):
    """Each device's own terms."""
    trios = list(zip(xs, ws, dys, strict=True))
    ys = [x @ w for x, w, _ in trios]
    return ys, [g @ w.T for _, w, g in trios], [x.T @ g for x, _, g in trios]


def solve(xs, ws, dys, a, b, wire, add_y=ring, add_dx=ring):
    ys, dxs, dws = local(xs, ws, dys)
    for j in range(b) if add_y else ():
        ids = column(j, a, b)
        add_y([ys[d] for d in ids], ids, wire)
    for i in range(a) if add_dx else ():
        ids = row(i, b)
        add_dx([dxs[d] for d in ids], ids, wire)
    return ys, dxs, dws


@right
def with_rings(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire)


@right
def with_an_owner_for_each_chunk(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire, owners, owners)


@right
def tuples_and_autograd_and_backward_first(xs, ws, dys, a, b, wire):
    ys, dxs, dws = [], [], []
    for x, w, g in zip(xs, ws, dys, strict=True):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = x @ w
        dx, dw = torch.autograd.grad(y, (x, w), g)
        ys.append(y.detach()), dxs.append(dx.contiguous()), dws.append(dw)
    for i in range(a):
        owners(dxs[i * b : (i + 1) * b], row(i, b), wire)
    for j in range(b):
        ring(ys[j::b], column(j, a, b), wire)
    return tuple(ys), tuple(dxs), tuple(dws)


@wrong("y is partial")
def forward_without_a_sum(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire, add_y=None)


@wrong("dx is partial")
def backward_without_a_sum(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire, add_dx=None)


@wrong("root")
def through_the_first_of_each_group(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire, star, star)


@wrong("stale")
def only_the_first_of_each_group(xs, ws, dys, a, b, wire):
    def reduce(parts, ids, wire):
        star(parts, ids, wire, back=False)

    return solve(xs, ws, dys, a, b, wire, reduce, ring)


@wrong("stale")
def dx_only_on_the_first(xs, ws, dys, a, b, wire):
    def reduce(parts, ids, wire):
        star(parts, ids, wire, back=False)

    return solve(xs, ws, dys, a, b, wire, ring, reduce)


@wrong("wrong groups")
def adds_y_over_j_and_dx_over_i(xs, ws, dys, a, b, wire):
    ys, dxs, dws = local(xs, ws, dys)
    for i in range(a):
        ids = row(i, b)
        ring([ys[d] for d in ids], ids, wire)
    for j in range(b):
        ids = column(j, a, b)
        ring([dxs[d] for d in ids], ids, wire)
    return ys, dxs, dws


@wrong("wrong groups")
def takes_the_devices_column_by_column(xs, ws, dys, a, b, wire):
    ys, dxs, dws = local(xs, ws, dys)
    for j in range(b):
        ids = list(range(j * a, (j + 1) * a))
        ring([ys[d] for d in ids], ids, wire)
    for i in range(a):
        ids = list(range(i, a * b, a))
        ring([dxs[d] for d in ids], ids, wire)
    return ys, dxs, dws


@wrong("root")
def everyone_to_everyone(xs, ws, dys, a, b, wire):
    def add(parts, ids, wire):
        terms = [x.clone() for x in parts]
        for k, x in enumerate(parts):
            for i, term in enumerate(terms):
                if i != k:
                    x += wire.send(term, ids[i], ids[k])

    return solve(xs, ws, dys, a, b, wire, add, add)


@wrong("off the wire")
def one_process_one_sum(xs, ws, dys, a, b, wire):
    ys, dxs, dws = local(xs, ws, dys)
    ys = [sum(ys[k] for k in column(d % b, a, b)) for d in range(a * b)]
    dxs = [sum(dxs[k] for k in row(d // b, b)) for d in range(a * b)]
    return ys, dxs, dws


@wrong("elsewhere")
def the_same_tensor_for_the_whole_group(xs, ws, dys, a, b, wire):
    ys, dxs, dws = solve(xs, ws, dys, a, b, wire)
    return [ys[d % b] for d in range(a * b)], dxs, dws


@wrong("form")
def one_tuple_per_device(xs, ws, dys, a, b, wire):
    return list(zip(*solve(xs, ws, dys, a, b, wire), strict=True))


@wrong("form")
def forgets_dw(xs, ws, dys, a, b, wire):
    return solve(xs, ws, dys, a, b, wire)[:2]


@wrong("changed")
def writes_the_gradient_over_the_weights(xs, ws, dys, a, b, wire):
    ys, dxs, dws = solve(xs, ws, dys, a, b, wire)
    for w, dw in zip(ws, dws, strict=True):
        w[:] = dw
    return ys, dxs, dws


@wrong("unsent")
def by_numbers_of_python(xs, ws, dys, a, b, wire):
    lists = local(xs, ws, dys)
    plain = [
        [torch.tensor(t.tolist(), dtype=torch.float64) for t in some] for some in lists
    ]
    place = [x.new_tensor(0.0) for x in xs]
    ys = [sum(plain[0][k] for k in column(d % b, a, b)) for d in range(a * b)]
    dxs = [sum(plain[1][k] for k in row(d // b, b)) for d in range(a * b)]
    return *([t + p for t, p in zip(s, place, strict=True)] for s in (ys, dxs)), lists[
        2
    ]


@wrong("wrong")
def only_devices_with_columns_of_x_add(xs, ws, dys, a, b, wire):
    """a device whose block of x is empty never gets y."""
    ys, dxs, dws = local(xs, ws, dys)
    for j in range(b):
        ids = [d for d in column(j, a, b) if xs[d].numel()]
        ring([ys[d] for d in ids], ids, wire)
    for i in range(a):
        ring([dxs[d] for d in row(i, b)], row(i, b), wire)
    return ys, dxs, dws


@wrong("single precision")
def adds_into_zeros_of_float32(xs, ws, dys, a, b, wire):
    ys, dxs, dws = solve(xs, ws, dys, a, b, wire)
    for k, dx in enumerate(dxs):
        dxs[k] = torch.zeros(dx.shape)
        dxs[k] += dx
    return ys, dxs, dws


@wrong("y is partial")
def adds_nothing(xs, ws, dys, a, b, wire):
    return local(xs, ws, dys)


@wrong("too much")
def adds_finished_chunks_again(xs, ws, dys, a, b, wire):
    def add(parts, ids, wire):
        owners(parts, ids, wire)
        if len(ids) > 1:
            parts[0] += wire.send(parts[1], ids[1], ids[0])

    return solve(xs, ws, dys, a, b, wire, add, owners)


@wrong("form")
def in_a_dictionary(xs, ws, dys, a, b, wire):
    return dict(zip(("y", "dx", "dw"), solve(xs, ws, dys, a, b, wire), strict=True))


@wrong("form")
def with_the_number_of_devices(xs, ws, dys, a, b, wire):
    return {"dy": solve(xs, ws, dys, a, b, wire), 2: a * b}
