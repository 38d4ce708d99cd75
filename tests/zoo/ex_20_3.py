"""20.3 Survive a kill: train(step, w, steps, every, sizes, disk)."""

import io
import zlib

import torch
import torch.distributed as dist

from zoo import right, wrong


def packed(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def unpacked(data):
    return torch.load(io.BytesIO(data))


def numbers(disk, key=int):
    """Numbers of the checkpoints that have their final name."""
    names = {name.split("/")[0] for name in disk.names()}
    return sorted((name for name in names if name.isdigit()), key=key)


def load(disk, w, sizes, newest=None, key=int):
    """(steps done, losses, w, v) of the newest checkpoint, cut for these ranks."""
    found = numbers(disk, key)
    if not found or newest == 0:
        return 0, [], w, torch.zeros_like(w)
    here = sorted(x for x in disk.names() if x.startswith(f"{found[-1]}/"))
    files = [unpacked(disk.read(name)) for name in here]
    t, r = sizes[1], dist.get_rank()
    w, v = (torch.cat([f[k] for f in files]).tensor_split(t)[r % t] for k in "wv")
    return int(found[-1]), files[0]["losses"], w, v


def clear(disk):
    """Remove what killed attempts have left."""
    dist.barrier()
    for name in {x.split("/")[0] for x in disk.names()} if dist.get_rank() == 0 else ():
        if name.endswith(".part"):
            disk.remove(name)
    dist.barrier()


def save(disk, k, losses, w, v, sizes):
    if dist.get_rank() < sizes[1]:
        state = {"losses": losses, "w": w, "v": v}
        disk.write(f"{k}.part/{dist.get_rank()}", packed(state))
    dist.barrier()
    if dist.get_rank() == 0:
        disk.rename(f"{k}.part", str(k))
    dist.barrier()


def go_on(step, state, steps, every, sizes, disk, save=save):
    """Train from (steps done, losses, w, v) to the end."""
    k, losses, w, v = state
    while k < steps:
        loss, w, v = step(k, w, v)
        losses, k = [*losses, loss], k + 1
        if k % every == 0:
            save(disk, k, losses, w, v, sizes)
    return losses, w, v


def only_new(disk, k, *rest):
    """Save, unless there is a checkpoint of this step already."""
    if str(k) in numbers(disk):
        return dist.barrier()
    return save(disk, k, *rest)


@right
def renames_a_folder(step, w, steps, every, sizes, disk):
    state = load(disk, w, sizes)
    clear(disk)
    return go_on(step, state, steps, every, sizes, disk)


@right
def a_checksum_in_every_file(step, w, steps, every, sizes, disk):
    """No file gets another name: a checkpoint is whole if all its files are."""
    t, r = sizes[1], dist.get_rank()

    def write(disk, k, losses, w, v, sizes):
        if r < t:
            data = packed({"losses": losses, "w": w, "v": v})
            name = f"{k}-{r}-{t}"
            disk.write(name, zlib.crc32(data).to_bytes(4, "big") + data)

    found = {}
    for name in disk.names():
        data = disk.read(name)
        if zlib.crc32(data[4:]).to_bytes(4, "big") == data[:4]:
            k, part, count = map(int, name.split("-"))
            found.setdefault((k, count), {})[part] = data[4:]
    dist.barrier()
    whole = [key for key, parts in found.items() if len(parts) == key[1]]
    state = 0, [], w, torch.zeros_like(w)
    if whole:
        parts = found[max(whole)]
        files = [unpacked(parts[i]) for i in sorted(parts)]
        w, v = (torch.cat([f[k] for f in files]).tensor_split(t)[r % t] for k in "wv")
        state = max(whole)[0], files[0]["losses"], w, v
    return go_on(step, state, steps, every, sizes, disk, write)


@wrong("momentum")
def without_momentum(step, w, steps, every, sizes, disk):
    k, losses, w, v = load(disk, w, sizes)
    clear(disk)
    state = k, losses, w, torch.zeros_like(v)
    return go_on(step, state, steps, every, sizes, disk)


@wrong("again")
def the_last_one_again(step, w, steps, every, sizes, disk):
    k, losses, w, v = load(disk, w, sizes)
    clear(disk)
    state = max(k - 1, 0), losses, w, v
    return go_on(step, state, steps, every, sizes, disk, only_new)


@wrong("skips")
def one_too_far(step, w, steps, every, sizes, disk):
    k, losses, w, v = load(disk, w, sizes)
    clear(disk)
    return go_on(step, (k + (k > 0), losses, w, v), steps, every, sizes, disk)


@wrong("only the rest")
def without_the_losses(step, w, steps, every, sizes, disk):
    k, _, w, v = load(disk, w, sizes)
    clear(disk)
    return go_on(step, (k, [], w, v), steps, every, sizes, disk)


@wrong("no triple")
def the_losses_alone(step, w, steps, every, sizes, disk):
    return {"losses": renames_a_folder(step, w, steps, every, sizes, disk)[0]}


@wrong("left over")
def nobody_clears(step, w, steps, every, sizes, disk):
    state = load(disk, w, sizes)
    dist.barrier()
    return go_on(step, state, steps, every, sizes, disk)


@wrong("not atomic")
def straight_to_its_name(step, w, steps, every, sizes, disk):
    def write(disk, k, losses, w, v, sizes):
        if dist.get_rank() < sizes[1]:
            state = {"losses": losses, "w": w, "v": v}
            disk.write(f"{k}/{dist.get_rank()}", packed(state))
        dist.barrier()

    state = load(disk, w, sizes)
    dist.barrier()
    return go_on(step, state, steps, every, sizes, disk, write)


@wrong("not atomic")
def each_rank_renames_its_own(step, w, steps, every, sizes, disk):
    """Every file is whole, and the checkpoint is not."""

    def write(disk, k, losses, w, v, sizes):
        if (r := dist.get_rank()) < sizes[1]:
            state = {"losses": losses, "w": w, "v": v}
            disk.write(f"new-{r}", packed(state))
            disk.rename(f"new-{r}", f"{k}/{r}")
        dist.barrier()

    state = load(disk, w, sizes)
    dist.barrier()
    return go_on(step, state, steps, every, sizes, disk, write)


@wrong("other ranks")
def its_own_file(step, w, steps, every, sizes, disk):
    state, r = (0, [], w, torch.zeros_like(w)), dist.get_rank() % sizes[1]
    if found := numbers(disk):
        mine = unpacked(disk.read(f"{found[-1]}/{r}"))
        state = int(found[-1]), mine["losses"], mine["w"], mine["v"]
    clear(disk)
    return go_on(step, state, steps, every, sizes, disk)


@wrong("too early")
def newest_by_its_text(step, w, steps, every, sizes, disk):
    state = load(disk, w, sizes, key=str)
    clear(disk)
    return go_on(step, state, steps, every, sizes, disk, only_new)


@wrong("too early")
def from_the_start(step, w, steps, every, sizes, disk):
    """Saves nothing at all."""
    return go_on(step, (0, [], w, torch.zeros_like(w)), steps, steps + 1, sizes, disk)


@wrong("writes too much")
def after_every_step(step, w, steps, every, sizes, disk):
    state = load(disk, w, sizes)
    clear(disk)
    return go_on(step, state, steps, 1, sizes, disk)


@wrong("writes too much")
def all_copies(step, w, steps, every, sizes, disk):
    def write(disk, k, losses, w, v, sizes):
        t, r = sizes[1], dist.get_rank()
        state = {"losses": losses, "w": w, "v": v}
        disk.write(f"{k}.part/{r % t}-{r // t}", packed(state))
        dist.barrier()
        for name in disk.names() if r == 0 else ():
            if name.startswith(f"{k}.part/") and not name.endswith("-0"):
                disk.remove(name)
        if r == 0:
            disk.rename(f"{k}.part", str(k))
        dist.barrier()

    state = load(disk, w, sizes)
    clear(disk)
    return go_on(step, state, steps, every, sizes, disk, write)


@wrong("raises")
def forgets_the_end(step, w, steps, every, sizes, disk):
    return go_on(step, load(disk, w, sizes), steps, every, sizes, None)
