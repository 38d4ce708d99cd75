"""Values that cases hand to answers, of kinds that a submission may hand back."""

import zlib
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import nn

from ..launch.run import sleep
from ..shared.played import Wire


class Host(str):
    """A host name whose hash differs from rank to rank, as on real processes."""

    def __hash__(self):
        rank = dist.get_rank() if dist.is_initialized() else -1
        return zlib.crc32(f"{rank} {str(self)}".encode())


class WireAndMemory(Wire):
    """A wire beside the memory of some tensors, as an optimizer holds it, too.

    `memory` has a view of each from the moment when a device gets its arguments.
    """

    memory = None

    def __init__(self, tensors):
        super().__init__()
        self.tensors = list(tensors)

    def __setstate__(self, state):
        vars(self).update(state)
        self.memory = self.memory or [x.view(-1) for x in self.tensors]


class Drift(nn.Module):
    """Its gradients depend on its buffers; a pass changes some, in place or not."""

    def __init__(self, D, seed):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64)
        self.weight = nn.Parameter(draw(D, D) / D)
        self.bias = nn.Parameter(draw(D))
        self.register_buffer("mean", draw(D))
        self.register_buffer("seen", torch.tensor(2**60 + 1 + seed % 1000))
        self.register_buffer("scale", 1 + draw(1).square(), persistent=False)

    def forward(self, x):
        y = (x - self.mean) / self.scale @ self.weight + self.bias
        with torch.no_grad():
            self.mean = (self.mean + x.mean(0)) / 2
            self.seen += (x > 0).sum()
        return y


class Layer(nn.Module):
    """tanh of a linear layer; on a rank its F and its B take these seconds."""

    def __init__(self, weight, bias, seconds=(0.0, 0.0)):
        super().__init__()
        self.linear, self.seconds = nn.Linear(*weight.shape).double(), seconds
        self.linear.weight.data, self.linear.bias.data = weight, bias

    def forward(self, x):
        forward, backward = self.seconds
        sleep(forward)
        out = torch.tanh(self.linear(x))
        if out.requires_grad:
            out.register_hook(lambda gradient: sleep(backward))
        return out


class Words(nn.Module):
    """A weight [V, D] on the way "in" from V numbers to D, "out" to V, or both."""

    def __init__(self, w, ways):
        super().__init__()
        self.w, self.ways = nn.Parameter(w.clone()), ways

    def forward(self, x):
        x = torch.tanh(x @ self.w) if "in" in self.ways else x  # [N, V] -> [N, D]
        return x @ self.w.T if "out" in self.ways else x


class Killed(Exception):
    """The whole run is killed here."""


class Disk:
    """Files that all ranks see, until the run is killed.

    A folder is what several names have before their first slash.
    """

    made = WeakValueDictionary()  # ranks are threads, so all find the same by its id

    def __init__(self, files, kill=None):
        self.made[id(self)] = self
        self.files, self.kill, self.changes = files, kill, []
        self.written, self.steps, self.dead = 0, 0, False

    def names(self):
        """Return the names of all files, in no order that one could rely on."""
        self.alive()
        return sorted(self.files, key=lambda name: zlib.crc32(name.encode()))

    def read(self, name):
        """Return the bytes of a file."""
        self.alive()
        if name not in self.files:
            raise FileNotFoundError(f"There is no file {name!r} on this disk.")
        return self.files[name]

    def write(self, name, data):
        """Make a file, or replace it; a kill leaves half of it."""
        data = bytes(data)
        with self.change("write") as half:
            self.files[str(name)] = data[: len(data) // 2] if half else data
            self.written += len(data)

    def rename(self, old, new):
        """Give a file or folder another name, at once or not at all."""
        inside = self.inside(old)
        if not inside or self.inside(new):
            again = f"a {new!r} already on this disk, so it is saved a second time"
            raise OSError(
                f"There is {again if inside else f'no {old!r} on this disk'}."
            )
        with self.change("rename") as half:
            for name in () if half else inside:
                self.files[new + name[len(old) :]] = self.files.pop(name)

    def remove(self, name):
        """Remove a file or folder; a kill leaves half of a folder."""
        inside = self.inside(name)
        with self.change("remove") as half:
            for each in inside[: len(inside) // 2] if half else inside:
                del self.files[each]

    def inside(self, name):
        self.alive()
        return [x for x in sorted(self.files) if x == name or x.startswith(f"{name}/")]

    def alive(self, ends=False):
        self.dead = self.dead or ends
        if self.dead:
            raise Killed("The run is killed.")

    @contextmanager
    def change(self, kind):
        """Inside, whether the kill comes in the middle; behind, it may have come."""
        self.alive()
        self.changes.append(kind)
        counts = ("change", len(self.changes)), (kind, self.changes.count(kind))
        middle, after = (
            any(self.kill == (when, *count) for count in counts)
            for when in ("the middle of", "after")
        )
        yield middle
        self.alive(middle or after)
