"""12.4 Dropout: dropped_mlp(x, up, down, bias, p, draw)."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from d2lpar.tensor_parallel import Add, Enter, Join, Part, own_part
from zoo import right, wrong


def drop(x, p, noise):
    return x * (noise >= p) / (1 - p)


def hidden(x, up):
    return F.gelu(Enter.apply(x) @ up.T)


def own_noise(h, draw):
    whole = h.shape[0], h.shape[1] * dist.get_world_size()
    return own_part(draw(0, whole), 1)


@right
def own_part_of_the_mask(x, up, down, bias, p, draw):
    h = hidden(x, up)
    h = drop(h, p, own_noise(h, draw))
    y = Add.apply(h @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@right
def masks_first(x, up, down, bias, p, draw):
    """Masks as factors, made at the start; the last one before the sum."""
    n, r = dist.get_world_size(), dist.get_rank()
    middle = (draw(0, (len(x), n * len(up))) >= p).double() / (1 - p)
    last = (draw(1, x.shape) >= p).double() / (1 - p)
    partial = (hidden(x, up) * middle[:, r * len(up) : (r + 1) * len(up)]) @ down.T
    return Add.apply(partial * last) + bias * last


@wrong("same pattern")
def each_draws_its_own_shape(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply(drop(h, p, draw(0, h.shape)) @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("ranks differ")
def another_mask_at_the_end(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply(drop(h, p, own_noise(h, draw)) @ down.T) + bias
    return drop(y, p, draw(1 + dist.get_rank(), y.shape))


@wrong("bias after")
def the_broken_one(x, up, down, bias, p, draw):
    """As the exercise gives it: its third fault shows on one rank already."""
    h = hidden(x, up)
    h = h * (draw(0, h.shape) >= p) / (1 - p)
    y = Add.apply(h @ down.T)
    y = y * (draw(1 + dist.get_rank(), y.shape) >= p) / (1 - p)
    return y + bias


@wrong("bias after")
def bias_is_never_dropped(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply(drop(h, p, own_noise(h, draw)) @ down.T)
    return drop(y, p, draw(1, y.shape)) + bias


@wrong("not scaled")
def only_zeros(x, up, down, bias, p, draw):
    h = hidden(x, up)
    h = h * (own_noise(h, draw) >= p)
    y = Add.apply(h @ down.T) + bias
    return y * (draw(1, y.shape) >= p)


@wrong("not scaled")
def scales_only_at_the_end(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply((h * (own_noise(h, draw) >= p)) @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("not scaled")
def multiplies_by_what_is_kept(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply(drop(h, p, own_noise(h, draw)) @ down.T) + bias
    return y * (draw(1, y.shape) >= p) * (1 - p)


@wrong("another pattern")
def nothing_is_dropped_in_the_middle(x, up, down, bias, p, draw):
    y = Add.apply(hidden(x, up) @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("wrong")
def takes_the_bias_away(x, up, down, bias, p, draw):
    """It has nothing to do with dropout."""
    h = hidden(x, up)
    y = Add.apply(drop(h, p, own_noise(h, draw)) @ down.T) - bias
    return drop(y, p, draw(1, y.shape))


@wrong("another pattern")
def a_seed_per_rank(x, up, down, bias, p, draw):
    """Different on all ranks, and not what one device drops."""
    h = hidden(x, up)
    h = drop(h, p, draw(7 + dist.get_rank(), h.shape))
    y = Add.apply(h @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("too much")
def joined_for_the_mask(x, up, down, bias, p, draw):
    h = Join.apply(hidden(x, up), 1)
    h = Part.apply(drop(h, p, draw(0, h.shape)), 1)
    y = Add.apply(h @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("dx")
def never_entered(x, up, down, bias, p, draw):
    h = F.gelu(x @ up.T)
    h = drop(h, p, own_noise(h, draw))
    y = Add.apply(h @ down.T) + bias
    return drop(y, p, draw(1, y.shape))


@wrong("no way back")
def computed_without_gradients(x, up, down, bias, p, draw):
    with torch.no_grad():
        return own_part_of_the_mask(x, up, down, bias, p, draw)


@wrong("at p")
def more_than_p(x, up, down, bias, p, draw):
    """What is p exactly is dropped, and should be kept."""
    h = hidden(x, up)
    h = h * (own_noise(h, draw) > p) / (1 - p)
    y = Add.apply(h @ down.T) + bias
    return y * (draw(1, y.shape) > p) / (1 - p)


@wrong("at p")
def more_than_p_at_the_end(x, up, down, bias, p, draw):
    h = hidden(x, up)
    y = Add.apply(drop(h, p, own_noise(h, draw)) @ down.T) + bias
    return y * (draw(1, y.shape) > p) / (1 - p)


@wrong("wrong")
def masks_in_float32(x, up, down, bias, p, draw):
    """The right pattern, and 1 / (1 - p) to seven digits."""
    h = hidden(x, up)
    h = h * ((own_noise(h, draw) >= p) / (1 - p))
    y = Add.apply(h @ down.T) + bias
    return y * ((draw(1, y.shape) >= p) / (1 - p))


@wrong("pattern")
def sums_nothing(x, up, down, bias, p, draw):
    """The ranks differ, but not in what they drop."""
    h = hidden(x, up)
    y = drop(h, p, own_noise(h, draw)) @ down.T + bias
    return drop(y, p, draw(1, y.shape))
