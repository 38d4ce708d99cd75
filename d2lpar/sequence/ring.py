"""Attention over a sequence that is split over ranks: keys and values travel.

    Ring       a piece of keys and values passes from rank to rank, n-1 times
    Gather     all pieces are on every rank at once, as for Llama 3

A rank always keeps its own queries.  Both send as many bytes: forward n-1 pieces of
keys and values, backward n-1 again, and n-1 of their gradients.  Only the order and the
memory differ.  n ranks, r this rank, N batch, T tokens, d features of a head.
Liu et al. 2023 (ring attention); Grattafiori et al. 2024, section 3.3.2 (Llama 3).
"""

import sys

import torch

from ..scatter import members, ring_all_gather, ring_reduce_scatter
from ..tensor_parallel.trips import post, wait
from .fused import Fused, FusedBackward
from .online_softmax import TILE, Online, OnlineBackward, tiles_of
from .order import lengths_of, spans


# Round k: rank r works on the piece of rank r-k while it travels on.
#
#     round     rank 0    rank 1    rank 2    rank 3
#     0         0 ->      1 ->      2 ->      3 ->
#     1         3 ->      0 ->      1 ->      2 ->
#     2         2 ->      3 ->      0 ->      1 ->
#     3         1         2         3         0
class Ring:
    """Pass pieces of keys and values around a ring, and their gradients home."""

    def __init__(self, n, r, lengths, group):
        self.n, self.r, self.lengths, self.group = n, r, lengths, group
        self.works, self.coming = [], None

    def pieces(self, mine):
        """Yield (rank, its keys and values [2, N, G, T/n, d]), own ones first."""
        for k in range(self.n):
            source, works, coming = (self.r - k) % self.n, [], None
            if k < self.n - 1:
                coming, works = self.pass_on(mine, (source - 1) % self.n)
            yield source, mine
            wait(works)
            mine = coming

    def pass_on(self, mine, source):
        """Start to send `mine` right; return (what comes of `source`, works)."""
        shape = *mine.shape[:-2], self.lengths[source], mine.shape[-1]
        coming, right, left = mine.new_empty(shape), self.r + 1, self.r - 1
        send, receive = [(mine, right % self.n)], [(coming, left % self.n)]
        return coming, post(send, receive, self.group)

    def give(self, source, gradient):
        """Add this rank's part to the gradient of a piece, and pass it on.

        A gradient starts at its home's right neighbour and ends at home.
        """
        if source == self.r:
            self.own = gradient  # stays at home
            return
        if self.coming is not None:
            wait(self.works)
            gradient += self.coming
        # the message of the last round brings this rank's own
        self.coming, self.works = self.pass_on(gradient, (source - 1) % self.n)

    def home(self):
        """Return the gradient of this rank's keys and values."""
        wait(self.works)
        return self.own if self.coming is None else self.own + self.coming


class Gather(Ring):
    """Gather all pieces before the first is used; sum their gradients at the end."""

    def pieces(self, mine):
        """Yield (rank, its keys and values [2, N, G, T/n, d]), own ones first."""
        shapes = [(*mine.shape[:-2], T, mine.shape[-1]) for T in self.lengths]
        every = [mine.new_empty(shape) for shape in shapes]
        every[self.r], self.gradients = mine, [None] * self.n
        if self.n > 1:
            ring_all_gather(every, self.group)
        for k in range(self.n):
            source = (self.r - k) % self.n
            yield source, every[source]

    def give(self, source, gradient):
        """Keep this rank's part of the gradient of a piece."""
        self.gradients[source] = gradient

    def home(self):
        """Return the gradient of this rank's keys and values."""
        if self.n > 1:
            ring_reduce_scatter(self.gradients, self.group)
        return self.gradients[self.r]


