"""17.3 The loss of a split sequence: loss_of_texts(losses, targets)."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import naive_allreduce, ring_allreduce
from d2lpar.scatter import all_gather
from d2lpar.tensor_parallel.trips import gather_number
from zoo import right, wrong


def added(*vectors):
    both = torch.stack(vectors).double()
    ring_allreduce(both)
    return both


def own(losses, targets):
    wanted = targets >= 0
    return wanted.double(), (losses * wanted).sum(1), wanted.sum(1).double()


def means(sums, counts, wanted, texts=None):
    texts = texts or max(1, int((counts > 0).sum()))
    counts = counts.clamp(min=1)
    return (sums / counts).sum().item() / texts, wanted / counts[:, None] / texts


@right
def counts_first(losses, targets):
    wanted, sums, counts = own(losses, targets)
    return means(*added(sums, counts), wanted)


@right
def with_autograd(losses, targets):
    """The gradient of a sum that is known except for the other ranks' part."""
    wanted, sums, counts = own(losses, targets)
    every = torch.stack([sums, counts.double()])
    naive_allreduce(every)
    mine = losses.clone().requires_grad_()
    total = (mine * wanted).sum(1) + every[0] - sums
    there = every[1] > 0
    loss = (total[there] / every[1][there]).mean()
    loss.backward()
    return loss.detach(), mine.grad


@wrong("own")
def asks_nobody(losses, targets):
    wanted, sums, counts = own(losses, targets)
    return means(sums, counts, wanted)


@wrong("mean of means")
def averages_means(losses, targets):
    loss, gradient = asks_nobody(losses, targets)
    n = dist.get_world_size()
    (whole,) = added(torch.tensor([loss], dtype=torch.float64))
    return whole.item() / n, gradient / n


@wrong("all tokens")
def over_all_targets(losses, targets):
    wanted, sums, counts = own(losses, targets)
    total, count = added(sums.sum(), counts.sum())
    return total.item() / count.item(), wanted / count


@wrong("padding")
def divides_by_the_length(losses, targets):
    wanted, sums, counts = own(losses, targets)
    length = torch.full_like(counts, targets.shape[1])
    return means(*added(sums, length), wanted)


@wrong("empty texts")
def forgets_empty_texts(losses, targets):
    wanted, sums, counts = own(losses, targets)
    return means(*added(sums, counts), wanted, len(losses))


@wrong("sum")
def adds_texts(losses, targets):
    wanted, sums, counts = own(losses, targets)
    return means(*added(sums, counts), wanted, 1)


@wrong("own counts")
def gradient_of_its_own_mean(losses, targets):
    wanted, sums, counts = own(losses, targets)
    loss, _ = means(*added(sums, counts), wanted)
    return loss, means(sums, counts, wanted)[1]


@wrong("too many bytes")
def gathers_all_losses(losses, targets):
    lengths = gather_number(losses.shape[1], losses)
    found = []
    for mine in (losses, targets.double()):
        every = [mine.new_empty(len(mine), T) for T in lengths]
        all_gather(every, mine.contiguous())
        found.append(torch.cat(every, 1))
    _, sums, counts = own(*found)
    return means(sums, counts, (targets >= 0).double())


@wrong("native collective")
def with_torchs_own(losses, targets):
    wanted, sums, counts = own(losses, targets)
    both = torch.stack([sums, counts.double()])
    dist.all_reduce(both)
    return means(*both, wanted)


@wrong("not a number")
def divides_by_0(losses, targets):
    wanted, sums, counts = own(losses, targets)
    sums, counts = added(sums, counts)
    return (sums / counts).mean(), wanted / counts[:, None] / len(counts)


@wrong("no pair")
def the_loss_alone(losses, targets):
    return counts_first(losses, targets)[0]


@wrong("own counts")
def own_counts_and_the_texts_of_all(losses, targets):
    wanted, sums, counts = own(losses, targets)
    sums, whole = added(sums, counts)
    loss, _ = means(sums, whole, wanted)
    return loss, means(sums, counts, wanted, int((whole > 0).sum()))[1]


@wrong("gradient of padding")
def the_same_gradient_for_a_whole_text(losses, targets):
    wanted, sums, counts = own(losses, targets)
    return means(*added(sums, counts), torch.ones_like(wanted))


@wrong("own part")
def the_loss_of_its_own_tokens(losses, targets):
    _, gradient = counts_first(losses, targets)
    return (losses * gradient).sum(), gradient


@wrong("own texts")
def counts_the_texts_that_it_has(losses, targets):
    wanted, sums, counts = own(losses, targets)
    texts = max(1, int((counts > 0).sum()))
    return means(*added(sums, counts), wanted, texts)


@wrong("word 0")
def drops_the_first_word(losses, targets):
    return counts_first(losses, targets.masked_fill(targets == 0, -100))


@wrong("wrong")
def in_float32(losses, targets):
    loss, gradient = counts_first(losses, targets)
    return loss, gradient.float()


@wrong("wrong")
def gradient_first(losses, targets):
    return counts_first(losses, targets)[::-1]
