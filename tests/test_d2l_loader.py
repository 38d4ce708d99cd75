"""The loader of d2l, with a small package that imports what d2l imports."""

import sys

import pytest

from d2lpar.shared import d2l_loader

BOOK = """
import pandas as pd
import requests
import torchvision
from torchvision import transforms


def use_svg_display():
    raise AssertionError("SVG")


def show():
    use_svg_display()


def load():
    return transforms.ToTensor()
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on the path for packages; what a test imports is forgotten after it."""
    monkeypatch.syspath_prepend(tmp_path)
    roots = {"d2l", "torchvision", "pandas", "requests"}

    def ours():
        return {k: m for k, m in sys.modules.items() if k.split(".")[0] in roots}

    before = ours()
    for name in before:
        del sys.modules[name]
    yield tmp_path
    for name in ours():
        del sys.modules[name]
    sys.modules.update(before)


def package(folder, name, text, file="__init__.py"):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_text(text)


def put_d2l(folder):
    package(folder, "d2l", "")
    package(folder, "d2l", BOOK, "torch.py")


def broken(folder):
    text = "import torchvision.ops\nraise RuntimeError('built for another torch')"
    package(folder, "torchvision", text)
    package(folder, "torchvision", "", "ops.py")


def test_a_torchvision_that_does_not_load_is_replaced_while_d2l_loads(modules):
    put_d2l(modules)
    broken(modules)
    d2l = d2l_loader.load_d2l()
    with pytest.raises(ImportError, match="needs torchvision, which is not installed"):
        d2l.load()
    assert [name for name in sys.modules if name.startswith("torchvision")] == []


def test_a_torchvision_that_loads_is_used(modules):
    put_d2l(modules)
    package(modules, "torchvision", "")
    package(modules, "torchvision", "def ToTensor():\n    return 1", "transforms.py")
    assert d2l_loader.load_d2l().load() == 1
    assert "torchvision.transforms" in sys.modules


def test_figures_stay_png(modules, monkeypatch):
    put_d2l(modules)
    broken(modules)
    formats = []
    from matplotlib_inline import backend_inline

    monkeypatch.setattr(backend_inline, "set_matplotlib_formats", formats.append)
    d2l_loader.load_d2l().show()
    assert formats == ["png"]


def test_loading_twice_gives_the_same_module(modules):
    put_d2l(modules)
    broken(modules)
    assert d2l_loader.load_d2l() is d2l_loader.load_d2l()


def test_without_d2l_one_sentence_says_how_to_get_it(modules, monkeypatch):
    monkeypatch.setattr(d2l_loader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps d2l==1.0.3"):
        d2l_loader.load_d2l()
    assert "\n" not in d2l_loader.HOW_TO_GET


def test_the_real_d2l_where_it_is_installed():
    pytest.importorskip("d2l")
    d2l = d2l_loader.load_d2l()
    assert callable(d2l.plot)
    timer = d2l.Timer()
    assert timer.stop() >= 0
    assert d2l.try_gpu().type in ("cpu", "cuda")
