"""Chapter 09: copies between a GPU and the memory of its host."""

from functools import partial

import torch

from .measuring import Case, experiment


@experiment(small={"size": 2**16, "parts": 4})
def host_copies(size=2**28, parts=1024):
    """Copies between a GPU and its host, from pinned or pageable memory."""

    def whole(gpus):
        latency, rate, _ = gpus.host_path(0)
        return latency + size / rate

    def in_turn(gpus):  # each part waits for the one before it
        return whole(gpus) + (parts - 1) * gpus.host_path(0)[0]

    def queued(gpus):  # Python starts a part while others are on their way
        return max(whole(gpus), parts * gpus.launch)

    def case(form, moved=size, **how):
        return Case(partial(copying, size, **how), form, moved, bool(form))

    return {
        "pageable, to the GPU": case(None, pinned=False),
        "pinned, to the GPU": case(whole),
        "pinned, to the host": case(whole, ways=("host",)),
        "pinned, both ways": case(whole, 2 * size, ways=("GPU", "host")),
        f"{parts} parts, in turn": case(in_turn, parts=parts, wait=True),
        f"{parts} parts, queued": case(queued, parts=parts),
    }


def copying(size, ways=("GPU",), pinned=True, parts=1, wait=False):
    """Return a step that copies so many bytes to the GPU, the host or both."""
    like, pairs = {"dtype": torch.uint8}, []
    for way in ways:
        host = torch.ones(size, **like, device="cpu", pin_memory=pinned)
        here, there = torch.ones(size, **like).chunk(parts), host.chunk(parts)
        aims, sources = (here, there) if way == "GPU" else (there, here)
        moves = list(zip(aims, sources, strict=True))
        pairs.append((torch.cuda.Stream(), moves))

    def step():
        now = torch.cuda.current_stream()
        for stream, moves in pairs:
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                for aim, source in moves:
                    aim.copy_(source, non_blocking=not wait)
        for stream, _ in pairs:
            now.wait_stream(stream)

    return step
