"""Domain parallelism: every rank has some rows of each picture.

A window of 3 x 3 needs one row above and one below.  At the border of two ranks these
rows are the neighbour's, and a copy of them, the halo, travels.  Eight rows on two
ranks, . is a row of zeros beyond the edge of the picture:

    rank   own rows     with halos       backward
    0      0 1 2 3      . 0 1 2 3 4      row 4's gradient goes to rank 1, which adds it
    1      4 5 6 7      3 4 5 6 7 .      row 3's gradient goes to rank 0, which adds it

n ranks, r this rank, x [N, C, h, W]: h is the number of this rank's rows, which may
differ from rank to rank.  Serial truth: the same layer with the whole picture
[N, C, H, W].  Weights are on all ranks, and each rank has a part of their gradient, as
in data parallelism: `sum_gradients` adds them up.  Gholami et al. 2018.
"""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..data_parallel import convert_batch_norms
from ..scatter import members
from ..tensor_parallel.trips import Arrive, Depart, gather_number, post, wait


# A halo of three rows, on ranks of two: they hand on what they are given.
#
#     rank        0          1              2              3
#     rows        0 1        2 3            4 5            6 7
#     comes       . . .      . 0 1          1 2 3          3 4 5
#     has then    . . . 0 1  . 0 1 2 3      1 2 3 4 5
#     sends on    . 0 1      1 2 3          3 4 5
class Halo:
    """Bring rows from the neighbours, and the gradients of these rows back.

    come, go    rows that come from the ranks (before, after) this one, and
                rows that go to the ranks (after, before) it
    fill        what rows beyond the edge of the picture hold
    """

    def __init__(self, come, go, group=None, fill=0.0):
        if min(come) < 0:
            raise ValueError(f"A halo has 0 rows or more, not {come}.")
        n, r = dist.get_world_size(group), dist.get_rank(group)
        self.come, self.group, self.fill = come, group, fill
        self.src = [i if 0 <= i < n else None for i in (r - 1, r + 1)]
        self.dst = self.src[::-1]
        self.go = [0 if self.dst[k] is None else go[k] for k in (0, 1)]

    def send_rows(self, x):
        """Start to receive both halos, and to send those that are all here."""
        self.x, self.parts, self.works = x, [], []
        for k in (0, 1):
            halo = beside(x, self.come[k])
            recv = [] if self.src[k] is None else [(halo, self.src[k])]
            if not recv:
                halo.fill_(self.fill)
            send = self._sent(k) if self.go[k] <= x.shape[-2] else []
            self.parts.append(halo)
            self.works.append(post(send, recv, self.group))

    def _sent(self, k):
        """Return [(rows that go in direction k, where to)], of all it has."""
        if not self.go[k]:
            return []
        x = self.x
        if self.go[k] > x.shape[-2]:
            x = torch.cat([x, self.parts[1]] if k else [self.parts[0], x], -2)
        end = first_rows if k else last_rows
        rows = end(x, self.go[k])
        return [(rows.contiguous(), self.dst[k])]

    def collect_rows(self):
        """Return the rows before and after the own ones."""
        for k in (0, 1):
            wait(self.works[k])
            if self.go[k] > self.x.shape[-2]:
                wait(post(self._sent(k), [], self.group))
        return tuple(self.parts)

    def send_gradients(self, *gradients):
        """Start to send the gradients of the halos to whose rows they are."""
        self.parts, self.works = [], []
        for k in (0, 1):
            halo = gradients[k].contiguous().clone()
            back = beside(self.x, self.go[k])
            self.parts.append((halo, back))
            recv = [(back, self.dst[k])] if self.go[k] else []
            send = self._returned(k) if self.go[k] <= self.x.shape[-2] else []
            self.works.append(post(send, recv, self.group))

    def _returned(self, k):
        return [] if self.src[k] is None else [(self.parts[k][0], self.src[k])]

    def collect_gradients(self, dx):
        """Add to dx, in place, what rows owe to being halos elsewhere."""
        for k in (0, 1):
            halo, back = self.parts[k]
            wait(self.works[k])
            self._add(k, dx, halo, back)
            if self.go[k] > dx.shape[-2]:
                wait(post(self._returned(k), [], self.group))
        return dx

    def _add(self, k, dx, halo, back):
        """Add what came back to the own rows, and beyond them to the halo."""
        deep = max(0, self.go[k] - dx.shape[-2])  # rows of it that are not own
        own = self.go[k] - deep
        if k == 0:
            last_rows(halo, deep).add_(first_rows(back, deep))
            last_rows(dx, own).add_(last_rows(back, own))
        else:
            first_rows(halo, deep).add_(last_rows(back, deep))
            first_rows(dx, own).add_(first_rows(back, own))


