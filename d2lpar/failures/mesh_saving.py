"""What a `MeshModel` and its optimizer must save to continue on any mesh.

Each number of the model is saved once, by one of the ranks that have it:

    data ranks       zero=0: the first one; zero=1: each has its shard's numbers
    tensor ranks     each has its part; of what is not split, the first has all
    stages           each has its blocks; the first one has the tied token table

Names and shapes are those of one device.  So a state that 2 x 2 x 2 ranks have saved
fits 4 x 1 x 1, and one rank.
"""

import torch

from ..sharding import parts
from .saving import Piece

# Along which dimension tensor ranks cut a parameter, also if there is only one.
CUTS = {"token.weight": 0, "qkv.weight": 0, "qkv.bias": 0, "out.weight": 1}
CUTS |= {"mlp.0.weight": 0, "mlp.0.bias": 0, "mlp.2.weight": 1}


def run_state(model, optimizer):
    """Return this rank's part of all that training needs to continue."""
    found, parameters = {}, {}
    for name, piece_of, values in entries(model, optimizer):
        parameters[name] = piece_of(values.pop("parameter"))
        found[name] = {key: piece_of(value) for key, value in values.items()}
    groups = [{k: v for k, v in group.items() if k != "params"}
              for group in optimizer.param_groups]  # fmt: skip
    return {
        "model": parameters,
        "optimizer": found,
        "groups": groups,
        "step": model.moment.step,
        "random": torch.get_rng_state(),
    }


def entries(model, optimizer):
    """Yield (name, value -> Piece, values) of each parameter that is saved here."""
    tensor = model.at["tensor"], model.mesh.sizes["tensor"]
    for name, p in saved_here(model):
        dim = cut_of(name)
        fold = 3 if ".qkv." in name else 1
        shape = list(p.shape)
        if dim is not None:
            shape[dim] *= tensor[1]
        for begin, state in runs(model, optimizer, p):

            def piece(value, shape=shape, dim=dim, fold=fold, begin=begin):
                if value.ndim == 0:  # such as Adam's number of steps
                    return Piece(value, ())
                return Piece(value, shape, dim, tensor, fold, begin)

            alone = tensor[0] == 0 and begin == 0
            yield name, piece, {k: v for k, v in state.items() if v.ndim or alone}


def cut_of(name):
    """Return the dimension along which tensor ranks cut a parameter, or None."""
    found = [dim for end, dim in CUTS.items() if name.endswith(end)]
    return found[0] if found else None


def saved_here(model):
    """Yield (name, parameter) of all that this rank saves."""
    seen = set()
    for name, p, _ in model.entries():
        again = name == "token.weight" and model.at["pipeline"] != model.ends[0]
        again |= cut_of(name) is None and model.at["tensor"] > 0
        again |= not model.zero and model.at["data"] > 0
        if not again and name not in seen:
            seen.add(name)
            yield name, p


def runs(model, optimizer, p):
    """Yield (begin, {"parameter": numbers, key: numbers}) of p, as it is held here."""
    if not model.zero:
        yield 0, {"parameter": p, **tensors(optimizer, p)}
        return
    for flat in model.data.flats:
        for each, begin, here in places(flat):
            if each is p:
                state = tensors(optimizer, flat.shard)
                some = {k: v[here] if v.ndim else v for k, v in state.items()}
                yield begin, {"parameter": flat.shard[here], **some}


def tensors(optimizer, p):
    """Return what the optimizer keeps of p."""
    state = optimizer.state.get(p, {})
    return {key: value for key, value in state.items() if torch.is_tensor(value)}


def places(flat):
    """Yield (parameter, first of its numbers, where they are in this rank's shard)."""
    begin, mine = 0, flat.mine
    for p, shape in zip(flat.params, flat.shapes, strict=True):
        end = begin + shape.numel()
        low, high = max(begin, mine.start), min(end, mine.stop)
        if low < high:
            yield p, low - begin, slice(low - mine.start, high - mine.start)
        begin = end


@torch.no_grad()
def restore(model, optimizer, state):
    """Continue with a loaded state: model, optimizer, step and random numbers."""
    model.shards  # noqa: B018  (zero=1 has flats from now on)
    for saved, group in zip(state["groups"], optimizer.param_groups, strict=True):
        group.update(saved)
    given = {}
    for name, p, _ in model.entries():
        p.copy_(state["model"][name].view(p.shape))
        given[p] = state["optimizer"].get(name, {})
    for p in () if model.zero else model.parameters():
        optimizer.state[p] = {k: _like(v, p) for k, v in given[p].items()}
    for flat in model.data.flats if model.zero else ():
        restore_flat(flat, optimizer, given)
    model.moment.step = state["step"]
    torch.set_rng_state(state["random"])


def _like(value, p):
    return value.view(p.shape).clone() if value.ndim else value.clone()


def restore_flat(flat, optimizer, given):
    """Take this rank's shard of the parameters of a flat and of their state."""
    flat.shard.copy_(flat.full[flat.mine])
    keys = {key for p in flat.params for key in given[p]}
    state = {}
    for key in keys:
        values = [given[p][key] for p in flat.params]
        if values[0].ndim == 0:
            state[key] = values[0].clone()
            continue
        wide = torch.zeros_like(flat.full)  # [n k]
        for part, value in zip(parts(flat, wide), values, strict=True):
            part.copy_(value.view(part.shape))
        state[key] = wide[flat.mine].clone()
    optimizer.state[flat.shard] = state
