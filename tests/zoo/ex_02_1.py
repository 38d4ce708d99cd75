"""02.1 One matrix, many layers: gradients(x, y, W, b, V, c, L)."""

import numpy as np
import torch
import torch.nn.functional as F

from zoo import right, wrong


def passes(x, W, b, L):
    """a^0 to a^L."""
    A = [x]
    for _ in range(L):
        A.append(A[-1] + torch.tanh(A[-1] @ W.T + b))
    return A


def ending(A, y, V, c):
    """delta of the scores, [N, K]."""
    delta = (A[-1] @ V.T + c).softmax(1)
    delta[torch.arange(len(y)), y] -= 1
    return delta / len(y)


@right
def tanh_from_the_difference(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    dV, dc, d = delta.T @ A[-1], delta.sum(0), delta @ V
    dW, db = torch.zeros_like(W), torch.zeros_like(b)
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW += dz.T @ A[k - 1]
        db += dz.sum(0)
        d = d + dz @ W
    return dW, db, dV, dc, d


@right
def one_big_product_at_the_end(x, y, W, b, V, c, L):
    """All layers' terms of dW in a single product, as a list."""
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dzs = delta @ V, []
    for k in range(L, 0, -1):
        dzs.insert(0, d * (1 - (A[k] - A[k - 1]) ** 2))
        d = d + dzs[0] @ W
    stacked, before = torch.cat(dzs), torch.cat(A[:-1])
    ones = torch.ones(len(stacked), dtype=x.dtype)
    bias = (stacked * ones[:, None]).sum(0)
    return [stacked.T @ before, bias, delta.T @ A[-1], delta.sum(0), d]


@right
def einsum_everywhere(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    dV, d = torch.einsum("nk,nd->kd", delta, A[-1]), torch.einsum("nk,kd->nd", delta, V)
    dW, db = 0, 0
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]).square())
        dW, db = dW + torch.einsum("no,ni->oi", dz, A[k - 1]), db + dz.sum(0)
        d = d + torch.einsum("no,oi->ni", dz, W)
    return dW, db, dV, delta.sum(0), d


@wrong("not five")
def without_dx(x, y, W, b, V, c, L):
    return tanh_from_the_difference(x, y, W, b, V, c, L)[:4]