class SplitAttention(torch.autograd.Function):
    """Attend to pieces of keys and values in the order in which they come.

    Keeps q, k, v, the result and a log-sum-exp for each query and head, and
    lets the pieces travel again in the backward pass.
    """

    @staticmethod
    def forward(ctx, q, k, v, causal, way, tiles, fused):
        kind = Fused if fused else Online
        online = kind(q, k.shape[1], tiles[way.r], causal)
        for source, (keys, values) in way.pieces(torch.stack([k, v])):
            online.see(keys, values, tiles[source])
        out = online.out.to(q.dtype).flatten(1, 2)  # [N, H, T/n, d]
        ctx.save_for_backward(q, k, v, out, online.lse)
        ctx.how = causal, way, tiles, FusedBackward if fused else OnlineBackward
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        q, k, v, out, lse = ctx.saved_tensors
        causal, way, tiles, kind = ctx.how
        way = type(way)(way.n, way.r, way.lengths, way.group)
        online = kind(q, out, dy, lse, tiles[way.r], causal)
        for source, (keys, values) in way.pieces(torch.stack([k, v])):
            way.give(source, online.see(keys, values, tiles[source]))
        dk, dv = way.home().to(k.dtype)
        return online.dq.to(q.dtype).flatten(1, 2), dk, dv, *[None] * 4


def ring_attention(q, k, v, causal=True, group=None, order="zigzag", tile=TILE):
    """Attend to the whole sequence with own queries; return [N, H, T/n, d].

    q          [N, H, T/n, d], this rank's tokens, as split_sequence cuts them
    k, v       [N, G, T/n, d]; each head serves H / G heads of queries
    order      the order of split_sequence
    tile       tokens of a tile; no more scores exist at once than of two tiles.
               None: PyTorch's fused kernel, on CPUs

    Sends n-1 pieces of k and v forward, n-1 backward, and n-1 of their gradients,
    besides 8 (n-1) bytes of lengths.  Serial truth: scaled_dot_product_attention
    of the whole sequence.  Raises ValueError where sizes do not fit.
    """
    return _attention(Ring, q, k, v, causal, group, order, tile)


def gather_attention(q, k, v, causal=True, group=None, order="zigzag", tile=TILE):
    """Do what ring_attention does, with all keys and values gathered at once.

    Sends as many bytes.  A rank holds the keys and values of the whole sequence
    while it works on them.  Grattafiori et al. 2024, section 3.3.2.
    """
    return _attention(Gather, q, k, v, causal, group, order, tile)


def _attention(kind, q, k, v, causal, group, order, tile):
    check_qkv(q, k, v)
    n, r = members(group)
    lengths = lengths_of(q, 2, order, group)
    way = kind(n, r, lengths, group)
    tiles = tiled(q, spans(sum(lengths), n, order), tile)
    return SplitAttention.apply(q, k, v, causal, way, *tiles)


def tiled(q, spans, tile):
    """Return (tiles of each rank's spans, whether the fused kernel takes them)."""
    fused = tile is None and q.device.type == "cpu"
    size = sys.maxsize if fused else TILE if tile is None else tile
    return [tiles_of(mine, size) for mine in spans], fused


def online_attention(q, k, v, causal=True, tile=TILE):
    """Attend on one device, without the T x T scores.

    q [N, H, T, d] and k, v [N, G, T, d]; returns [N, H, T, d].
    """
    check_qkv(q, k, v)
    T = q.shape[2]
    way = Ring(1, 0, [T], None)
    return SplitAttention.apply(q, k, v, causal, way, *tiled(q, [[(0, T)]], tile))


def check_qkv(q, k, v):
    """Raise ValueError unless these can be queries, keys and values."""
    fits = q.dim() == 4 and k.dim() == 4 and k.shape == v.shape
    if fits:
        fits = (len(q), *q.shape[2:]) == (len(k), *k.shape[2:])
        fits = fits and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    if not fits:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        text = "q must be [N, H, T, d], and k and v [N, G, T, d] where G divides H"
        raise ValueError(f"{text}, but the shapes are {shapes}.")
    if not q.dtype == k.dtype == v.dtype:
        text = f"q, k and v must have one dtype, not {q.dtype}, {k.dtype}, {v.dtype}."
        raise ValueError(text)
