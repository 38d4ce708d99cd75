"""07.1 The mean over tokens: token_step(model, micro_batches)."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from d2lpar.allreduce import naive_allreduce, ring_allreduce
from zoo import right, wrong


def loss_sum(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")


def count(y):
    return int((y != -100).sum())


def cleared(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p)


def added(model, weight=1.0, allreduce=ring_allreduce):
    for p in model.parameters():
        p.grad *= weight
        allreduce(p.grad)


def two(a, b):
    pair = torch.tensor([float(a), float(b)], dtype=torch.float64)
    ring_allreduce(pair)
    return pair.tolist()


def backward(model, micro_batches, scale=lambda x, y: 1.0):
    """(sum of losses, tokens) of this rank, with the gradients in `.grad`."""
    loss = tokens = 0
    for x, y in micro_batches:
        part = loss_sum(model, x, y)
        (part * scale(x, y)).backward()
        loss, tokens = loss + part.item(), tokens + count(y)
    return loss, tokens


@right
def one_vector(model, micro_batches):
    """Gradients, loss and tokens in one tensor: one all-reduce in all."""
    cleared(model)
    sums = backward(model, micro_batches)
    grads = [p.grad.flatten() for p in model.parameters()]
    flat = torch.cat([*grads, torch.tensor(sums, dtype=torch.float64)])
    ring_allreduce(flat)
    flat, (loss, tokens) = flat[:-2] / flat[-1], flat[-2:].tolist()
    start = 0
    for p in model.parameters():
        p.grad.copy_(flat[start : start + p.numel()].view_as(p))
        start += p.numel()
    return loss / tokens


@right
def counts_before(model, micro_batches):
    """The number of tokens first: then losses are parts of the mean at once."""
    tokens, _ = two(sum(count(y) for _, y in micro_batches), 0)
    model.zero_grad(set_to_none=False)
    loss = torch.zeros(1, dtype=torch.float64)
    for x, y in micro_batches:
        part = loss_sum(model, x, y) / tokens
        part.backward()
        loss += part.detach()
    added(model)
    ring_allreduce(loss)
    return loss


@wrong("mean of means")
def everything_is_a_mean(model, micro_batches):
    cleared(model)
    for x, y in micro_batches:
        out = model(x).flatten(0, 1)
        (F.cross_entropy(out, y.flatten()) / len(micro_batches)).backward()
    added(model, 1 / dist.get_world_size())
    return 0.0


@wrong("mean over ranks")
def right_on_its_own(model, micro_batches):
    cleared(model)
    loss, tokens = backward(model, micro_batches)
    added(model, 1 / max(tokens, 1) / dist.get_world_size())
    loss, tokens = two(loss, tokens)
    return loss / tokens


@wrong("sequences")
def by_sequences(model, micro_batches):
    cleared(model)
    loss, tokens = backward(model, micro_batches, lambda x, y: len(y) / count(y))
    rows, _ = two(sum(len(y) for _, y in micro_batches), 0)
    added(model, 1 / rows)
    return loss


@wrong("padding")
def counts_all_places(model, micro_batches):
    cleared(model)
    loss, _ = backward(model, micro_batches)
    loss, places = two(loss, sum(y.numel() for _, y in micro_batches))
    added(model, 1 / places)
    return loss / places


@wrong("every micro-batch")
def reduces_each_time(model, micro_batches):
    most = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    most[dist.get_rank()] = len(micro_batches)
    ring_allreduce(most)
    total = [torch.zeros_like(p) for p in model.parameters()]
    loss = tokens = 0
    for k in range(int(most.max())):
        cleared(model)
        a, b = backward(model, micro_batches[k : k + 1])
        loss, tokens = loss + a, tokens + b
        added(model)
        for t, p in zip(total, model.parameters(), strict=True):
            t += p.grad
    loss, tokens = two(loss, tokens)
    for t, p in zip(total, model.parameters(), strict=True):
        p.grad = t / tokens
    return loss / tokens


@wrong("old gradients")
def never_clears(model, micro_batches):
    for p in model.parameters():
        p.grad *= 1.0
    old = [p.grad.clone() for p in model.parameters()]
    cleared(model)
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens)
    for p, g in zip(model.parameters(), old, strict=True):
        p.grad += g
    return loss / tokens


@wrong("no micro-batch")
def trusts_in_gradients(model, micro_batches):
    model.zero_grad()
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens)
    return loss / tokens


@wrong("no micro-batch")
def leaves_when_it_has_nothing(model, micro_batches):
    if not micro_batches:
        return 0.0
    cleared(model)
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens)
    return loss / tokens


@wrong("not a number")
def weighs_its_own_mean(model, micro_batches):
    cleared(model)
    loss, mine = backward(model, micro_batches)
    for p in model.parameters():
        p.grad /= mine  # 0/0 without tokens
    loss, tokens = two(loss, mine)
    added(model, mine / tokens)
    return loss / tokens


@wrong("loss")
def tells_its_own_loss(model, micro_batches):
    cleared(model)
    loss, tokens = backward(model, micro_batches)
    _, all_tokens = two(loss, tokens)
    added(model, 1 / all_tokens)
    return loss / max(tokens, 1)


@wrong("weights moved")
def makes_a_step(model, micro_batches):
    cleared(model)
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return loss / tokens


@wrong("bytes")
def by_way_of_rank_0(model, micro_batches):
    cleared(model)
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens, naive_allreduce)
    return loss / tokens


@wrong("native collective")
def asks_torch(model, micro_batches):
    cleared(model)
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens, dist.all_reduce)
    return loss / tokens


@wrong("wrong")
def zeros(model, micro_batches):
    cleared(model)
    return 0.0


@wrong("raises")
def clears_gradients_that_may_be_none(model, micro_batches):
    for p in model.parameters():
        p.grad.zero_()
    loss, tokens = two(*backward(model, micro_batches))
    added(model, 1 / tokens)
    return loss / tokens
