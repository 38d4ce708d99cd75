"""Every rank has its own random numbers; the caller's are untouched.

torch's, numpy's and Python's generators belong to the process.  When another rank goes
on, its generators are put in place: torch's state is copied (3 us), numpy's is
exchanged whole, and Python's functions ask whose turn it is.

A GPU has a generator of its own, with other numbers.  A rank on a GPU draws them on
the host all the same: so its net is the one that the caller's cell has made on the CPU.
"""

import contextlib
import functools
import random

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_METHODS = [
    name
    for name in random.__all__
    if hasattr(getattr(random, name), "__self__")
    and getattr(random, name).__self__ is random._inst
]


class _Generators:
    """One rank's generators, seeded."""

    def __init__(self, seed):
        self.torch = torch.Generator().manual_seed(seed).get_state()
        self.numpy = np.random.RandomState(seed % 2**32)._bit_generator
        self.python = random.Random(seed)
        self.cuda = None


class RandomStates:
    """The generators of n ranks, one of them in place at a time."""

    def __init__(self, n, seed, device=None):
        self._seed, self._ranks, self._owner = seed, [None] * n, None
        self._cuda = device is not None and torch.device(device).type == "cuda"

    @contextlib.contextmanager
    def kept(self):
        """The caller's generators are back in place at the end."""
        before = torch.default_generator.get_state()
        cuda = torch.cuda.get_rng_state_all() if self._cuda else []
        numpy = np.random.get_bit_generator()
        python = {name: getattr(random, name) for name in _METHODS}
        vars(random).update({name: self._pythons(name) for name in _METHODS})
        try:
            yield
        finally:
            torch.default_generator.set_state(before)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            np.random.set_bit_generator(numpy)
            vars(random).update(python)

    def _pythons(self, name):
        """The function of this name in `random`, of the rank whose turn it is."""
        callers = getattr(random, name)

        @functools.wraps(callers)
        def method(*args, **kwargs):
            if self._owner is None:  # no rank has begun
                return callers(*args, **kwargs)
            return getattr(self._ranks[self._owner].python, name)(*args, **kwargs)

        return method

    def enter(self, rank):
        """The generators of `rank` are in place from now on."""
        if self._owner == rank:
            return
        if self._owner is not None:
            leaving = self._ranks[self._owner]
            leaving.torch = torch.default_generator.get_state()
            if self._cuda:
                leaving.cuda = torch.cuda.get_rng_state()
        if self._ranks[rank] is None:
            self._ranks[rank] = _Generators(self._seed)
        coming = self._ranks[rank]
        torch.default_generator.set_state(coming.torch)
        np.random.set_bit_generator(coming.numpy)
        if self._cuda:
            if coming.cuda is None:
                torch.cuda.manual_seed(self._seed)
            else:
                torch.cuda.set_rng_state(coming.cuda)
        self._owner = rank

    @contextlib.contextmanager
    def device_of(self, device):
        """`device` is this thread's default device."""
        if device is None or torch.device(device).type == "cpu":
            yield
        else:
            host = DrawnOnHost() if self._cuda else contextlib.nullcontext()
            with torch.device(device), host:
                yield


_NEW = {torch.rand, torch.randn, torch.randint, torch.randperm}
_METHODS_OF_TENSORS = "uniform_ normal_ random_ bernoulli_ exponential_ log_normal_"
_FILL = {getattr(torch.Tensor, name) for name in _METHODS_OF_TENSORS.split()}
_FILL |= {nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}


class DrawnOnHost(TorchFunctionMode):
    """Inside, random numbers for a GPU are drawn on the CPU, and copied.

    Those of `rand`, `randn`, `randint`, `randperm`, of what fills a tensor (and with
    it of the weights of a new net) and of dropout.  A generator of the CPU serves,
    too; one of the GPU draws there.  `kind` is the type of device that is meant.
    """

    def __init__(self, kind="cuda"):
        super().__init__()
        self.kind = kind

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _NEW and "out" not in kwargs:
            return self._new(func, args, dict(kwargs))
        if func in _FILL or func is nn.functional.dropout:
            tensor = next(iter((*args, *kwargs.values())))
            if self._concerns(tensor.device, kwargs):
                return self._of(func, tensor, args, kwargs)
        return func(*args, **kwargs)

    def _concerns(self, device, kwargs):
        generator = kwargs.get("generator")
        own = generator is not None and generator.device.type == self.kind
        return device.type == self.kind and not own

    def _new(self, func, args, kwargs):
        device = kwargs.pop("device", None)
        device = torch.get_default_device() if device is None else torch.device(device)
        if not self._concerns(device, kwargs):
            return func(*args, device=device, **kwargs)
        out = func(*args, device="cpu", **kwargs)
        return out.detach().to(device).requires_grad_(out.requires_grad)

    def _of(self, func, tensor, args, kwargs):
        """What `func` makes of the tensor: filled, or with zeros in places."""
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            return func(*args, **kwargs)  # a DTensor draws by itself
        host = torch.ones_like(tensor, device="cpu", requires_grad=False)
        change = lambda value: host if value is tensor else value
        kwargs = {name: change(value) for name, value in kwargs.items()}
        drawn = func(*map(change, args), **kwargs)
        if func in _FILL:
            with torch.no_grad():
                return tensor.copy_(drawn)
        return tensor * drawn.to(tensor.device)
