"""The arguments of `run`, checked: what is wrong with one is said in a sentence."""

import contextlib
import inspect
import os

from ..sim.cluster import Cluster

TIMEOUT = 60.0  # seconds
BACKENDS = ("sim", "gloo", "nccl", "auto")


def from_environment(variable, check):
    """The checked value of an environment variable, None where it is not set."""
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        return check(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"environment variable {variable}: {error}") from None


# What run is called with.
USUAL = dict.fromkeys(("world_size", "backend", "cluster", "device"))
USUAL |= {"timeout": TIMEOUT, "seed": 0, "buffered": False, "profile": False}


def check_options(timeout, seed, buffered, profile):
    """Raise ValueError or TypeError for an option that no run can use."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds > 0, not {timeout!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}")
    for name, value in (("buffered", buffered), ("profile", profile)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")


def check_function(fn, args, kwargs, given):
    """Raise TypeError where fn cannot be called so; `given` are run's own keywords."""
    if not callable(fn):
        raise TypeError(
            f"run needs a function, not {type(fn).__name__}: run(fn, argument, ...)"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    name = getattr(fn, "__name__", repr(fn))
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        swallowed = [word for word in USUAL if word in signature.parameters]
        hint = f" ({_swallowed(name, swallowed[0])})" if swallowed else ""
        raise TypeError(f"{name} cannot be called so: {error}{hint}") from None
    for word, value in given.items():
        unusual = value is not USUAL[word]
        if unusual and word in signature.parameters and word not in bound:
            raise TypeError(_swallowed(name, word))


def _swallowed(name, word):
    return (
        f"`{word}` is a keyword of run and of {name}: rename it in {name}, or give it "
        "by position"
    )


def world_size_of(value):
    """Return the number of ranks, also of a text; raise where it is none."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"world_size must be a whole number of ranks, not {value!r}")
    if value < 1:
        raise ValueError(f"world_size must be at least 1 rank, not {value}")
    return value


def backend_of(value):
    """Return the name of a backend; raise ValueError where there is none of it."""
    if value not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {value!r}")
    return value


def device_of(value):
    """The device as text: cpu, cuda (with an index or without) or meta."""
    name = str(value)
    if name.split(":")[0] not in ("cpu", "cuda", "meta"):
        raise ValueError(f'device must be "cpu", "cuda" or "meta", not {value!r}')
    return name


def cluster_of(value):
    """Return the Cluster: the plain one for None, that of a text like "8xH100"."""
    if value is None:
        return Cluster.plain
    if isinstance(value, str):
        return Cluster.of(value)
    if not isinstance(value, Cluster):
        raise TypeError(f"cluster must be a Cluster, not {type(value).__name__}")
    return value
