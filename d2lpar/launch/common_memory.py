"""Memory that all ranks of a group have in common, and bells to wake each other.

Rank 0 makes a file without a name and tells the others its own process and the number
of the file; they find it under /proc.  The bells, which are pipes, are found likewise.
So there is nothing to remove, however the ranks end: when the last one lets go of the
memory, the system takes it back.
"""

import contextlib
import mmap
import os
import select
import tempfile
import time

import torch.distributed as dist

from ..sim import torch_private

PATIENCE = 1800.0  # seconds that a rank waits for a bell
AWAKE = 1e-4  # seconds before a rank that waits falls asleep
NAP = 5e-5  # seconds of sleep where there are no bells


def common_memory(size, group):
    """(`size` bytes that all ranks of the group map, this rank's Bell).

    All ranks of the group call it.  Ranks that are threads get no bell, but None.
    RuntimeError where the ranks are on several hosts.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    with _new_file(size) if r == 0 else contextlib.nullcontext() as file:
        address = [(*_address(file), _node()) if r == 0 else None]
        dist.broadcast_object_list(address, group=group, group_src=0)
        memory, bell, all_bells = _mapped(*address[0]), Bell(), [None] * n
        dist.all_gather_object(all_bells, memory and bell.address, group=group)
    if None in all_bells:
        blind = [rank for rank in range(n) if all_bells[rank] is None]
        raise RuntimeError(
            f"Ranks {blind} of the group do not find the memory of its rank 0. Shared "
            "memory needs all of them on one host; messages, as in a ring, do not."
        )
    if len({pid for pid, _ in all_bells}) == 1:
        return memory, None
    bell.others = [_writable(*all_bells[rank]) for rank in range(n) if rank != r]
    bell.awake = AWAKE if n <= os.cpu_count() else 0.0
    return memory, bell


class Bell:
    """A rank sleeps on its own bell, and rings those of the others."""

    def __init__(self):
        sleeping, ringing = os.pipe()
        self.bell = os.fdopen(sleeping, "rb", 0)
        self.open = os.fdopen(ringing, "wb", 0)  # others find it while it is open
        self.address = os.getpid(), ringing
        self.others, self.awake = [], 0.0
        self.poll = select.poll()
        self.poll.register(sleeping, select.POLLIN)

    def ring(self):
        """The others are awake, or will not fall asleep."""
        for other in self.others:
            if other is not None:
                with contextlib.suppress(BrokenPipeError):  # that rank has ended
                    other.write(b"!")  # nothing where it is full: that rings, too

    def wait_until(self, ready):
        """`ready()` is true: it has become so before somebody has rung.

        First this rank looks again and again, for as long as it takes to fall
        asleep and to wake up.  Not so where ranks have to share the cores.
        """
        start = time.perf_counter()
        while not ready():
            if time.perf_counter() - start > self.awake:
                self._sleep()

    def _sleep(self):
        if None in self.others:
            time.sleep(NAP)
        elif self.poll.poll(1000 * PATIENCE):
            self.bell.read(4096)
        else:
            raise RuntimeError(f"No other rank has come for {PATIENCE:.0f} s.")


def _writable(pid, number):
    """The pipe of another process, None where the system has no such way to it."""
    with contextlib.suppress(OSError):
        end = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
        return os.fdopen(end, "wb", 0)
    return None


@contextlib.contextmanager
def _new_file(size):
    """A file in memory that has no name, so that nothing can be left behind.

    Where the system has none, a temporary file, until all ranks have mapped it.
    """
    if hasattr(os, "memfd_create"):
        opened = os.fdopen(os.memfd_create("d2lpar-board"), "r+b")
    else:
        opened = tempfile.NamedTemporaryFile(prefix="d2lpar-")  # noqa: SIM115
    with opened as file:
        file.truncate(size)
        yield file


def _address(file):
    """(path, mark) by which another process of this host finds the open file."""
    if isinstance(file.name, str):
        return file.name, _mark(file.name)
    path = f"/proc/{os.getpid()}/fd/{file.name}"
    return path, _mark(path)


def _mark(path):
    """What tells the file from one at the same path on another host."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_ctime_ns


def _mapped(path, mark, node):
    """The memory of that file, None where it is not there for this rank."""
    with contextlib.suppress(OSError):
        if _mark(path) == mark and _node() == node:
            with open(path, "r+b") as file:
                return mmap.mmap(file.fileno(), 0)
    return None


def _node():
    """The host of this rank in the simulator, 0 in the other worlds."""
    engine = torch_private.current_engine()
    return engine.cluster.node(engine.rank) if engine and engine.cluster else 0
