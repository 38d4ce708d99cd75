"""20.2 The mesh step: mesh_step(blocks, x, y, N, sizes, m, lr)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from d2lpar.allreduce import ring_allreduce
from d2lpar.mesh import Mesh
from d2lpar.mesh.gpt_parts import blocks_of
from d2lpar.pipeline import Pipeline, schedule
from d2lpar.tensor_parallel import Add, own_part, parallel_mlp
from zoo import right, wrong


class Block(nn.Module):
    def __init__(self, weights):
        super().__init__()
        H, D = weights["mlp.0.weight"].shape
        up, down = nn.Linear(D, H), nn.Linear(H, D)
        self.norm, self.mlp = nn.LayerNorm(D), nn.Sequential(up, nn.GELU(), down)
        self.double().load_state_dict(weights)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def squares(out, y):
    return (out - y).square().sum()


def split(block, group):
    block.mlp = parallel_mlp(*block.mlp, group=group)


def step(
    blocks, x, y, N, sizes, m, lr, split=split, rows=None, over_data=1.0,
    along=("data", "pipeline"), mine=blocks_of, new=None, reduce=None,
):  # fmt: skip
    """A right step, of which each wrong answer changes one thing."""
    mesh, p = Mesh(*sizes), sizes[1]
    groups = {axis: mesh.group(axis) for axis in ("tensor", "pipeline", "data")}
    stage = mesh.coordinates(dist.get_rank())["pipeline"]
    net = nn.Sequential(*(Block(blocks[i]) for i in mine(len(blocks), stage, p)))
    for block in net:
        split(block, groups["tensor"])
    made = schedule.make("1f1b", p, m)
    pipeline = Pipeline(made, [net], squares, groups["pipeline"])
    loss = pipeline.step(x, y, rows or N).double() * over_data
    for axis in along:
        dist.all_reduce(loss, group=groups[axis])
    for name, weight in net.named_parameters():
        (reduce or everything)(name, weight.grad, groups["data"])
        weight.data -= lr * over_data * weight.grad
    return loss.item(), (new or states)(net)


def everything(name, gradient, group):
    dist.all_reduce(gradient, group=group)


def states(net):
    return [dict(block.state_dict()) for block in net]


@right
def with_the_librarys_parts(blocks, x, y, N, sizes, m, lr):
    return step(blocks, x, y, N, sizes, m, lr)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.clone()
        ring_allreduce(dy, ctx.group)
        return dy, None


@right
def by_hand(blocks, x, y, N, sizes, m, lr):
    """GPipe with plain messages, functions instead of modules, one flat gradient."""
    (_, p, t), r = sizes, dist.get_rank()
    mesh, stage, part = Mesh(*sizes), r // t % p, r % t
    groups = {axis: mesh.group(axis) for axis in ("tensor", "data", "pipeline")}
    cut = {"mlp.0.weight": 0, "mlp.0.bias": 0, "mlp.2.weight": 1}
    mine = []
    for i in blocks_of(len(blocks), stage, p):
        its = {
            k: w.chunk(t, cut[k])[part].clone() if k in cut else w.clone()
            for k, w in blocks[i].items()
        }
        mine.append({k: w.requires_grad_() for k, w in its.items()})

    def forward(x):
        for w in mine:
            z = F.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"])
            z = Sum.apply(z, groups["tensor"])
            z = F.gelu(F.linear(z, w["mlp.0.weight"], w["mlp.0.bias"]))
            z = Add.apply(F.linear(z, w["mlp.2.weight"]), groups["tensor"])
            x = x + z + w["mlp.2.bias"]
        return x

    loss, kept = torch.zeros((), dtype=torch.float64), []
    for xs, ys in zip(x.tensor_split(m), y.tensor_split(m), strict=True):
        if stage > 0:
            xs = torch.empty_like(xs)
            dist.recv(xs, r - t)
            xs.requires_grad_()
        out = forward(xs)
        if stage < p - 1:
            dist.send(out.detach(), r + t)
        else:
            out = squares(out, ys) / N
            loss += out.detach()
        kept.append((xs, out))
    for xs, out in kept:
        gradient = None
        if stage < p - 1:
            gradient = torch.empty_like(out)
            dist.recv(gradient, r + t)
        out.backward(gradient)
        if stage > 0:
            dist.send(xs.grad, r - t)
    weights = [w for each in mine for w in each.values()]
    flat = torch.cat([w.grad.flatten() for w in weights])
    ring_allreduce(flat, groups["data"])
    one = loss.reshape(1)
    ring_allreduce(one, groups["data"])
    dist.broadcast(one, group_src=p - 1, group=groups["pipeline"])
    sizes = [w.numel() for w in weights]
    for w, g in zip(weights, flat.split(sizes), strict=True):
        w.data -= lr * g.view(w.shape)
    return one, [{k: w.detach() for k, w in each.items()} for each in mine]


@wrong("no pair")
def the_weights_alone(blocks, x, y, N, sizes, m, lr):
    loss, new = step(blocks, x, y, N, sizes, m, lr)
    return {"loss": loss, "weights": new}


@wrong("mean of means")
def averages_over_data(blocks, x, y, N, sizes, m, lr):
    how = {"rows": len(x), "over_data": 1 / sizes[0]}
    return step(blocks, x, y, N, sizes, m, lr, **how)


@wrong("sum")
def adds_up_means(blocks, x, y, N, sizes, m, lr):
    return step(blocks, x, y, N, sizes, m, lr, rows=len(x))


@wrong("no data")
def forgets_the_data_axis(blocks, x, y, N, sizes, m, lr):
    nothing = lambda *gradient: None
    return step(blocks, x, y, N, sizes, m, lr, reduce=nothing)


@wrong("local loss")
def its_own_loss(blocks, x, y, N, sizes, m, lr):
    return step(blocks, x, y, N, sizes, m, lr, along=())


@wrong("whole")
def joins_the_parts(blocks, x, y, N, sizes, m, lr):
    def joined(net):
        whole = []
        for block in net:
            its = dict(block.state_dict())
            for name, dim in CUT.items():
                parts = [torch.empty_like(its[name]) for _ in range(sizes[2])]
                group = block.mlp[0].group
                dist.all_gather(parts, its[name].contiguous(), group=group)
                its[name] = torch.cat(parts, dim)
            whole.append(its)
        return whole

    return step(blocks, x, y, N, sizes, m, lr, new=joined)


CUT = {"mlp.0.weight": 0, "mlp.0.bias": 0, "mlp.2.weight": 1}


@wrong("gradients")
def no_update(blocks, x, y, N, sizes, m, lr):
    def gradients(net):
        return [{k: w.grad for k, w in b.named_parameters()} for b in net]

    return step(blocks, x, y, N, sizes, m, lr, new=gradients)


@wrong("one micro-batch")
def all_rows_at_once(blocks, x, y, N, sizes, m, lr):
    return step(blocks, x, y, N, sizes, 1, lr)


@wrong("works for others")
def splits_nothing(blocks, x, y, N, sizes, m, lr):
    """Every tensor rank computes with all weights, and keeps its part at the end."""
    r, t = dist.get_rank(), sizes[2]

    def cut(net):
        return [
            {k: w.chunk(t, CUT[k])[r % t] if k in CUT else w for k, w in b.items()}
            for b in states(net)
        ]

    alone = lambda block, group: None
    return step(blocks, x, y, N, sizes, m, lr, split=alone, new=cut)


@wrong("sends too much")
def gathers_gradients(blocks, x, y, N, sizes, m, lr):
    def gathered(name, gradient, group):
        every = [torch.empty_like(gradient) for _ in range(sizes[0])]
        dist.all_gather(every, gradient.contiguous(), group=group)
        dist.barrier(group)
        gradient.copy_(sum(every))

    return step(blocks, x, y, N, sizes, m, lr, reduce=gathered)


class Columns(nn.Module):
    """Own columns, without a sum of the gradient that leaves them."""

    def __init__(self, layer, group):
        super().__init__()
        self.weight = nn.Parameter(own_part(layer.weight.data, 0, group).clone())
        self.bias = nn.Parameter(own_part(layer.bias.data, 0, group).clone())

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@wrong("tensor axis")
def no_sum_backward(blocks, x, y, N, sizes, m, lr):
    def without(block, group):
        up = block.mlp[0]
        split(block, group)
        block.mlp[0] = Columns(up, group)

    return step(blocks, x, y, N, sizes, m, lr, split=without)


@wrong("pipeline axis")
def the_last_has_more(blocks, x, y, N, sizes, m, lr):
    def reversed_stages(count, stage, p):
        each = count // p
        return range(stage * each, count if stage == p - 1 else (stage + 1) * each)

    return step(blocks, x, y, N, sizes, m, lr, mine=reversed_stages)


@wrong("data axis")
def weights_only(blocks, x, y, N, sizes, m, lr):
    def some(name, gradient, group):
        if gradient.ndim > 1:
            dist.all_reduce(gradient, group=group)

    return step(blocks, x, y, N, sizes, m, lr, reduce=some)


@wrong("hangs")
def only_rank_0_makes_groups(blocks, x, y, N, sizes, m, lr):
    mesh = Mesh(*sizes)
    if dist.get_rank() == 0 and mesh.ranks > 1:
        mesh.group("tensor")
    return step(blocks, x, y, N, sizes, m, lr)
