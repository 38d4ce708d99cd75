"""Chapter 05: copies on one GPU, and the moves of all GPUs."""

from functools import partial

import torch
import torch.distributed as dist

from ..scatter import all_gather, all_to_all, reduce_scatter, tree_broadcast
from .measuring import Case, experiment


@experiment(small={"rows": 64, "width": 64})
def packing(rows=16384, width=16384, n=8):
    """Cut a matrix into n pieces without gaps, and join n pieces."""

    def prepare(pack, pieces_along=None):
        x = torch.randn(rows, width)
        if pieces_along is not None:
            x = [piece.clone() for piece in x.chunk(n, pieces_along)]
        return lambda: pack(x)

    columns = lambda x: [part.contiguous() for part in x.chunk(n, 1)]
    dealt = lambda x: [x[:, i::n].contiguous() for i in range(n)]
    ways = {
        "copy of the whole": partial(prepare, torch.clone),
        "cut columns": partial(prepare, columns),
        "deal columns": partial(prepare, dealt),
        "join rows": partial(prepare, partial(torch.cat, dim=0), 0),
        "join columns": partial(prepare, partial(torch.cat, dim=1), 1),
    }
    moved = 2 * rows * width * 4  # read and written
    return {name: Case(way, moved=moved) for name, way in ways.items()}


@experiment(small={"size": 2**10}, ranks=None)
def large_moves(size=2**28):
    """Collectives of `size` numbers: PyTorch's and ours."""

    def prepare(move):
        n = dist.get_world_size()
        x = torch.ones(size // n * n)
        y, own = torch.ones_like(x), x.chunk(n)[dist.get_rank()]
        return lambda: move(x, y, own)

    cut = lambda x: list(x.chunk(dist.get_world_size()))
    moves = {
        "broadcast": lambda x, y, own: dist.broadcast(x, 0),
        "broadcast, ours": lambda x, y, own: tree_broadcast(x, 0),
        "all-gather": lambda x, y, own: dist.all_gather_into_tensor(x, own),
        "all-gather, ours": lambda x, y, own: all_gather(cut(x), own),
        "reduce-scatter": lambda x, y, own: dist.reduce_scatter_tensor(own, y),
        "reduce-scatter, ours": lambda x, y, own: reduce_scatter(own, cut(y)),
        "all-to-all": lambda x, y, own: dist.all_to_all_single(x, y),
        "all-to-all, ours": lambda x, y, own: all_to_all(cut(x), cut(y)),
    }
    S = 4 * size
    return {k: Case(partial(prepare, v), moved=S) for k, v in moves.items()}