def beside(x, rows):
    """Return an empty tensor like x, with so many rows."""
    return x.new_empty(*x.shape[:-2], rows, x.shape[-1])


def first_rows(x, count):
    """Return the first rows, as a view."""
    return x.narrow(-2, 0, count)


def last_rows(x, count):
    """Return the last rows, as a view."""
    return x.narrow(-2, x.shape[-2] - count, count)


def halo_exchange(x, before, after, group=None):
    """Return x with `before` rows from the ranks before, `after` from after.

    x    [..., h, W], this rank's rows; h may differ from rank to rank

    The result has before + h + after rows.  Beyond the first and the last row
    of the picture they are zeros.  If a neighbour has fewer rows than the halo
    is deep, it forwards rows of its own halo.  Backward, the gradient of a row
    that was copied is added to that of the row itself.  A rank sends `before`
    rows to the next rank and `after` rows to the one before, forward, and as
    many backward.  Gholami et al. 2018 count k // 2 rows per neighbour.
    """
    check_picture(x)
    trip = Halo((before, after), (before, after), group)
    x, token = Depart.apply(x, trip)
    above, below = Arrive.apply(token, trip)
    return torch.cat([above, x, below], -2)


def check_picture(x):
    """Raise ValueError unless x has rows."""
    if x.dim() < 2:
        shape = list(x.shape)
        raise ValueError(f"A picture is [..., H, W], but x has {shape}.")


