"""Calls that a real backend carries out, as torch's Work objects.

Code that waits sees the outputs written, an event on the timeline and, in the journal
of the rank, that it waits.
"""

import threading
import time

import torch

from ..report.calls import MESSAGES
from ..sim import torch_private

LOOK = 50e-6  # seconds that a look at `is_completed` of a message may take


class _Work(torch_private.CallWork):
    """A call in progress, seen from Python and from torch's C++."""

    def __init__(self, engine, call):
        super().__init__(engine, call)
        self.start = engine.now()

    def record(self):
        """The call is on the timeline; it is complete now."""
        self.recorder()(self.engine.now())

    def recorder(self):
        """A function that is told when the call was complete; it holds no tensors."""
        call, engine, start = self.call, self.engine, self.start
        if call.kind in MESSAGES:
            stream, size = call.kind, call.nbytes
            peer = call.source if call.peer is None else call.peer
        else:
            stream, peer = "comm", None
            size = sum(tensor.nbytes for tensor in call.outputs)
        kind, about = call.kind, {"where": call.where, "label": call.label}
        about |= {"peer": peer, "id": call.id}

        def write(stop):
            engine.record(stream, kind, start, max(start, stop), size, **about)
            engine.beat()

        return write


class CollectiveWork(_Work):
    """Gloo tells when it is complete, in a thread of its own."""

    def __init__(self, engine, call, begun):
        super().__init__(engine, call)
        self._works, self._finish = begun.works, begun.finish
        self._error = None
        futures = [work.get_future() for work in self._works]
        if len(futures) == 1:
            self._future = futures[0].then(self._complete)
        else:
            self._future = torch.futures.collect_all(futures).then(self._complete)

    def _complete(self, future):
        try:
            values = future.value()
            if len(self._works) != 1:
                for each in values:
                    each.value()
        except RuntimeError as error:
            self._error = error
            raise
        finally:
            self.engine.handed_back(self.call)
        if self._finish is not None:
            try:
                inference = any(t.is_inference() for t in self.call.outputs)
                with torch.inference_mode(inference), torch_private.raw_tensors():
                    self._finish()
            except Exception as error:
                self._own_error = error
        self.record()
        return self.call.outputs

    _own_error = None  # of what is done here after Gloo has done its part

    def wait(self, timeout=None):
        if not self._future.done():
            with self.engine.waits(self.call):
                if _seconds(timeout):
                    _until(self._future.done, _seconds(timeout), self.call)
                self._result()
        self._result()
        self.engine.waited(self.call)
        return True

    def _result(self):
        with self.engine.native_errors(self.call):
            try:
                self._future.wait()
            except RuntimeError:
                if self._error is None:
                    raise
                raise self._error from None
        if self._own_error is not None:
            raise self._own_error

    def is_completed(self):
        done = self._future.done()
        self.engine.looked(self.call, done)
        return done

    def get_future(self):
        self.engine.hand_on(self.call)
        if self._future.done():
            self.engine.handed_back(self.call)
        return self._future


class MessageWork(_Work):
    """Gloo only tells when somebody waits, so a thread does where nobody else can."""

    def __init__(self, engine, call, begun):
        super().__init__(engine, call)
        self._works, self._finish = begun.works, begun.finish
        self._done, self._thread, self._error = False, None, None

    def wait(self, timeout=None):
        if not self._done and self._error is None:
            with self.engine.waits(self.call):
                if self._thread is None and not _seconds(timeout):
                    self._wait_for_works()
                else:
                    self._watch().join(_seconds(timeout))
        if self._error is not None:
            raise self._error
        if not self._done:
            raise _late(self.call, _seconds(timeout))
        self.engine.waited(self.call)
        return True

    def _wait_for_works(self):
        try:
            with self.engine.native_errors(self.call):
                for work in self._works:
                    work.wait()
            if self.call.peer is None and self.call.kind == "recv":
                self.call.source = self.call.ranks[self._works[0]._source_rank()]
            if self._finish is not None:
                with torch_private.raw_tensors():
                    self._finish()
            self.record()
            self._done = True
        except RuntimeError as error:
            self._error = error

    def _watch(self):
        if self._thread is None:
            target = self._wait_for_works
            self._thread = threading.Thread(target=target, daemon=True)
            self._thread.start()
        return self._thread

    def is_completed(self):
        if not self._done and self._error is None:
            self._watch().join(LOOK)
        self.engine.looked(self.call, self._done)
        return self._done

    def get_future(self):
        self.call.handed_on = True
        future = torch.futures.Future()

        def complete():
            self._watch().join()
            if self._error is None:
                future.set_result(self.call.outputs)
            else:
                future.set_exception(self._error)

        threading.Thread(target=complete, daemon=True).start()
        return future


class StreamWork(_Work):
    """NCCL works on a stream of the GPU: to wait is to let our stream wait for it."""

    def __init__(self, engine, call, native, copies):
        super().__init__(engine, call)
        self.native, self._copies, self._waited = native, copies, False

    def wait(self, timeout=None):
        with self.engine.waits(self.call):
            self.native.wait()
            if not self._waited:
                self._waited = True
                for tensor, copy in self._copies:
                    tensor.copy_(copy.view(tensor.shape))
                self.engine.mark(self)
        self.engine.waited(self.call)
        return True

    def is_completed(self):
        done = self.native.is_completed()
        if not done:
            self.engine.looked(self.call, done)
        return done

    def get_future(self):
        if not self._copies:
            return self.native.get_future()
        future = torch.futures.Future()
        self.wait()
        torch.cuda.current_stream().synchronize()
        future.set_result(self.call.outputs)
        return future


def _seconds(timeout):
    """Seconds of a torch timeout, or None where there is none."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
    return seconds if seconds > 0 else None


def _until(done, seconds, call):
    """Returns when `done()`, raises RuntimeError after `seconds`."""
    deadline = time.perf_counter() + seconds
    while not done():
        if time.perf_counter() > deadline:
            raise _late(call, seconds)
        time.sleep(100e-6)


def _late(call, seconds):
    return RuntimeError(f"{call} is not complete after {seconds:g} s")
