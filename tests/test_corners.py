"""What learners' programs do at the edges, in both worlds."""

import contextlib
import functools
import io
import os
import pickle
from dataclasses import dataclass
from random import randint

import pytest
import torch
import torch.distributed as dist

import d2lpar
from d2lpar import RankError

BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])


def run(fn, *args, n=3, **options):
    return d2lpar.run(fn, *args, world_size=n, timeout=20.0, **options)


@dataclass
class Point:
    x: int


def many_things():
    """One run of many small programs, as starting processes takes time."""
    import torch.distributed.nn.functional as functional

    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(3, requires_grad=True)
    functional.all_reduce(x * (r + 1)).sum().backward()
    points = [None] * n
    dist.all_gather_object(points, Point(r))
    with torch.inference_mode():
        gathered = [torch.empty(3) for _ in range(n)]
        dist.all_gather(gathered, torch.ones(3) * r)
    nothing = torch.empty(0)
    dist.reduce_scatter(nothing, [torch.empty(0)] * n)
    whole = torch.arange(7) + r
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print("A", r)
        dist.barrier()
        print("B", r)
    print("after", r)
    group = dist.new_group([0, 1], backend="gloo")
    if r < 2:
        dist.all_reduce(y := torch.ones(1), group=group)
        assert y.item() == 2.0
    return x.grad, points, gathered, whole, text.getvalue(), randint(0, 10**9)


@BOTH
def test_many_things(backend):
    result = run(many_things, backend=backend, seed=3)
    assert result.output == "after 0\nafter 1\nafter 2\n"
    for r, values in enumerate(result.results):
        grad, points, gathered, whole, text, number = values
        assert grad.tolist() == [3.0 * (r + 1)] * 3
        assert points == [Point(0), Point(1), Point(2)]
        assert [t.tolist() for t in gathered] == [[float(i)] * 3 for i in range(3)]
        assert whole.tolist() == [i + 1 for i in range(7)]
        assert text == f"A {r}\nB {r}\n"
        assert number == result.results[0][-1]
    again = run(many_things, backend=backend, seed=3)
    assert [v[-1] for v in again.results] == [v[-1] for v in result.results]
    copy = pickle.loads(pickle.dumps(result))
    assert copy.messages == result.messages and copy.rounds == result.rounds


class Speechless(Exception):
    def __str__(self):
        return None


class Two(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}-{b}")


def fails(how):
    if dist.get_rank() == 1:
        if how == "speechless":
            raise Speechless
        if how == "two":
            raise Two(1, 2)
        if how == "lines":
            raise ValueError("one\ntwo")
        if how == "self":
            dist.isend(torch.ones(1), 1)
        if how == "tag":
            dist.send(torch.ones(1), 0, tag=-1)
        if how == "list":
            dist.all_gather([torch.ones(1)] * 2, torch.ones(1))
    dist.barrier()


@BOTH
@pytest.mark.parametrize(
    "how, words",
    [
        ("speechless", "rank 1 raised Speechless"),
        ("two", "rank 1 raised Two: 1-2"),
        ("lines", "rank 1 raised ValueError: one ..."),
        ("self", "to itself"),
        ("tag", "tag=-1"),
        ("list", "all_gather needs 3 output tensors"),
    ],
)
def test_errors_at_the_edges(backend, how, words):
    with pytest.raises(RankError) as caught:
        run(fails, how, backend=backend)
    assert words in str(caught.value).splitlines()[0]
    assert caught.value.rank == 1


def too_little_room():
    room = [3, 3, 2] if dist.get_rank() == 1 else [3, 3, 3]
    dist.all_gather([torch.zeros(size) for size in room], torch.ones(3))


@BOTH
def test_nothing_is_written_beyond_a_tensor(backend):
    with pytest.raises(RankError):
        run(too_little_room, backend=backend)


def changes_settings():
    torch.set_default_dtype(torch.float64)
    os.environ["D2LPAR_TEST"] = "1"
    os.chdir("/")


def test_settings_of_the_caller_are_kept():
    before = torch.get_default_dtype(), os.getcwd(), dict(os.environ)
    run(changes_settings, backend="sim")
    assert (torch.get_default_dtype(), os.getcwd(), dict(os.environ)) == before


@pytest.mark.parametrize(
    "options",
    [dict(backend=""), dict(cluster=0), dict(device="mps"), dict(world_size=0)],
)
def test_defaults_are_checked(options):
    with pytest.raises((ValueError, TypeError)):
        d2lpar.defaults(**options)
    assert d2lpar.run(dist.get_rank, world_size=2, backend="sim").results == [0, 1]


def test_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("D2LPAR_RANKS", "abc")
    with pytest.raises(ValueError, match="environment variable D2LPAR_RANKS"):
        d2lpar.run(dist.get_rank)
    monkeypatch.setenv("D2LPAR_RANKS", "2")
    assert d2lpar.run(dist.get_rank, backend="sim").results == [0, 1]


