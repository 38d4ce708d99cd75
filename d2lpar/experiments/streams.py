"""Chapter 04: streams and waiting on one GPU, messages between all GPUs."""

from functools import partial

import torch
import torch.distributed as dist

from ..messages import exchange
from ..report.units import short_bytes
from .measuring import Case, experiment, half


@experiment(small={"n": 64, "products": 2, "S": 10**4})
def copy_beside_products(n=8192, products=2, S=250_000_000):
    """Products and a copy from the host: alone, in one stream, in two."""

    def prepare(name):
        x, w = torch.randn(2, n, n, dtype=half())
        host = torch.empty(S, dtype=torch.uint8, device="cpu").pin_memory()
        here, side = torch.empty(S, dtype=torch.uint8), torch.cuda.Stream()
        copy = lambda: here.copy_(host, non_blocking=True)
        multiply = lambda: [x @ w for _ in range(products)]
        steps = {"products": multiply, "copy": copy}
        steps["one stream"] = lambda: (copy(), multiply())
        steps["two streams"] = lambda: on_two_streams(copy, multiply, side)
        return steps[name]

    def seconds(name, cluster):
        copy, flops = S / cluster.host_rate, products * 2 * n**3
        busy = cluster.compute_seconds(0, flops, 0, half())
        found = {"products": busy, "copy": copy, "one stream": copy + busy}
        return cluster.launch + found.get(name, max(copy, busy))

    names = "products", "copy", "one stream", "two streams"
    return {k: Case(partial(prepare, k), partial(seconds, k)) for k in names}


def on_two_streams(first, second, side):
    """Run `first` on the stream `side`, while `second` runs on this one."""
    here = torch.cuda.current_stream()
    side.wait_stream(here)  # for all that is queued here already
    with torch.cuda.stream(side):
        first()
    second()
    here.wait_stream(side)


@experiment(small={"n": 16, "products": 3})
def waits(n=1024, products=50):
    """Small products in a queue, and with a host that waits for each."""

    def prepare(wait):
        x, w = torch.randn(2, n, n, dtype=half())
        return lambda: [wait(x @ w) for _ in range(products)]

    def seconds(cluster):
        busy = cluster.compute_seconds(0, 2 * n**3, 6 * n * n, half())
        return products * (cluster.launch + busy)

    done, flops = lambda y: torch.cuda.synchronize(), products * 2 * n**3
    return {
        "queued": partial(prepare, lambda y: None),
        "waited for": Case(partial(prepare, done), seconds, flops=flops),
    }


@experiment(small={"sizes": (10**3, 10**4)}, ranks=None)
def ring_messages(sizes=(10**3, 10**4, 10**5, 10**6, 10**7, 10**8)):
    """A message of S bytes from every GPU to its right neighbour."""

    def prepare(S):
        n, r = dist.get_world_size(), dist.get_rank()
        x, incoming = torch.zeros(2, S, dtype=torch.uint8)
        return lambda: exchange(x, (r + 1) % n, incoming, (r - 1) % n)

    cases = [Case(partial(prepare, S), moved=S) for S in sizes]
    return dict(zip(map(short_bytes, sizes), cases, strict=True))