class Window(NamedTuple):
    """Describe how a layer looks at the rows of a picture.

    span      rows from the first to the last that one output row needs
    stride    rows from one window to the next
    padding   rows that are added at both edges
    """

    span: int
    stride: int
    padding: int

    def outputs(self, heights, r):
        """Return (row where rank r's first window starts, number of windows).

        A rank makes the output rows whose windows have their middle row here.
        The first and the last rank make all that lies before and beyond.
        Rows count from the rank's first own row.
        """
        first, s, p = sum(heights[:r]), self.stride, self.padding
        shift = (self.span - 1) // 2 - p  # from j * s to j's middle
        low = -((shift - first) // s) if r else 0
        high = -((shift - first - heights[r]) // s)
        if r == len(heights) - 1:
            high = (sum(heights) + 2 * p - self.span) // s + 1
        return low * s - p - first, high - low

    def needs(self, heights, r):
        """Return how many rows (before, after) its own rank r needs."""
        start, count = self.outputs(heights, r)
        end = start + (count - 1) * self.stride + self.span
        return max(0, -start), max(0, end - heights[r])

    def inside(self, start, count, h):
        """Return (low, high): windows low to high - 1 see own rows only."""
        low = max(0, -(start // self.stride))
        high = min(count, (h - self.span - start) // self.stride + 1)
        return (low, high) if low < high else (0, 0)


def depths(window, heights):
    """Return each rank's halo (before, after), with what it has to hand on.

    A rank that has fewer rows than its neighbour needs fetches the rest.
    """
    n = len(heights)
    needs = [window.needs(heights, r) for r in range(n)]
    before, after = map(list, zip(*needs, strict=True))
    for r in reversed(range(n - 1)):
        before[r] = max(before[r], before[r + 1] - heights[r])
    for r in range(1, n):
        after[r] = max(after[r], after[r - 1] - heights[r])
    return list(zip(before, after, strict=True))


def heights_of(x, stride, group=None):
    """Return the numbers of rows of all ranks.

    Where the stride is 1 nobody needs those of other ranks, so nothing is
    sent and this rank's own is in their place.  Else 8 bytes go to each rank.
    """
    n, h = dist.get_world_size(group), x.shape[-2]
    if stride == 1:
        return [h] * n
    return gather_number(h, x, group)


class DomainLayer(nn.Module):
    """Slide a window over the rows of all ranks.

    A rank looks at its own rows while the halos travel, and at those near the
    border of two ranks when they are here.  Every rank makes a row or more.
    """

    fill = 0.0  # rows beyond the edge of the picture

    def __init__(self, window, group=None):
        super().__init__()
        self.window, self.group = window, group

    def forward(self, x):
        """[N, C, h, W], this rank's rows -> [N, O, its rows of y, W']."""
        check_picture(x)
        r = dist.get_rank(self.group)
        heights = heights_of(x, self.window.stride, self.group)
        check_heights(self.window, heights, r)
        deep = [(0, 0), *depths(self.window, heights), (0, 0)]
        go = deep[r + 2][0], deep[r][1]  # the needs of the neighbours
        trip = Halo(deep[r + 1], go, self.group, self.fill)
        start, count = self.window.outputs(heights, r)
        low, high = self.window.inside(start, count, heights[r])
        top, bottom = self.borders(start, low, high, heights[r])
        x, token, first, last = Depart.apply(x, trip, top, bottom)
        middle = self.slide(x, start, low, high)
        above, below = Arrive.apply(token, trip)  # the middle is done by now
        upper = self.slide(cat(above, first), start + rows(above), 0, low)
        if not middle:  # then `last` is all of x
            last, bottom = cat(above, last), (-rows(above),)
        lower = self.slide(cat(last, below), start - bottom[0], high, count)
        return cat(*upper, *middle, *lower)

    def borders(self, start, low, high, h):
        """Return the own rows (begin, end) of upper and lower windows."""
        end = start + (low - 1) * self.window.stride + self.window.span
        begin = start + high * self.window.stride
        return (0, end if low else 0), (min(max(begin, 0), h), h)

    def slide(self, x, start, low, high):
        """Return [output rows low to high - 1], or [] if there are none."""
        if low >= high:
            return []
        begin = start + low * self.window.stride
        end = begin + (high - low - 1) * self.window.stride + self.window.span
        return [self.look(x[..., begin:end, :])]


def rows(x):
    """Return the number of rows."""
    return x.shape[-2]


def cat(*parts):
    """Put rows below each other; a single part is returned as it is."""
    return torch.cat(parts, -2) if len(parts) > 1 else parts[0]


def check_heights(window, heights, r):
    """Raise ValueError where a rank would make no row of the output."""
    ranks = range(len(heights)) if window.stride > 1 else [r]
    for i in ranks:
        if heights[i] < 1 or window.outputs(heights, i)[1] < 1:
            raise ValueError(
                f"Rank {i} has {heights[i]} rows and would make no row of the "
                "output: there are too many ranks for this picture."
            )


class DomainConv2d(DomainLayer):
    """Convolve a picture whose rows are on different ranks.

    conv    nn.Conv2d, equal on all ranks, with padding of zeros

    Any kernel, stride, dilation, padding and number of channel groups.  The
    parameters are conv's own, and each rank has a part of their gradient.
    """

    def __init__(self, conv, group=None):
        window, columns = window_of(conv, nn.Conv2d)
        super().__init__(window, group)
        if conv.padding_mode != "zeros":
            raise TypeError(f"Padding of zeros, not {conv.padding_mode}.")
        self.weight, self.bias = conv.weight, conv.bias
        self.how = conv.stride, (0, columns), conv.dilation, conv.groups

    def look(self, x):
        """Convolve rows of which none is missing."""
        return F.conv2d(x, self.weight, self.bias, *self.how)


class DomainPool2d(DomainLayer):
    """Pool a picture whose rows are on different ranks: maxima or means."""

    def __init__(self, pool, group=None):
        window, columns = window_of(pool, nn.MaxPool2d, nn.AvgPool2d)
        super().__init__(window, group)
        how = pool.kernel_size, pool.stride, (0, columns)
        if isinstance(pool, nn.MaxPool2d):
            self.fill = -math.inf
            self.look = lambda x: F.max_pool2d(x, *how, pool.dilation)
        elif not pool.count_include_pad and window.padding + columns > 0:
            raise TypeError("An AvgPool2d with count_include_pad, please.")
        else:
            by = pool.divisor_override
            self.look = lambda x: F.avg_pool2d(x, *how, divisor_override=by)


def window_of(layer, *kinds):
    """Return (Window over the rows, padding of the columns) of a layer."""
    if not isinstance(layer, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"It takes {names}, not {type(layer).__name__}.")
    odd = ("ceil_mode", "return_indices")
    if any(getattr(layer, name, False) for name in odd):
        raise TypeError("A pool without ceil_mode and return_indices, please.")
    if isinstance(layer.padding, str):
        raise TypeError(f"Padding in numbers, not '{layer.padding}', please.")
    sizes = layer.kernel_size, layer.stride, layer.padding
    sizes += (getattr(layer, "dilation", 1),)
    both = (x if isinstance(x, tuple) else (x, x) for x in sizes)
    k, s, p, d = both  # each (rows, columns)
    return Window(d[0] * (k[0] - 1) + 1, s[0], p[0]), p[1]


def split_rows(model, group=None):
    """Return the model with its layers replaced by those for rows on ranks.

    Convolutions, pools and batch norms are replaced, parameters stay the same
    objects.  Layers that work on each pixel by itself, such as ReLU, stay.
    """
    return _domain_layers(convert_batch_norms(model, group=group), group)


def _domain_layers(model, group):
    if isinstance(model, nn.Conv2d):
        return DomainConv2d(model, group)
    if isinstance(model, nn.MaxPool2d | nn.AvgPool2d):
        return DomainPool2d(model, group)
    for name, child in model.named_children():
        setattr(model, name, _domain_layers(child, group))
    return model


def own_rows(x, group=None):
    """Return this rank's rows of a whole picture [..., H, W], as a view."""
    n, r = members(group)
    return x.tensor_split(n, -2)[r]
