"""Futures of calls in progress: whoever waits for one waits in virtual time."""

import functools

import torch

from .tensors import after_backward, inside_backward


class Later(torch.futures.Future):
    """What a Work brings; until somebody needs it, the call is in progress.

    What is chained to it needs it at once; inside backward, whose end
    DistributedDataParallel awaits in C++, only then.
    """

    def __init__(self, work):
        super().__init__()
        self.work = work
        if inside_backward():
            after_backward(self.complete)
        elif torch._C._current_graph_task_id() >= 0:  # its end, which C++ awaits
            self.complete()

    def complete(self):
        """Wait; afterwards the future is done."""
        if not super().done():
            self.work.wait()
            self.set_result(self.work.call.outputs)

    def chained(self):
        """Wait, but inside backward, which goes on."""
        if not inside_backward():
            self.complete()

    def wait(self):
        self.complete()
        return super().wait()

    def done(self):
        if self.work.is_completed():
            self.complete()
        return super().done()

    def then(self, callback):
        self.chained()
        return super().then(callback)

    def add_done_callback(self, callback):
        self.chained()
        super().add_done_callback(callback)


def collecting(original):
    """Of several futures torch's own threads make one: all are needed at once."""

    @functools.wraps(original)
    def _collect_all(futures):
        for future in futures:
            if isinstance(future, Later):
                future.chained()
        return original(futures)

    return _collect_all
