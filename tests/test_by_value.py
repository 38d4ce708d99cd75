"""What travels by value, whichever cloudpickle is installed."""

import importlib
import re
import sys
import types
from pathlib import Path

import pytest
import torch.distributed as dist

import d2lpar
from d2lpar.grade import exchange
from d2lpar.sim import by_value, ship

CELL = """
import contextlib, functools

def plain(): pass

small = lambda: None

def outer():
    def inner(): pass
    return inner

nested = outer()

class Net:
    def method(self): pass

method = Net.method

def generator(): yield 1

@functools.wraps(plain)
def decorated(): return plain()

@contextlib.contextmanager
def managed(): yield

class Slotted:
    __slots__ = ("x",)
    def method(self): pass

slotted = Slotted.method
cached = functools.lru_cache(plain)
"""
KINDS = "plain small nested outer method generator decorated managed slotted cached"


def codes(function):
    """Every code object of a function: with nested ones and those that it wraps."""
    found = [function.__code__] if hasattr(function, "__code__") else []
    for code in found:
        found += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    wrapped = getattr(function, "__wrapped__", None)
    return found + (codes(wrapped) if wrapped else [])


@pytest.fixture(params=["cell", "module"])
def written(request, tmp_path, monkeypatch):
    """Functions of every kind, of a cell or of a module, and the name of their file."""
    if request.param == "cell":
        file, space = "/work/1234.py", {"__name__": "__main__"}
        exec(compile(CELL, file, "exec"), space)
        yield {kind: space[kind] for kind in KINDS.split()}, file
    else:
        (tmp_path / "of_the_user.py").write_text(CELL)
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("of_the_user")
        yield {kind: getattr(module, kind) for kind in KINDS.split()}, module.__file__
        del sys.modules["of_the_user"]


def places(functions):
    """Kind to the name, file and line of each code object in it."""
    return {
        kind: [(c.co_name, c.co_filename, c.co_firstlineno) for c in codes(function)]
        for kind, function in functions.items()
    }


def by_hand_over(functions):
    return ship.unpack(ship.pack(functions, *functions.values()))


def by_grading(functions):
    with by_value.users_modules(functions.values()):
        return ship.unpack(exchange.entrust(functions))


@pytest.mark.parametrize("travel", [by_hand_over, by_grading])
def test_code_keeps_the_name_of_its_file(written, travel):
    functions, file = written
    came = travel(functions)
    assert not any(came[kind] is functions[kind] for kind in functions)
    assert places(came) == places(functions)
    assert all(file in {where for _, where, _ in its} for its in places(came).values())


def told(places, *functions):
    """The places of functions that came with `run`, and of those that a rank sends."""
    sent = list(functions) if dist.get_rank() == 0 else [None] * len(functions)
    dist.broadcast_object_list(sent, src=0)
    return places(dict(enumerate(functions))), places(dict(enumerate(sent)))


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_ranks_know_the_file_of_code(written, backend):
    functions = written[0].values()
    run = d2lpar.run(told, places, *functions, world_size=2, backend=backend)
    assert run.results == [(places(dict(enumerate(functions))),) * 2] * 2


@pytest.mark.parametrize("name", by_value.NEEDED)
def test_a_cloudpickle_that_lacks_a_name_is_refused_in_a_sentence(name, monkeypatch):
    assert by_value.lacking() == ""
    monkeypatch.delattr(by_value.private, name)
    said = by_value.lacking()
    assert f"without {name}, {by_value.NEEDED[name]}. Update d2lpar, or" in said


def test_every_private_name_of_cloudpickle_is_known():
    """They are used in one module, and each stands in its table."""
    package = Path(d2lpar.__file__).parent
    home = Path(by_value.__file__)
    for path in package.rglob("*.py"):
        source = path.read_text("utf-8")
        if path == home:
            used = set(re.findall(r"private\.(_[A-Za-z]\w+)", source))
            assert used and used <= {*by_value.NEEDED}
        else:
            assert not re.search(
                r"cloudpickle\.(cloudpickle|_)|import cloudpickle as", source
            )
