"""02.2 What does freezing save?: step_bytes(widths, frozen, N)."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.shared.footprint import kept
from zoo import right, wrong


def sizes(widths):
    return [4 * (i * o + o) for i, o in pairwise(widths)]


def trained(widths, frozen):
    return sum(s for s, f in zip(sizes(widths), frozen, strict=True) if not f)


def kept_from(k, widths, N):
    return sum(4 * N * w for w in widths[k:]) + 8 * N + 4


@right
def from_the_lowest_trained_layer_on(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, kept_from(frozen.index(False), widths, N)


@right
def backwards_layer_by_layer(widths, frozen, N):
    """Counts from the loss down, until no trained layer is left."""
    grads, kept = 0, 0
    left = len(frozen) - sum(frozen)
    if left:
        kept = 4 * N * widths[-1] + 8 * N + 4
    for k in range(len(frozen) - 1, -1, -1):
        if left:
            kept += 4 * N * widths[k]
        if not frozen[k]:
            left -= 1
            grads += 4 * (widths[k] + 1) * widths[k + 1]
    return [grads, 2.0 * grads, kept]


@wrong("not three numbers")
def a_total(widths, frozen, N):
    return sum(from_the_lowest_trained_layer_on(widths, frozen, N))


@wrong("frozen gradients")
def all_have_gradients(widths, frozen, N):
    _, state, kept = from_the_lowest_trained_layer_on(widths, frozen, N)
    return sum(sizes(widths)), state, kept


@wrong("frozen state")
def adam_for_all(widths, frozen, N):
    grads, _, kept = from_the_lowest_trained_layer_on(widths, frozen, N)
    return grads, 2 * sum(sizes(widths)), kept


@wrong("still")
def the_loss_is_always_kept(widths, frozen, N):
    if all(frozen):
        return 0, 0, kept_from(len(frozen), widths, N)
    return from_the_lowest_trained_layer_on(widths, frozen, N)


@wrong("saves nothing")
def every_activation(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, kept_from(0, widths, N)


@wrong("saves too much")
def inputs_of_trained_layers(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    pairs = zip(widths[:-1], frozen, strict=True)
    inputs = sum(4 * N * w for w, f in pairs if not f)
    return P, 2 * P, inputs + kept_from(len(frozen), widths, N)


@wrong("one too few")
def outputs_of_the_lowest(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, kept_from(frozen.index(False) + 1, widths, N)


@wrong("twice")
def relu_and_product(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P, low = trained(widths, frozen), frozen.index(False)
    again = sum(4 * N * w for w in widths[low + 1 : -1])
    return P, 2 * P, kept_from(low, widths, N) + again


@wrong("without the loss")
def hidden_layers_only(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, sum(4 * N * w for w in widths[frozen.index(False) : -1])


@wrong("without the loss")
def without_the_labels(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, sum(4 * N * w for w in widths[frozen.index(False) :])


@right
def counts_in_a_step_that_it_takes(widths, frozen, N):
    net = nn.Sequential()
    for (i, o), f in zip(pairwise(widths), frozen, strict=True):
        net.append(nn.Linear(i, o).requires_grad_(not f)).append(nn.ReLU())
    net = net[:-1]  # behind the last layer is the loss
    x, y = torch.ones(N, widths[0]), torch.zeros(N, dtype=torch.int64)
    loss, activations = kept(lambda: F.cross_entropy(net(x), y), net.parameters())
    trained = [p for p in net.parameters() if p.requires_grad]
    if not trained:
        return 0, 0, activations
    optimizer = torch.optim.Adam(trained)
    loss.backward()
    optimizer.step()
    states = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    return (
        sum(p.grad.nbytes for p in trained),
        sum(s.nbytes for s in states),
        activations,
    )


@wrong("without the loss")
def without_the_log_probabilities(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    grads, state, kept = from_the_lowest_trained_layer_on(widths, frozen, N)
    return grads, state, kept - 4 * N * widths[-1]


@wrong("wrong")
def labels_of_four_bytes(widths, frozen, N):
    grads, state, kept = from_the_lowest_trained_layer_on(widths, frozen, N)
    return grads, state, kept - 4 * N * (not all(frozen))


@wrong("saves nothing")
def every_relu_is_kept(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P = trained(widths, frozen)
    return P, 2 * P, kept_from(int(frozen[0]), widths, N)


@wrong("saves too much")
def a_relu_only_behind_a_trained_layer(widths, frozen, N):
    if all(frozen):
        return 0, 0, 0
    P, inputs = trained(widths, frozen), 0
    for k, width in enumerate(widths[:-1]):
        inputs += 4 * N * width * (not (frozen[k] and (k == 0 or frozen[k - 1])))
    return P, 2 * P, inputs + kept_from(len(frozen), widths, N)


@wrong("twice")
def products_of_trained_layers_again(widths, frozen, N):
    grads, state, kept = from_the_lowest_trained_layer_on(widths, frozen, N)
    reached = [k for k, f in enumerate(frozen) if not f][1:]
    return grads, state, kept + sum(4 * N * widths[k] for k in reached)


@wrong("no bias")
def weights_only(widths, frozen, N):
    kept = from_the_lowest_trained_layer_on(widths, frozen, N)[2]
    layers = zip(pairwise(widths), frozen, strict=True)
    P = sum(4 * i * o for (i, o), f in layers if not f)
    return P, 2 * P, kept
