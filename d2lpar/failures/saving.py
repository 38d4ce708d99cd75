"""Save the state of a run, so that a kill at any moment leaves the last one whole.

A folder holds numbered checkpoints.  One more is written in three steps:

    1   every rank writes its own file     path/7.part-3f2a/rank-0-of-2.pt, ...
    2   the last rank to be ready adds     path/7.part-3f2a/manifest.json
    3   and renames the folder             path/7

A file has its name once its bytes are on the disk, and the folder once all files are
in it.  So a folder without `.part` is complete, and its manifest has a checksum for
each file.  No rank waits for another one, and writing can go on beside training.

A state is a dict of dicts of anything that `torch.save` writes.  A `Piece` in it is a
part of a tensor that is whole on one device, so it can be loaded onto any mesh.  All
else is a rank's own: rank r gets back what rank r modulo n has saved.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

KEEP = 2  # complete checkpoints that stay
_unfinished = {}  # (path, rank): the Saving that is perhaps not written yet


# A tensor of six rows, cut along dimension 0 for n = 2 tensor ranks:
#
#     fold 1       0 1 2 | 3 4 5             rank 0 has 0 1 2
#     fold 3       0 | 1   2 | 3   4 | 5     rank 0 has 0 2 4: its q, k and v
class Piece(NamedTuple):
    """A part of a tensor that is whole on one device.

    tensor    the part; or a flat run of its numbers that starts at `begin`
    shape     of the whole tensor
    dim       the dimension along which it is cut, None if it is not
    part      (r, n): it is part r of n
    fold      into how many equal blocks of dimension 0 the cut goes
    axis      of the mesh, along whose ranks it is cut
    """

    tensor: torch.Tensor
    shape: tuple
    dim: int | None = None
    part: tuple = (0, 1)
    fold: int = 1
    begin: int = 0
    axis: str = "tensor"


def part_of(whole, dim, part, fold=1):
    """Return the part of a whole tensor, a view [fold, ...] if it is cut."""
    if dim is None or part[1] == 1:
        return whole
    r, n = part
    return whole.unflatten(0, (fold, -1)).tensor_split(n, dim + 1)[r]


class Saving:
    """A checkpoint in progress; `wait()` until this rank's file is written."""

    def __init__(self, write):
        self.error, self._write = None, write
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        """Write in a thread, while training goes on."""
        self._thread.start()
        return self

    def _run(self):
        try:
            self._write()
        except BaseException as error:
            self.error = error

    def wait(self):
        """Return when this rank has written, or raise what went wrong."""
        self._thread.join()
        if self.error is not None:
            raise self.error


def save(state, path, wait=True, keep=KEEP):
    """Write the next checkpoint in the folder `path`, together with all ranks.

    Every rank calls it with its own state.  With `wait=False` it copies the
    state and returns a `Saving` at once; a later save waits for this one.
    Afterwards the newest `keep` checkpoints are left.
    """
    path, (r, n) = Path(path), rank_and_size()
    before = _unfinished.pop((path, r), None)
    if before is not None:
        before.wait()
        meet(n)  # now it is complete
    number, token = agree(path)
    data = split_off(state)  # a copy: training may go on
    part = path / f"{number}.part-{token:08x}"
    write = lambda: _write(data, part, path / str(number), r, n, keep)
    if wait:
        write()
        meet(n)  # the last rank has renamed the folder
        return None
    _unfinished[path, r] = Saving(write).start()
    return _unfinished[path, r]


def rank_and_size():
    """Return (rank, ranks), which is (0, 1) where no process group is."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def meet(n):
    """Wait for the other n - 1 ranks."""
    if n > 1:
        dist.barrier()


def agree(path):
    """Return (number, token) of the next checkpoint, the same on all ranks.

    A token tells this attempt from one that was killed.
    """
    r, n = rank_and_size()
    mine = [0, 0]
    if r == 0:
        mine = [1 + max(complete(path), default=0), secrets.randbits(32)]
    if n == 1:
        return mine
    shared = torch.tensor(mine)
    dist.broadcast(shared, 0)
    return shared.tolist()


def split_off(state, path=()):
    """Return a copy: {"own": all but Pieces, "pieces": {path: Piece}}."""
    own, pieces = {}, {}
    for key, value in state.items():
        here = (*path, key)
        if isinstance(value, Piece):
            tensor = value.tensor.detach().to("cpu", copy=True)
            shape = tuple(value.shape)
            pieces[here] = tuple(value._replace(tensor=tensor, shape=shape))
        elif isinstance(value, dict):
            inside = split_off(value, here)
            own[key] = inside["own"]
            pieces |= inside["pieces"]
        else:
            own[key] = _copy(value)
    return {"own": own, "pieces": pieces}


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, list | tuple):
        return type(value)(map(_copy, value))
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return value


def _write(data, part, final, r, n, keep):
    """Write a rank's file; the last rank to do so completes the checkpoint."""
    part.mkdir(parents=True, exist_ok=True)
    name = f"rank-{r}-of-{n}.pt"
    put(part / name, lambda file: torch.save(data, file))
    entry = {name: {"sha256": digest(part / name)}}
    put_text(part / f"{name}.json", json.dumps(entry))
    entries = list(part.glob("rank-*.json"))
    if len(entries) == n and come_first(part / "completing"):
        _complete(part, final, entries)
        _remove_old(final, keep)


