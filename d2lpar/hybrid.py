"""A different split for every layer: one weird trick, halos, and the cheapest splits.

Convolutions have few weights and much work, dense layers many weights and little work.
So the trick splits the data for the former and the weights for the latter.  Between the
two, all ranks need the activations of all rows, in one pass or in several.  Three ranks
with rows A, B, C, and two rows a rank:

    scheme   pass 0               pass 1     pass 2     in a pass
    a        A0 A1 B0 B1 C0 C1                          all rows
    b        A0 A1                B0 B1      C0 C1      the rows of one rank
    c        A0 B0 C0             A1 B1 C1              some rows of each rank

n ranks, r this rank, N rows of the whole batch, F features between the two halves.
Serial truth: features and classifier on one device, with the whole batch.
Krizhevsky 2014.
"""

import torch
import torch.distributed as dist
from torch import nn

from .data_parallel import sum_gradients
from .domain import DomainConv2d as DomainConv2d
from .domain import halo_exchange as halo_exchange
from .fastest import allreduce
from .scatter import all_gather, members
from .split_choice import best_splits as best_splits
from .tensor_parallel import ColumnParallel, Join, RowParallel, add_bias
from .trips import Arrive, Depart, post, wait
from .world.labels import label


def passes(scheme, rows):
    """Return the passes of a scheme, each a list of (start, stop) by rank.

    rows    how many rows each rank has

    In a pass all ranks take the rows start to stop - 1 of each rank.  A pass
    without any row is left out.
    """
    n = len(rows)
    if scheme == "a":
        found = [[(0, count) for count in rows]]
    elif scheme == "b":
        found = [[(0, rows[i] * (i == k)) for i in range(n)] for k in range(n)]
    elif scheme == "c":
        ends = [[count * k // n for k in range(n + 1)] for count in rows]
        found = [[(e[k], e[k + 1]) for e in ends] for k in range(n)]
    else:
        raise ValueError(f"The schemes are 'a', 'b' and 'c', not {scheme!r}.")
    found = [parts for parts in found if any(a < b for a, b in parts)]
    if not found:
        raise ValueError("No rank has a row.")
    return found


class Rows:
    """Bring some rows of every rank to all ranks, and their gradients back.

    parts    (start, stop) of each rank: the rows of it that travel

    Each rank sends its part to all others.  Backward it gets a partial
    gradient of these rows from each of them, and adds them up.
    """

    def __init__(self, parts, group=None):
        self.parts, self.group = parts, group
        self.n, self.r = members(group)
        self.sizes = [stop - start for start, stop in parts]
        self.others = [i for i in range(self.n) if i != self.r]
        self.gone = False

    def own(self, x):
        """Return this rank's part of its rows, as a view."""
        start, stop = self.parts[self.r]
        return x[start:stop]

    def of_all(self, tensors):
        """Return the rows of this pass, from the rows of all ranks."""
        rows = zip(tensors, self.parts, strict=True)
        return torch.cat([x[start:stop] for x, (start, stop) in rows])

    def depart(self, x):
        """Start to send the own part, and to receive those of others."""
        self.x, mine = x, self.own(x).contiguous()
        self.all = x.new_empty(sum(self.sizes), *x.shape[1:])
        parts = self.all.split(self.sizes)
        parts[self.r].copy_(mine)
        self.works = post(
            [(mine, i) for i in self.others],
            [(parts[i], i) for i in self.others],
            self.group,
        )

    def arrive(self):
        """Return the rows of all ranks, in the order of the ranks."""
        wait(self.works)
        return self.all

    def go_back(self, gradient):
        """Start to send the partial gradients to those whose rows they are."""
        self.gone, parts = True, gradient.contiguous().split(self.sizes)
        self.back = [torch.empty_like(parts[self.r]) for _ in self.others]
        self.mine, self.all = parts[self.r], None
        self.works = post(
            [(parts[i], i) for i in self.others],
            list(zip(self.back, self.others, strict=True)),
            self.group,
        )

    def come_back(self, dx):
        """Add to dx, in place, the gradients of the rows that travelled."""
        if not self.gone:
            self.go_back(torch.zeros_like(self.all))
        wait(self.works)
        mine = self.own(dx)
        for part in (self.mine, *self.back):
            mine += part
        self.mine = self.back = self.works = None  # they hold the gradients
        return dx


class OwnRows(torch.autograd.Function):
    """Keep the own rows of a pass; backward, join all gradients of scores."""

    @staticmethod
    def forward(ctx, y, sizes, group=None):
        ctx.sizes, ctx.group = sizes, group
        return y.split(sizes)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, dy):
        return all_rows(dy, ctx.sizes, ctx.group), None, None


def all_rows(x, rows, group=None):
    """Return the rows of all ranks, in their order; rank i has rows[i]."""
    trip = Rows([(0, count) for count in rows], group)
    trip.depart(x)
    return trip.arrive()


def rows_of_ranks(x, group=None):
    """Return how many rows each rank has; 8 bytes go to each."""
    mine = torch.tensor([len(x)], device="cpu" if x.is_meta else x.device)
    every = [torch.empty_like(mine) for _ in range(members(group)[0])]
    all_gather(every, mine, group)
    return [int(count) for count in every]


class Columns(ColumnParallel):
    """Compute a part of the outputs; dx stays this rank's partial sum."""

    def forward(self, x):
        """x [N, D], the same on all ranks -> [N, O/n], or [N, O] if whole."""
        y = add_bias(self.product(x, self.weight), self.bias, self.dim)
        return Join.apply(y, self.dim, self.group) if self.whole else y


# Dense layers in pairs, as in chapter 12; the last ends with whole scores.
#     one layer       columns, joined
#     two layers      columns   rows
#     three layers    columns   rows   rows, of a whole x
#     four layers     columns   rows   columns   rows
def split_dense(classifier, group=None):
    """Return a Sequential with its Linear layers split over the ranks.

    The others must work on each feature by itself, or before the first Linear.
    x is whole on all ranks, and its gradient a partial sum.
    """
    layers = list(classifier.children()) or [classifier]
    kinds = enumerate(map(type, layers))
    dense = [i for i, kind in kinds if kind is nn.Linear]
    check_dense(layers, dense)
    last = len(dense) - 1
    for k, i in enumerate(dense):
        if k == 0:
            layers[i] = Columns(layers[i], whole=k == last, group=group)
        elif k % 2 or k == last:
            layers[i] = RowParallel(layers[i], whole=k % 2 == 0, group=group)
        else:
            layers[i] = ColumnParallel(layers[i], group=group)
    return nn.Sequential(*layers)


def check_dense(layers, dense):
    """Raise TypeError unless the layers with weights are Linear layers."""
    rest = [layer for i, layer in enumerate(layers) if i not in dense]
    kinds = [type(x).__name__ for x in rest if [*x.parameters()]]
    if kinds or not dense:
        what = kinds or "none of them"
        raise TypeError(f"Linear layers in a Sequential, please, not {what}.")


class WeirdTrick(nn.Module):
    """Split the data for the features, and the weights for the classifier.

    features      the module whose weights are on all ranks
    classifier    Sequential of Linear layers, whose weights are cut
    scheme        "a", "b" or "c": which rows the classifier takes in a pass

    Rows are the first dimension, and ranks may have different numbers of them.
    After a backward pass the gradients of the features are partial sums, as in
    data parallelism, and those of the classifier are right.
    """

    def __init__(self, features, classifier, scheme="b", group=None):
        super().__init__()
        passes(scheme, [1])  # or it says which schemes there are
        self.features, self.scheme, self.group = features, scheme, group
        self.classifier = split_dense(classifier, group)

    def forward(self, x):
        """x [N_r, ...], this rank's rows -> their scores [N_r, classes]."""
        h, scores = self.features(x), []
        for parts in passes(self.scheme, rows_of_ranks(h, self.group)):
            trip = Rows(parts, self.group)
            h, token = Depart.apply(h, trip)
            y = self.classifier(Arrive.apply(token, trip))
            scores.append(OwnRows.apply(y, trip.sizes, self.group))
        return torch.cat(scores)

    def step(self, x, targets, loss, dense=None):
        """Leave all gradients in .grad; return the mean loss of all rows.

        loss     (scores, targets) -> the sum of the losses of these rows
        dense    an optimizer of the classifier, to take a step after every
                 pass, with the mean gradient of the rows in it

        .grad must be empty before.  Krizhevsky 2014.
        """
        with label("F features"):
            h = self.features(x)
        rows = rows_of_ranks(h, self.group)
        targets = all_rows(targets, rows, self.group).split(rows)
        trips = [Rows(part, self.group) for part in passes(self.scheme, rows)]
        total, dh = self.walk(h.detach(), trips, targets, loss, dense)
        if h.requires_grad:
            with label("B features"):
                h.backward(dh)
            sum_gradients(self.features, allreduce, self.group)
        return total / sum(rows)

    # What travels while pass k computes:
    #
    #     pass              0            1            2
    #     rows for pass     1            2
    #     gradients of                   0            1            2
    def walk(self, h, trips, targets, loss, dense):
        """Make all passes; return (sum of losses, gradient of own rows h)."""
        N, total, dh = sum(map(len, targets)), 0.0, torch.zeros_like(h)
        trips[0].depart(h)
        for k, trip in enumerate(trips):
            whole = trip.arrive().requires_grad_()
            if trip is not trips[-1]:
                trips[k + 1].depart(h)
            count = len(whole) if dense else N
            total += self.classify(k, whole, trip.of_all(targets), loss, count)
            if k > 0:
                trips[k - 1].come_back(dh)
            trip.go_back(whole.grad.mul_(count / N))
            if dense:
                dense.step()
                dense.zero_grad()
        return total, trips[-1].come_back(dh)

    def classify(self, k, whole, targets, loss, count):
        """Return the loss of pass k; leave the gradients of loss / count."""
        with label(f"F{k}"):
            part = loss(self.classifier(whole), targets)
        with label(f"B{k}"):
            (part / count).backward()
        return part.detach()
