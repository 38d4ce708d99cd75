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
from torch import nn

from ..allreduce.fastest import allreduce
from ..data_parallel import sum_gradients
from ..scatter import members
from ..sim.labels import label
from ..tensor_parallel import ColumnParallel, Join, RowParallel, add_bias
from ..tensor_parallel.trips import gather_number, post, wait
from .domain import DomainConv2d as DomainConv2d
from .domain import halo_exchange as halo_exchange
from .split_choice import best_splits as best_splits


def passes(scheme, rows):
    """Return the passes of a scheme, each a list of (start, stop) by rank.

    rows    how many rows each rank has

    In a pass all ranks take the rows start to stop - 1 of each rank.  A pass
    without any row is left out.
    """
    check_scheme(scheme)
    n = len(rows)
    if scheme == "a":
        found = [[(0, count) for count in rows]]
    elif scheme == "b":
        found = [[(0, 0)] * n for _ in range(n)]
        for k in range(n):
            found[k][k] = (0, rows[k])
    else:
        cut = [[count * k // n for k in range(n + 1)] for count in rows]
        found = [[(ends[k], ends[k + 1]) for ends in cut] for k in range(n)]
    return without_empty(found)


def check_scheme(scheme):
    """Raise ValueError unless there is such a scheme."""
    if scheme not in ("a", "b", "c"):
        raise ValueError(f"The schemes are 'a', 'b' and 'c', not {scheme!r}.")


def without_empty(found):
    """Return the passes that have a row; ValueError if none has one."""
    found = [parts for parts in found if any(a < b for a, b in parts)]
    if not found:
        raise ValueError("No rank has a row.")
    return found


class Meeting:
    """Bring some rows of every rank to all ranks, and their gradients back.

    parts    (start, stop) of each rank: the rows of it that travel

    Each rank sends its part to all others.  Backward it gets a partial
    gradient of these rows from each of them, and adds them up.
    """

    def __init__(self, parts, group=None):
        self.parts, self.group = parts, group
        n, self.r = members(group)
        self.sizes = [stop - start for start, stop in parts]
        self.others = [i for i in range(n) if i != self.r]
        self.own = slice(*parts[self.r])  # the rows of this rank that travel

    def of_all(self, tensors):
        """Return the rows of this pass, from the rows of all ranks."""
        rows = zip(tensors, self.parts, strict=True)
        return torch.cat([x[start:stop] for x, (start, stop) in rows])

    def send_rows(self, x):
        """Start to send the own part, and to receive those of others."""
        mine = x[self.own].contiguous()
        self.all = x.new_empty(sum(self.sizes), *x.shape[1:])
        parts = self.all.split(self.sizes)
        parts[self.r].copy_(mine)
        send = [(mine, i) for i in self.others]
        recv = [(parts[i], i) for i in self.others]
        self.works = post(send, recv, self.group)

    def collect_rows(self):
        """Return the rows of all ranks, in the order of the ranks."""
        wait(self.works)
        return self.all

    def send_gradients(self, gradient):
        """Start to send the partial gradients to those whose rows they are."""
        parts = gradient.contiguous().split(self.sizes)
        self.back = [torch.empty_like(parts[self.r]) for _ in self.others]
        self.mine, self.all = parts[self.r], None
        send = [(parts[i], i) for i in self.others]
        recv = list(zip(self.back, self.others, strict=True))
        self.works = post(send, recv, self.group)

    def collect_gradients(self, dx):
        """Add to dx, in place, the gradients of the rows that travelled."""
        wait(self.works)
        for part in (self.mine, *self.back):
            dx[self.own].add_(part)
        self.mine = self.back = self.works = None  # they hold the gradients
        return dx


def all_rows(x, rows, group=None):
    """Return the rows of all ranks, in their order; rank i has rows[i]."""
    meeting = Meeting([(0, count) for count in rows], group)
    meeting.send_rows(x)
    return meeting.collect_rows()


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
        kinds = kinds or "none of them"
        raise TypeError(f"Linear layers in a Sequential, please, not {kinds}.")


class WeirdTrick(nn.Module):
    """Split the data for the features, and the weights for the classifier.

    features      the module whose weights are on all ranks
    classifier    Sequential of Linear layers, whose weights are cut
    scheme        "a", "b" or "c": which rows the classifier takes in a pass

    Rows are the first dimension, and ranks may have different numbers of them.
    """

    def __init__(self, features, classifier, scheme="b", group=None):
        super().__init__()
        check_scheme(scheme)
        self.features, self.scheme, self.group = features, scheme, group
        self.classifier = split_dense(classifier, group)

    def step(self, x, targets, loss):
        """Leave all gradients in .grad; return the mean loss of all rows.

        loss     (scores, targets) -> the sum of the losses of these rows

        .grad must be empty before.  Krizhevsky 2014.
        """
        with label("F features"):
            h = self.features(x)
        rows = gather_number(len(h), h, self.group)
        targets = all_rows(targets, rows, self.group).split(rows)
        parts = passes(self.scheme, rows)
        meetings = [Meeting(part, self.group) for part in parts]
        total, dh = self.walk(h.detach(), meetings, targets, loss)
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
    def walk(self, h, meetings, targets, loss):
        """Make all passes; return (sum of losses, gradient of own rows h)."""
        N, total, dh = sum(map(len, targets)), 0.0, torch.zeros_like(h)
        meetings[0].send_rows(h)
        for k, meeting in enumerate(meetings):
            rows = meeting.collect_rows().requires_grad_()
            if k + 1 < len(meetings):
                meetings[k + 1].send_rows(h)
            total += self.classify(k, rows, meeting.of_all(targets), loss, N)
            if k > 0:
                meetings[k - 1].collect_gradients(dh)
            meeting.send_gradients(rows.grad)
        return total, meetings[-1].collect_gradients(dh)

    def classify(self, k, rows, targets, loss, N):
        """Return the loss of pass k; leave the gradients of loss / N."""
        with label(f"F{k}"):
            part = loss(self.classifier(rows), targets)
        with label(f"B{k}"):
            (part / N).backward()
        return part.detach()


class EagerTrick(WeirdTrick):
    """Take a step of the dense layers after every pass; an approximation.

    optimizer    of these layers, to be set; gets the mean gradient of a pass
    """

    def classify(self, k, rows, targets, loss, N):
        """Return the loss of pass k; leave the gradient of its rows only."""
        part = super().classify(k, rows, targets, loss, N)
        for p in self.classifier.parameters():
            p.grad *= N / len(rows)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return part