def with_gaps(call):
    """What a call says of a tensor whose memory has gaps."""
    gaps = torch.arange(6.0).reshape(3, 2)[:, dist.get_rank()]
    whole = [torch.empty(3) for _ in range(dist.get_world_size())]
    calls = {
        "send": lambda: dist.send(gaps, 1 - dist.get_rank()),
        "isend": lambda: dist.isend(gaps, 1 - dist.get_rank()),
        "recv": lambda: dist.recv(gaps, 1 - dist.get_rank()),
        "all_reduce": lambda: dist.all_reduce(gaps),
        "broadcast": lambda: dist.broadcast(gaps, 0),
        "all_gather": lambda: dist.all_gather(whole, gaps),
        "reduce_scatter": lambda: dist.reduce_scatter(whole[0], [gaps, gaps]),
    }
    with pytest.raises(ValueError, match="needs contiguous tensors.*strides .2,."):
        calls[call]()
    return True


@BOTH
def test_tensors_with_gaps_are_refused_as_on_gpus(backend):
    calls = ["send", "isend", "recv", "all_reduce", "broadcast", "all_gather"]
    calls += ["reduce_scatter"]
    for call in calls if backend == "sim" else calls[:1]:
        assert run(with_gaps, call, n=2, backend=backend).results == [True, True]
    photos = run(channels_last, n=2, backend=backend).results
    assert all((x == 2).all() for x in photos)


def channels_last():
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(x)
    return x


# results of classes with slots, and results that cannot be rebuilt


SLOTS = """
import abc
from dataclasses import dataclass
from collections import namedtuple
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

class Plain:
    __slots__ = ("value", "__hidden")
    def __init__(self, value):
        self.value, self.__hidden = value, -value
    def same(self):
        return self.value == -self.__hidden

class Below(Plain):
    __slots__ = "more"

class Mixed(abc.ABC):
    __slots__ = ("a", "__dict__", "__weakref__")

class Box(Generic[T]):
    __slots__ = {"held": "what is in it"}

@dataclass(slots=True)
class Measured:
    value: int
    tensor: torch.Tensor

@dataclass(slots=True, frozen=True, order=True)
class Frozen:
    value: int

class Named(NamedTuple):  # slots of its own, which are empty
    value: int

Pair = namedtuple("Pair", "x y")

def everything():
    r = dist.get_rank()
    below, mixed, box = Below(r), Mixed(), Box()
    below.more, mixed.a, mixed.b, box.held = [r], r, r + 1, Frozen(r)
    measured = Measured(r, torch.ones(2, requires_grad=True) * r)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (Plain(r), Frozen(r)))
    assert all(type(p) is Plain and p.same() for p, _ in everyone)
    assert [f for _, f in everyone] == sorted(map(Frozen, range(len(everyone))))
    named = Named(r), Pair(r, 1)
    return {"a": [below, (mixed, box)], "b": measured, "c": everyone, "d": named}

def local():
    class Inside:
        __slots__ = ("x",)
    inside = Inside()
    inside.x = dist.get_rank()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, inside)
    return everyone
"""


@BOTH
def test_results_of_classes_with_slots(backend):
    cell = {"__name__": "__main__"}
    exec(SLOTS, cell)
    for r, result in enumerate(run(cell["everything"], backend=backend).results):
        below, (mixed, box) = result["a"]
        assert type(below) is cell["Below"] and not hasattr(below, "__dict__")
        assert below.same() and (below.value, below.more) == (r, [r])
        assert type(mixed) is cell["Mixed"] and (mixed.a, mixed.b) == (r, r + 1)
        assert type(box) is cell["Box"] and box.held == cell["Frozen"](r)
        assert type(result["b"]) is cell["Measured"] and result["b"].value == r
        assert result["b"].tensor.tolist() == [r, r]
        assert [plain.value for plain, _ in result["c"]] == [0, 1, 2]
        named, pair = result["d"]
        assert type(named) is cell["Named"] and named.value == r
        assert type(pair) is cell["Pair"] and pair == (r, 1)
    for everyone in run(cell["local"], backend=backend).results:
        assert [inside.x for inside in everyone] == [0, 1, 2]


@dataclass(slots=True)
class Slotted:
    x: int


def slotted():
    return Slotted(dist.get_rank())


class Bomb:
    def __init__(self, fuse):
        self.fuse = fuse

    def __reduce__(self):
        return explode, (self.fuse,)


def explode(fuse):
    raise LookupError(f"fuse {fuse} is gone")


def returns_a_bomb():
    r = dist.get_rank()
    return Bomb(r) if r == 1 else r


@BOTH
def test_results_that_cannot_be_rebuilt(backend):
    assert run(slotted, backend=backend).results == [Slotted(r) for r in range(3)]
    with pytest.raises(RankError, match="rank 1 returned a Bomb whose copy") as caught:
        run(returns_a_bomb, backend=backend)
    error = caught.value
    assert "LookupError: fuse 1 is gone at " in str(error)
    assert error.rank == 1 and "test_corners.py:" in error.line
    assert isinstance(error.__cause__, LookupError)
    assert error.run.results == [0, None, 2]


@functools.lru_cache(maxsize=5)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@BOTH
def test_functions_with_a_cache_travel(backend):
    def grown():
        return fibonacci(20), fibonacci.cache_info().currsize

    run = d2lpar.run(grown, world_size=2, backend=backend)
    assert run.results == [(6765, 5), (6765, 5)]
