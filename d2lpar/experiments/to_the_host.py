"""Chapter 19: the way of a checkpoint from the GPUs to the host, and beside a step."""

from functools import partial

import torch
import torch.distributed as dist

from .measuring import Case, experiment, half


@experiment(small={"nbytes": 2**12, "width": 16})
def state_copies(nbytes=2**30, width=8192, products=10):
    """Copy a state to the host, alone and with the products of a step."""

    def prepare(pinned, work, apart):
        x = torch.zeros(width, width, dtype=half())
        state = torch.zeros(nbytes, dtype=torch.uint8)
        copy = state_copier(state, pinned, apart)
        return lambda: copy(lambda: [x @ x for _ in range(work)])

    def predicted(work, apart, cluster):
        flops, link = 2 * width**3, nbytes / cluster.host_rate
        one = cluster.compute_seconds(0, flops, 6 * width**2, half())
        return max(work * one, link) if apart else work * one + link

    def case(pinned, work=0, apart=False):
        how = partial(prepare, pinned, work, apart)
        return Case(how, partial(predicted, work, apart), nbytes)

    return {
        "pageable": case(False),
        "pinned": case(True),
        "step, then copy": case(True, products),
        "step beside copy": case(True, products, apart=True),
    }


def state_copier(state, pinned, apart):
    """Return a function that runs `work` and copies a state to the host."""
    there = torch.empty_like(state, device="cpu")
    there = there.pin_memory() if pinned else there
    if not apart:
        return lambda work: (work(), there.copy_(state, non_blocking=pinned))
    stream = torch.cuda.Stream()

    def both(work):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            there.copy_(state, non_blocking=True)
        work()
        torch.cuda.current_stream().wait_stream(stream)

    return both


@experiment(small={"nbytes": 2**12}, ranks=None)
def shard_copies(nbytes=2**28):
    """Copy the shards of all GPUs: each its own, or rank 0 all of them."""

    def prepare(gathered):
        n, first = dist.get_world_size(), dist.get_rank() == 0
        state = torch.zeros(nbytes, dtype=torch.uint8)
        if not gathered:
            return partial(state_copier(state, True, False), lambda: None)
        if not first:
            return lambda: dist.gather(state)
        every = torch.empty(n, nbytes, dtype=torch.uint8)
        gather = partial(dist.gather, state, list(every))
        return partial(state_copier(every, True, False), gather)

    own = lambda cluster: nbytes / cluster.host_rate
    gathered = lambda c: (c.n - 1) * nbytes / c.rate + c.n * own(c)
    return {
        "every GPU its shard": Case(partial(prepare, False), own, nbytes),
        "rank 0 all": Case(partial(prepare, True), gathered, nbytes),
    }
