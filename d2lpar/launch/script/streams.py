"""A GPU's streams and events, on a rank's clock.

Each stream has a clock of its own: what one computes, and the calls of NCCL that it
waits for, hold up that stream alone.  Others, and the rank, go on until they wait for
it or for an event that was recorded in it.
"""

import torch

from ...sim.torch_private import current_engine

CPU = torch.device("cpu")


def mine():
    """The PlayedGpus of the rank that calls, or None outside of a script."""
    engine = current_engine()
    return engine and engine.gpus


class Event:
    """`torch.cuda.Event`, on the rank's clock."""

    def __init__(self, *args, **kwargs):
        self.clock, self.calls = None, set()  # those, by id, that it waits for

    def record(self, stream=None):
        gpus = mine()
        stream = stream or gpus.stream
        self.clock, self.calls = gpus.moment(stream), gpus.in_flight(stream)

    def elapsed_time(self, other):
        """Milliseconds from this event to the other."""
        return (other.clock - self.clock) * 1e3

    def query(self):
        return True

    def wait(self, stream=None):
        (stream or mine().stream).wait_event(self)

    def synchronize(self):
        mine().catch_up(self)


class Stream:
    """`torch.cuda.Stream`; values are computed at once, in the rank's own order."""

    cuda_stream = stream_id = device_index = 0
    device_type = 1  # torch's number for CUDA

    def __init__(self, *args, **kwargs):
        self.device, self.calls, self.clock = CPU, set(), 0.0
        self._before = []  # the streams in use where it was entered

    def wait_stream(self, stream):
        mine().follow(self, stream)

    wait_event = wait_stream

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    query, synchronize = Event.query, Event.synchronize

    def __enter__(self):
        self._before.append(mine().switch(self))
        return self

    def __exit__(self, *_):
        mine().switch(self._before.pop())
