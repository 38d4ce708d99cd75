"""Played devices: a GPU with a clock, tensors that know where they are, a wire that
counts.  For exercises about devices on machines that have none.
"""

import torch


class Device:
    """A played GPU with a clock of its own: launches return before the work is done.

    `clock()` in seconds, `launch(job)`, `synchronize()`.  What it plays is to be
    measured: a device holds a handle only, and cannot be copied.  `record()` tells
    what it was asked for.
    """

    __slots__ = ("_do",)

    def __init__(self, ask, job, busy, factors):
        orders = _orders(ask, job, busy, tuple(factors))
        next(orders)
        self._do = orders.send

    def clock(self):
        """What time it is for the program."""
        return self._do("clock")

    def launch(self, job):
        """Put the job into the queue; returns when it is in there."""
        if job != "job":
            raise ValueError(f"There is one job, called 'job', not {job!r}.")
        self._do("launch")

    def synchronize(self):
        """Wait until all launched jobs are done."""
        self._do("synchronize")

    def record(self):
        """(number of launches, the clock's readings so far).

        A reading is (launches before it, seconds); equal ones in a row count once.
        """
        return self._do("record")

    def __reduce_ex__(self, protocol):
        raise TypeError("A played device is one of a kind: measure it, do not copy it.")


def _orders(ask, job, busy, factors):
    """What a played device knows and does: a generator takes orders and answers."""
    now, free, launches, readings = 0.0, busy, 0, []  # it is busy with older work
    answer = None
    while True:
        order = yield answer
        answer = None
        if order == "clock":
            answer = now
            if readings[-1:] != [(launches, now)]:
                readings.append((launches, now))
        elif order == "launch":
            now += ask
            free = max(now, free) + factors[launches % len(factors)] * job
            launches += 1
        elif order == "synchronize":
            now = max(now, free)
        elif order == "record":
            answer = launches, list(readings)


class Placed(torch.Tensor):
    """A tensor on a played device: `place` is its number."""

    place = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = places([args, kwargs or {}])
        if len(found) > 1:
            names = " and ".join(f"device {i}" for i in sorted(found))
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {names}. "
                "What another device needs goes by wire.send."
            )
        if function == torch.Tensor.data.__get__:  # a run refuses it to subclasses
            function = torch.Tensor.detach
        out = super().__torch_function__(function, types, args, kwargs or {})
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Placed) and found:
                tensor.place = min(found)
        return out


def places(value):
    """The numbers of the devices of all tensors in nested lists and dictionaries."""
    if isinstance(value, Placed):
        return {value.place} - {None}
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return set()
    return set().union(*map(places, value))


def put(x, device):
    """A copy of x on this played device."""
    copy = x.detach().as_subclass(torch.Tensor).clone().as_subclass(Placed)
    copy.place = device
    return copy


class Wire:
    """What joins the devices.  `moved` has (from, to, elements), one per message."""

    def __init__(self):
        self.moved = []

    def send(self, x, src, dst):
        """A copy of x, which is on device `src`, on device `dst`."""
        if not torch.is_tensor(x):
            raise TypeError(f"A message is a tensor, not {type(x).__name__}.")
        at = getattr(x, "place", None)
        if at is not None and at != src:
            raise RuntimeError(f"This tensor is on device {at}, not on device {src}.")
        if src == dst:
            raise ValueError(f"Device {src} needs no message to itself.")
        self.moved.append((src, dst, x.numel()))
        return put(x, dst)

    def elements(self, n, end=0):
        """What each of n devices has sent; with end=1, what it has received."""
        return [sum(m[2] for m in self.moved if m[end] == i) for i in range(n)]