@wrong("transposed")
def weights_not_turned(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, 0, 0
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW, db = dW + A[k - 1].T @ dz, db + dz.sum(0)
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("transposed")
def head_the_wrong_way(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    return tanh_from_the_difference(x, y, W, b, V, c, L)[:4] + (
        ending(A, y, V, c) @ V.T,
    )


@wrong("unsummed")
def biases_per_example(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, 0, 0
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW, db = dW + dz.T @ A[k - 1], db + dz
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta, d


@wrong("one use only")
def assigns_and_does_not_add(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    dz = delta @ V * (1 - (A[L] - A[L - 1]) ** 2)
    whole = tanh_from_the_difference(x, y, W, b, V, c, L)
    return dz.T @ A[L - 1], dz.sum(0), *whole[2:]


@wrong("no shortcut")
def as_in_the_chapter(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, 0, 0
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW, db = dW + dz.T @ A[k - 1], db + dz.sum(0)
        d = dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("slope of the sum")
def one_minus_a_squared(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, 0, 0
    for k in range(L, 0, -1):
        dz = d * (1 - A[k] ** 2)
        dW, db = dW + dz.T @ A[k - 1], db + dz.sum(0)
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("no slope")
def forgets_the_tanh(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, 0, 0
    for k in range(L, 0, -1):
        dW, db = dW + d.T @ A[k - 1], db + d.sum(0)
        d = d + d @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("sum for mean")
def never_divides(x, y, W, b, V, c, L):
    return tuple(len(x) * g for g in tanh_from_the_difference(x, y, W, b, V, c, L))


@wrong("by torch")
def autograd_in_disguise(x, y, W, b, V, c, L):
    leaves = [p.clone().requires_grad_() for p in (W, b, V, c, x)]
    W, b, V, c, a = leaves
    for _ in range(L):
        a = a + torch.tanh(a @ W.T + b)
    return torch.autograd.grad(F.cross_entropy(a @ V.T + c, y), leaves)


@wrong("by torch")
def a_function_transform(x, y, W, b, V, c, L):
    def cost(W, b, V, c, x):
        return F.cross_entropy(passes(x, W, b, L)[-1] @ V.T + c, y)

    return torch.func.grad(cost, argnums=(0, 1, 2, 3, 4))(W, b, V, c, x)


@wrong("costly")
def runs_forward_again_for_each_layer(x, y, W, b, V, c, L):
    delta = ending(passes(x, W, b, L), y, V, c)
    dV, d = delta.T @ passes(x, W, b, L)[-1], delta @ V
    dW, db = torch.zeros_like(W), torch.zeros_like(b)
    for k in range(L, 0, -1):
        A = passes(x, W, b, k)
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW, db = dW + dz.T @ A[k - 1], db + dz.sum(0)
        d = d + dz @ W
    return dW, db, dV, delta.sum(0), d


@wrong("overwritten")
def the_last_of_the_loop_stays(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d = delta @ V
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW, db = dz.T @ A[k - 1], dz.sum(0)
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("raises")
def adds_each_example_to_the_bias(x, y, W, b, V, c, L):
    """The message names shapes, and no matrix is transposed."""
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, torch.zeros_like(W), torch.zeros_like(b)
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW += dz.T @ A[k - 1]
        db += dz
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("wrong")
def biases_with_a_row(x, y, W, b, V, c, L):
    dW, db, dV, dc, dx = tanh_from_the_difference(x, y, W, b, V, c, L)
    return dW, db[None], dV, dc[None], dx


@wrong("changed")
def forward_in_place(x, y, W, b, V, c, L):
    A = [x.clone()]
    for _ in range(L):
        x += torch.tanh(x @ W.T + b)
        A.append(x.clone())
    delta = ending(A, y, V, c)
    d, dW, db = delta @ V, torch.zeros_like(W), torch.zeros_like(b)
    for k in range(L, 0, -1):
        dz = d * (1 - (A[k] - A[k - 1]) ** 2)
        dW += dz.T @ A[k - 1]
        db += dz.sum(0)
        d = d + dz @ W
    return dW, db, delta.T @ A[-1], delta.sum(0), d


@wrong("other axis")
def adds_up_the_classes(x, y, W, b, V, c, L):
    dW, db, dV, _, dx = tanh_from_the_difference(x, y, W, b, V, c, L)
    return dW, db, dV, ending(passes(x, W, b, L), y, V, c).sum(1), dx


@wrong("only around")
def forgets_the_way_through_the_tanh(x, y, W, b, V, c, L):
    A = passes(x, W, b, L)
    delta = ending(A, y, V, c)
    d = delta @ V
    dzs = [d * (1 - (A[k + 1] - A[k]) ** 2) for k in range(L)]
    dW = sum(dz.T @ a for dz, a in zip(dzs, A, strict=False))
    return dW, sum(dzs).sum(0), delta.T @ A[-1], delta.sum(0), d


@wrong("sign")
def labels_minus_probabilities(x, y, W, b, V, c, L):
    return tuple(-g for g in tanh_from_the_difference(x, y, W, b, V, c, L))


@wrong("overwritten")
def adds_up_db_only(x, y, W, b, V, c, L):
    dW = the_last_of_the_loop_stays(x, y, W, b, V, c, L)[0]
    return dW, *tanh_from_the_difference(x, y, W, b, V, c, L)[1:]


@wrong("uncounted")
def by_small_steps_in_numpy(x, y, W, b, V, c, L):
    """A complex step beside each number tells its derivative; torch counts nothing."""

    def loss(x, W, b, V, c):
        a = x
        for _ in range(L):
            a = a + np.tanh(a @ W.T + b)
        z = a @ V.T + c
        return (np.log(np.exp(z).sum(1)) - z[range(len(y)), y]).mean()

    values, found = [t.numpy() for t in (x, W, b, V, c)], []
    for k, value in enumerate(values):
        found.append(torch.zeros(value.shape, dtype=x.dtype))
        for i in np.ndindex(value.shape):
            moved = [v.astype(complex) for v in values]
            moved[k][i] += 1e-30j
            found[-1][i] = loss(*moved).imag / 1e-30
    return (*found[1:], found[0])