def come_first(path):
    """Return whether this rank made the file, which only one of them can."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except (FileExistsError, FileNotFoundError):  # or it is renamed already
        return False
    return True


def _complete(part, final, entries):
    """Give the folder its manifest and its name."""
    files = {}
    for path in entries:
        files |= json.loads(path.read_text())
    put_text(part / "manifest.json", json.dumps({"files": files}, indent=1))
    for path in [*entries, part / "completing"]:
        path.unlink()
    os.rename(part, final)
    settle(final.parent)


# A name that appears before the bytes are on the disk is a half-written file
# after a power cut.  So: a hidden name, bytes, fsync, rename, fsync of the
# folder.
def put(path, write):
    """Give a file its name when what `write(file)` writes is on the disk."""
    hidden = path.with_name(f".{path.name}")
    with open(hidden, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
    settle(path.parent)


def put_text(path, text):
    """Write a text as `put` does."""
    put(path, lambda file: file.write(text.encode()))


def settle(folder):
    """Force the names in this folder to the disk."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    try:
        handle = os.open(folder, os.O_DIRECTORY)
    except FileNotFoundError:  # the last rank has already renamed it
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path):
    """Return the SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_old(final, keep):
    """Remove older checkpoints, and what killed attempts have left.

    A checkpoint first loses its name, so that no half of it can be loaded.
    """
    path = final.parent
    for number in complete(path)[:-keep]:
        with contextlib.suppress(OSError):
            os.rename(path / str(number), path / f"{number}.part-old")
    for folder in path.glob("*.part-*"):
        if int(folder.name.partition(".")[0]) <= int(final.name):
            shutil.rmtree(folder, ignore_errors=True)


def complete(path):
    """Return the numbers of the complete checkpoints, the newest last."""
    names = [folder.name for folder in Path(path).glob("*")]
    return sorted(int(name) for name in names if re.fullmatch(r"\d+", name))


def load(path, mesh=None, rank=None, only=lambda *keys: True):
    """Return the newest state in the folder `path` that is whole.

    Without a mesh its pieces are whole tensors, as on one device.  With a
    `Mesh` they are the parts of this rank, or of `rank`.  `only(*keys)` says
    which pieces are wanted.  Checks every file, and passes over a damaged
    checkpoint with a warning.  Raises FileNotFoundError if none is whole.
    """
    for number in reversed(complete(path)):
        folder = Path(path) / str(number)
        wrong = damage(folder)
        if not wrong:
            return assemble(folder, mesh, rank, only)
        text = f"{folder} is damaged ({wrong}): trying an older checkpoint."
        warnings.warn(text, stacklevel=2)
    raise FileNotFoundError(f"There is no complete checkpoint in {path}.")


def damage(folder):
    """Return what is wrong with a checkpoint, or an empty text."""
    try:
        files = json.loads((folder / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError):
        return "it has no manifest"
    for name, entry in files.items():
        if not (folder / name).exists():
            return f"{name} is missing"
        if digest(folder / name) != entry["sha256"]:
            return f"{name} has other bytes than were written"
    return ""


def assemble(folder, mesh, rank, only):
    """Return the state of one rank, from the files of all ranks."""
    files = sorted(folder.glob("rank-*.pt"), key=_number)
    saved = [torch.load(f, mmap=True, weights_only=True) for f in files]
    r = rank_and_size()[0] if rank is None else rank
    state = _copy(saved[r % len(saved)]["own"])
    found = {}
    for each in saved:
        for keys, fields in each["pieces"].items():
            found.setdefault(keys, []).append(Piece(*fields))
    at = mesh.coordinates(r) if mesh else {}
    for keys, pieces in found.items():
        if only(*keys):
            axis = pieces[0].axis
            part = (at[axis], mesh.sizes[axis]) if mesh else (0, 1)
            _set(state, keys, join(pieces, part))
    return state


def _number(path):
    return int(path.name.split("-")[1])


def _set(state, keys, value):
    for key in keys[:-1]:
        state = state.setdefault(key, {})
    state[keys[-1]] = value


def join(pieces, part=(0, 1)):
    """Return part r of n of the tensor that these pieces make up.

    Raises ValueError unless they have as many numbers as it has.
    """
    first = pieces[0]
    whole, filled = first.tensor.new_empty(first.shape), 0
    for piece in pieces:
        target = part_of(whole, piece.dim, piece.part, piece.fold)
        if piece.tensor.numel() == target.numel():
            target.copy_(piece.tensor.view(target.shape))
        else:  # some numbers of the part
            end = piece.begin + piece.tensor.numel()
            run = target.flatten().clone()
            run[piece.begin : end] = piece.tensor.flatten()
            target.copy_(run.view(target.shape))
        filled += piece.tensor.numel()
    if filled != whole.numel():
        text = f"The pieces have {filled:,} numbers,"
        raise ValueError(f"{text} and the tensor {whole.numel():,}.")
    mine = part_of(whole, first.dim, part, first.fold)
    return mine if mine is whole else mine.flatten(0, 1).clone()
