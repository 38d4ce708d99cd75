"""A GPU's streams and events, on a rank's clock.

Calls of NCCL that a stream waits for hold up that stream alone: others, and the rank,
go on until they wait for it, or for an event that was recorded in it.
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
        self._moment, self.works = None, []

    def record(self, stream=None):
        gpus = mine()
        self._moment = gpus.moment()
        self.works = gpus.in_flight(stream or gpus.stream)

    def elapsed_time(self, other):
        """Milliseconds from this event to the other."""
        return (other._moment - self._moment) * 1e3

    def query(self):
        return True

    def wait(self, stream=None):
        (stream or mine().stream).wait_event(self)

    def synchronize(self):
        mine().engine.caught_up()


class Stream:
    """`torch.cuda.Stream`: calls of NCCL that it waits for do not hold up others.

    What it computes is done at once, in the rank's own order.
    """

    cuda_stream = stream_id = device_index = 0
    device_type = 1  # torch's number for CUDA

    def __init__(self, *args, **kwargs):
        self.device, self.works = CPU, []

    def wait_stream(self, stream):
        mine().follow(self, stream)

    wait_event = wait_stream

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return True

    def synchronize(self):
        mine().engine.caught_up()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
