"""02.3 Mend the accumulation: fit_in_parts(model, optimizer, batches, part, limit)."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo import right, wrong


def pieces(x, y, part):
    return zip(x.split(part), y.split(part), strict=True)


@right
def shares_of_the_mean(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        total = 0.0
        for a, b in pieces(x, y, part):
            loss = F.cross_entropy(model(a), b, reduction="sum") / len(x)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(total)
    return losses


@right
def gradients_in_a_list_of_its_own(model, optimizer, batches, part, limit):
    """Never uses what backward adds up, and clips by hand."""
    losses, weights = [], list(model.parameters())
    for x, y in batches:
        sums, total = [torch.zeros_like(p) for p in weights], 0.0
        for start in range(0, len(x), part):
            rows = slice(start, start + part)
            loss = F.cross_entropy(model(x[rows]), y[rows], reduction="sum")
            for s, g in zip(sums, torch.autograd.grad(loss, weights), strict=True):
                s += g
            total += loss.item()
        norm = sum((s / len(x)).square().sum() for s in sums).sqrt()
        factor = min(1.0, (limit / (norm + 1e-6)).item()) / len(x)
        for p, s in zip(weights, sums, strict=True):
            p.grad = s.mul_(factor)
        optimizer.step()
        losses.append(total / len(x))
    return losses


@wrong("whole graph")
def one_backward_at_the_end(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        total = 0.0
        for a, b in pieces(x, y, part):
            total = total + F.cross_entropy(model(a), b) * (len(a) / len(x))
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(total.item())
    return losses


@wrong("whole graph")
def not_in_parts_at_all(model, optimizer, batches, part, limit):
    return shares_of_the_mean(model, optimizer, batches, 10**6, limit)


@wrong("tensors")
def losses_with_their_graphs(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        total = 0.0
        for a, b in pieces(x, y, part):
            loss = F.cross_entropy(model(a), b) * (len(a) / len(x))
            loss.backward()
            total = total + loss
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(total)
    return losses


@wrong("losses")
def right_steps_and_a_mean_of_means(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        means = []
        for a, b in pieces(x, y, part):
            loss = F.cross_entropy(model(a), b)
            (loss * len(a) / len(x)).backward()
            means.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(sum(means) / len(means))
    return losses


def looped(share, zero=False, clip=False, step=False, clip_at_end=True):
    """A loop with some of the mistakes."""

    def loop(model, optimizer, batches, part, limit):
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            parts, total = list(pieces(x, y, part)), 0.0
            for a, b in parts:
                if zero:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(a), b) * share(len(a), len(x), len(parts))
                loss.backward()
                if clip or step:
                    nn.utils.clip_grad_norm_(model.parameters(), limit)
                if step:
                    optimizer.step()
                    optimizer.zero_grad()
                total += loss.item()
            if clip_at_end:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            if not step:
                optimizer.step()
            losses.append(total)
        return losses

    return loop


def fair(rows, N, parts):
    return rows / N


@wrong("zeroes")
def forgets_all_but_the_last(*args):
    return looped(fair, zero=True)(*args)


@wrong("tensors")
def exactly_as_it_was_given(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        total, parts = 0, 0
        for a, b in pieces(x, y, part):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            total, parts = total + loss, parts + 1
        optimizer.step()
        losses.append(total / parts)
    return losses


@wrong("zeroes")
def as_it_was_given_but_floats(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        total, parts = 0, 0
        for a, b in pieces(x, y, part):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            total, parts = total + loss.item(), parts + 1
        optimizer.step()
        losses.append(total / parts)
    return losses


@wrong("steps")
def a_step_for_each_part(*args):
    return looped(fair, step=True)(*args)


@wrong("clips parts")
def clips_each_sum_so_far(*args):
    return looped(fair, clip=True)(*args)


@wrong("no clip")
def never_clips(*args):
    return looped(fair, clip_at_end=False)(*args)


@wrong("undivided")
def adds_means(*args):
    return looped(lambda rows, N, parts: 1.0)(*args)


@wrong("mean of means")
def divides_by_the_number_of_parts(*args):
    return looped(lambda rows, N, parts: 1 / parts)(*args)


@wrong("no list")
def forgets_to_return(*args):
    shares_of_the_mean(*args)


@wrong("losses")
def measures_after_the_step(model, optimizer, batches, part, limit):
    losses = []
    for batch in batches:
        shares_of_the_mean(model, optimizer, [batch], part, limit)
        x, y = batch
        with torch.no_grad():
            sums = [
                F.cross_entropy(model(a), b, reduction="sum").item()
                for a, b in pieces(x, y, part)
            ]
        losses.append(sum(sums) / len(x))
    return losses


@wrong("costly")
def ten_copies_of_the_gradient(model, optimizer, batches, part, limit):
    """Too much memory, but not because of the whole batch."""
    copies = [[torch.zeros_like(p) for p in model.parameters()] for _ in range(5)]
    losses = shares_of_the_mean(model, optimizer, batches, part, limit)
    del copies
    return losses


@wrong("never zeroes")
def keeps_the_gradients_of_earlier_batches(model, optimizer, batches, part, limit):
    losses = []
    for x, y in batches:
        total = 0.0
        for a, b in pieces(x, y, part):
            loss = F.cross_entropy(model(a), b) * (len(a) / len(x))
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(total)
    return losses


@wrong("clips parts")
def clips_in_the_loop_only(*args):
    return looped(fair, clip=True, clip_at_end=False)(*args)
