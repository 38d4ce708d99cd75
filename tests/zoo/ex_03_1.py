"""03.1 Mend the mean: average(means, counts, wire)."""

import torch

from zoo import right, wrong


@right
def star_without_the_empty(means, counts, wire):
    if counts[0]:
        means[0] *= counts[0]
    else:
        means[0].zero_()
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += counts[i] * wire.send(means[i], i, 0)
    means[0] /= sum(counts)
    for i in range(1, len(means)):
        means[i].copy_(wire.send(means[0], 0, i))


@right
def a_ring_of_weighted_sums(means, counts, wire):
    n = len(means)
    for x, k in zip(means, counts, strict=True):
        x[:] = torch.nan_to_num(x) * k / sum(counts)
    chunks = [x.tensor_split(n) for x in means]
    for k in range(2 * (n - 1)):
        for i in range(n):
            c, j = (i - k) % n, (i + 1) % n
            coming = wire.send(chunks[i][c], i, j)
            chunks[j][c][:] = coming + chunks[j][c] if k < n - 1 else coming


@right
def along_a_line_and_back(means, counts, wire):
    """The sum is handed on from device to device."""
    last = len(means) - 1
    for i, (x, k) in enumerate(zip(means, counts, strict=True)):
        x[:] = x * k if k else 0
        if i:
            x += wire.send(means[i - 1], i - 1, i)
    means[last] /= sum(counts)
    for i in range(last, 0, -1):
        means[i - 1][:] = wire.send(means[i], i, i - 1)


@wrong("stale")
def as_it_was_given_but_weighted(means, counts, wire):
    means[0].copy_(means[0] * counts[0] if counts[0] else means[0] * 0)
    means[0].nan_to_num_()
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += counts[i] * wire.send(means[i], i, 0)
    means[0] /= sum(counts)
    for i in range(1, len(means)):
        means[i] = wire.send(means[0], 0, i)


@wrong("stale")
def exactly_as_it_was_given(means, counts, wire):
    for i in range(1, len(means)):
        means[0] += wire.send(means[i], i, 0)
    means[0] /= len(means)
    for i in range(1, len(means)):
        means[i] = wire.send(means[0], 0, i)


@wrong("nan")
def weight_zero(means, counts, wire):
    means[0] *= counts[0]
    for i in range(1, len(means)):
        means[0] += counts[i] * wire.send(means[i], i, 0)
    means[0] /= sum(counts)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)


@wrong("nan")
def device_0_is_never_empty(means, counts, wire):
    means[0] *= counts[0]
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += counts[i] * wire.send(means[i], i, 0)
    means[0] /= sum(counts)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)


@wrong("unweighted")
def mean_of_those_that_have_one(means, counts, wire):
    means[0].nan_to_num_()
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += wire.send(means[i], i, 0)
    means[0] /= sum(k > 0 for k in counts)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)


@wrong("unweighted")
def empty_ones_count_as_zero(means, counts, wire):
    for x in means:
        x.nan_to_num_()
    for i in range(1, len(means)):
        means[0] += wire.send(means[i], i, 0)
    means[0] /= len(means)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)


@wrong("undivided")
def forgets_to_divide(means, counts, wire):
    means[0][:] = means[0].nan_to_num() * counts[0]
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += counts[i] * wire.send(means[i], i, 0)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)


@wrong("costly")
def everyone_to_everyone(means, counts, wire):
    n = len(means)
    terms = [
        x.nan_to_num() * k / sum(counts) for x, k in zip(means, counts, strict=True)
    ]
    for j in range(n):
        come = [terms[i] if i == j else wire.send(terms[i], i, j) for i in range(n)]
        means[j][:] = sum(come)


@wrong("off the wire")
def reads_what_is_elsewhere(means, counts, wire):
    pairs = zip(means, counts, strict=True)
    total = sum(x * k for x, k in pairs if k) / sum(counts)
    for x in means:
        x[:] = total


@wrong("unsent")
def by_numbers_of_python(means, counts, wire):
    """Right, and nothing is ever sent."""
    total = torch.zeros(len(means[0]), dtype=torch.float64)
    for x, k in zip(means, counts, strict=True):
        if k:
            total += torch.tensor(x.tolist(), dtype=torch.float64) * k
    for x in means:
        x[:] = total.clone() / sum(counts)


@wrong("stale")
def nothing_comes_back_to_the_empty(means, counts, wire):
    """A device without examples keeps its NaN."""
    full = [i for i, k in enumerate(counts) if k]
    means[full[0]] *= counts[full[0]]
    for i in full[1:]:
        means[full[0]] += counts[i] * wire.send(means[i], i, full[0])
    means[full[0]] /= sum(counts)
    for i in full[1:]:
        means[i][:] = wire.send(means[full[0]], full[0], i)


@wrong("unweighted")
def sum_of_means_over_all_examples(means, counts, wire):
    means[0].nan_to_num_()
    for i in range(1, len(means)):
        if counts[i]:
            means[0] += wire.send(means[i], i, 0)
    means[0] /= sum(counts)
    for i in range(1, len(means)):
        means[i][:] = wire.send(means[0], 0, i)
