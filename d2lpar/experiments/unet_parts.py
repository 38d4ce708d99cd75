"""Chapter 11: a U-Net on one GPU, the two parts of a cut, and parts on all GPUs."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..data_parallel import shard
from ..launch import run as launch
from ..network_partition import Part
from ..network_partition.balance import best_cuts, layer_seconds, part_seconds, sizes
from ..network_partition.layers import Whole, build, comes_in, unet
from ..overlap import OverlappedDDP
from ..sim.cluster import Cluster
from .measuring import Case, experiment, half

WIDTHS = 64, 128, 256, 512, 1024  # the original U-Net
FEW = {"side": 16, "widths": (4, 8, 16)}


class Piece(nn.Module):
    """Take and give all that is needed from here on; run some layers."""

    def __init__(self, net, first, last):
        super().__init__()
        self.net, self.first = net, first
        self.layers = build(net, first, last)
        self.takes = comes_in(net, first, len(net)) or [-1]
        self.gives = comes_in(net, last, len(net)) or [last - 1]

    def forward(self, *come):
        """Return the values that it gives, or the only one."""
        values = dict(zip(self.takes, come, strict=True))
        for i, layer in enumerate(self.layers, start=self.first):
            values[i] = layer(*[values[v] for v in self.net[i].needs])
        out = tuple(values[v] for v in self.gives)
        return out if len(out) > 1 else out[0]


def scans(N, side):
    """Return N grey pictures and their masks of two classes."""
    x = torch.randn(N, 1, side, side, dtype=half())
    return x, torch.zeros(N, side, side, dtype=torch.int64)


@experiment(small=FEW)
def unet_batches(side=512, widths=WIDTHS, counts=(1, 4, 16, 64)):
    """A pass of the U-Net, forward and backward, with N pictures."""

    def prepare(N):
        net = unet(widths, classes=2, dtype=half())
        return whole_step(net, None, *scans(N, side))

    return {f"N={N}": partial(prepare, N) for N in counts}


def whole_step(net, cost, x, y):
    """Prepare a step of the whole network with all rows."""
    model = Whole(net)

    def step():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()

    return step


def simulated_seconds(net, x):
    """Return the seconds of each layer on an A100, there and back."""
    how = {"backend": "sim", "device": "meta", "world_size": 1}
    how |= {"cluster": Cluster.of("1xA100")}
    run = launch.run(layer_seconds, net, x.to("meta"), **how)
    return [sum(both) for both in run.results[0]]


def even_cuts(net, seconds, n):
    """Return the cuts into n parts of which the slowest is the fastest."""
    return best_cuts(part_seconds(net, seconds), len(net), n)[1]


@experiment(small=FEW)
def unet_parts(side=512, widths=WIDTHS, N=8):
    """A pass of the whole, and of each of two balanced parts alone."""
    net = unet(widths, classes=2, dtype=half())
    x = torch.empty(N, 1, side, side, dtype=half(), device="meta")
    cuts = even_cuts(net, simulated_seconds(net, x), 2)
    ends, size = [0, *cuts, len(net)], sizes(net, x)

    def prepare(first, last):
        piece = Piece(net, first, last)
        like = lambda v: torch.randn(N, *size[v].row, dtype=half())
        come = [like(v).requires_grad_() for v in piece.takes if v >= 0]
        come = come or [torch.randn(x.shape, dtype=half())]
        back = [like(v) for v in piece.gives]

        def step():
            for leaf in (*come, *piece.parameters()):
                leaf.grad = None
            torch.autograd.backward(piece(*come), back)

        return step

    cases = {"whole": (0, ends[2]), "part 0": ends[:2], "part 1": ends[1:]}
    return {name: partial(prepare, *part) for name, part in cases.items()}


def rows_step(net, cost, x, y):
    """Prepare a step in which every rank has its rows: chapter 08."""
    model, (x, y) = OverlappedDDP(Whole(net)), shard((x, y))

    def step():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        model.finish()

    return step


def layers_step(net, cost, x, y):
    """Prepare a step in which every rank has its layers: our `Part`."""
    seconds, size = cost
    part = Part(net, even_cuts(net, seconds, dist.get_world_size()), size)

    def step():
        part.zero_grad()
        out = part(x)
        part.backward(None if out is None else F.cross_entropy(out, y))

    return step


def torchs_layers_step(net, cost, x, y):
    """Prepare a step in which PyTorch runs the same parts, as stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    r, n = dist.get_rank(), dist.get_world_size()
    ends = [0, *even_cuts(net, cost[0], n), len(net)]
    piece = Piece(net, ends[r], ends[r + 1])
    dense = lambda _, come: tuple(1 * x for x in come)  # it refuses gaps
    piece.register_forward_pre_hook(dense)
    stage = PipelineStage(piece, r, n, launch.device())
    schedule = ScheduleGPipe(stage, 1, loss_fn=F.cross_entropy)
    given, wanted = [x] if r == 0 else [], {"target": y} if r == n - 1 else {}

    def step():
        piece.zero_grad()
        schedule.step(*given, **wanted)

    return step


@experiment(small=FEW, ranks=None)
def unet_on_all(side=512, widths=WIDTHS, rows=2):
    """A pass of the U-Net on all GPUs, with so many rows for each."""
    net = unet(widths, classes=2, dtype=half())
    x = torch.empty(rows, 1, side, side, dtype=half(), device="meta")
    cost = simulated_seconds(net, x), sizes(net, x)

    def prepare(way):
        batch = scans(rows * dist.get_world_size(), side)
        return way(net, cost, *batch)

    theirs = Case(partial(prepare, torchs_layers_step), simulated=False)
    return {
        "every GPU the whole": partial(prepare, whole_step),
        "rows, ours": partial(prepare, rows_step),
        "layers, ours": partial(prepare, layers_step),
        "layers, torch's": theirs,
    }
