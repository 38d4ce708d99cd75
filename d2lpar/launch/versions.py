"""The newest torch that the course was tried with, and a trial of newer ones."""

import functools
from importlib.metadata import PackageNotFoundError, version

NEWEST = (2, 15)  # newer ones are tried when a world starts


def newer_than_tried(installed=None):
    """Return a sentence if this or that torch is newer than `NEWEST`, else ""."""
    try:
        installed = (installed or version("torch")).split("+")[0]
        numbers = tuple(int(part) for part in installed.split(".")[:2])
    except (PackageNotFoundError, ValueError):  # built at home, named by hand
        return ""
    if numbers <= NEWEST:
        return ""
    tried = ".".join(map(str, NEWEST))
    return (
        f"This is torch {installed}, and the newest that the course was tried with is "
        f"{tried}."
    )


def failed(reason):
    """Return the sentences that say why a newer torch is of no use, and what to do."""
    return (
        f"{newer_than_tried()} A trial of it failed ({reason}). Update d2lpar, or "
        "install an older torch into an environment of its own: pip install "
        f'"torch=={NEWEST[0]}.{NEWEST[1]}.*"'
    )


@functools.cache
def trial():
    """Try a newer torch once: two simulated ranks call what every world relies on.

    Returns "" where it works, and where this torch needs no trial; else the first line
    of the error.
    """
    if not newer_than_tried():
        return ""
    from ..sim.cluster import Cluster
    from ..sim.ship import pack
    from ..sim.simulator import Simulator

    try:
        failure = Simulator(2, Cluster.plain).run(pack((_try, (), {}))).failure
    except Exception as error:  # whatever has changed in torch
        failure = error
    return str(failure or "").partition("\n")[0].rstrip(".")


def check():
    """Raise RuntimeError, with what to install, where a newer torch does not work."""
    if failure := trial():
        raise RuntimeError(failed(failure))


def _try():
    """An exchange, a batch, a group and collectives of all kinds, with their values."""
    import torch
    import torch.distributed as dist

    me, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.full([3], float(me)), torch.empty(3)
    dist.send(mine, other) if me else dist.recv(theirs, other)
    ends = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    assert theirs.tolist() == [other] * 3
    group = dist.new_group([0, 1])
    dist.all_reduce(mine, group=group)
    both = torch.empty(6)
    dist.all_gather_into_tensor(both, mine)
    dist.reduce_scatter_tensor(mine, both)
    dist.broadcast(mine, src=0)
    dist.barrier()
    assert mine.tolist() == [2] * 3
