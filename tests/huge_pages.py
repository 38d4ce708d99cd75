"""Once imported, the memory of this process lies in huge pages, where Linux has them.

A fork copies an entry per page.  A fork server with torch has 50,000 pages; most fit
into a hundred huge ones, and the start of a rank then takes less of a processor.
"""

import ctypes
from pathlib import Path

SIZE = 1 << 21
COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; where it is refused, nothing changes


def regions(maps):
    """(begin, end) of what this process may write and no file holds, in whole pages."""
    for line in maps.splitlines():
        addresses, allowed, _, _, _, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin, end = -(-begin // SIZE) * SIZE, end // SIZE * SIZE
        if allowed == "rw-p" and name in ([], ["[heap]"]) and begin < end:
            yield begin, end


def collapse():
    """Ask the kernel to put these regions into huge pages."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, end in regions(Path("/proc/self/maps").read_text()):
        advise(begin, end - begin, COLLAPSE)


if Path("/proc/self/maps").exists():
    collapse()
