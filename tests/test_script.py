"""`d2lpar script`: a chapter as a program for the ranks of a launcher."""

import contextlib
import io

import pytest
from typer.testing import CliRunner

from conftest import CHAPTERS
from d2lpar.cli import main as cli
from d2lpar.cli import script
from d2lpar.launch import run as launch
from d2lpar.shared import notebooks


def cell(source, *tags):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}}


def program(*cells):
    return script.script({"cells": [cell("x = 1"), *cells]}, "04_messages")


def printed(text):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(text, {})
    return shown.getvalue()


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("y = x\ny + 1", "2\n"),
        ("'a'  # text", "'a'\n"),
        ("[\n    x,\n    2,\n]  # two\n# end", "[1, 2]\n"),
        ("print(x)", "1\n"),
        ("display(x, x)", "1\n1\n"),
        ("def f():\n    return 1", ""),
        ("if x:\n    print(2)", "2\n"),
    ],
)
def test_the_last_value_is_shown_as_in_a_notebook(source, output):
    assert printed(program(cell(source))) == output


def test_rank_0_speaks_for_all(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(program(cell("print(x)")), {})
    assert shown.getvalue() == ""


def test_what_a_launchers_ranks_cannot_do_is_left_out():
    text = program(
        cell("1 / 0", "raises-exception"),
        cell("try:\n    z = run(f)\nexcept d2lpar.DeadlockError as e:\n    pass"),
        cell("real = run(f, world_size=2, backend='gloo')"),
        cell("def g(x):\n    z = x\n    return z"),
        cell("def h():\n    return real.elapsed"),
        cell("from d2lpar import bench_overlap"),
        cell("print(g(x))"),
        cell("real = x"),
        cell("print(real)"),
        cell("def run(f, world_size, backend):\n    return 3"),
        cell("run(print, world_size=9, backend='sim')"),
    )
    assert printed(text) == "1\n1\n3\n"
    assert [line for line in text.splitlines() if "left out" in line] == [
        "# Cell 2 is left out: it fails on purpose.",
        "# Cell 3 is left out: its ranks fail on purpose.",
        "# Cell 4 is left out: it starts ranks of its own.",
        "# Cell 6 is left out: it needs real from a cell that is left out.",
        "# Cell 7 is left out: it starts ranks of its own.",
    ]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_is_a_program_and_most_of_it_stays(path):
    text = script.script(notebooks.read(path), path.stem)
    compile(text, path.stem, "exec")
    assert text.count("is left out:") <= 12 < text.count("\n# Cell")


def test_the_command_writes_it_and_says_how_many_ranks(tmp_path):
    path = tmp_path / "x.py"
    for number, ranks in (("04", 4), ("13", 3)):
        result = CliRunner().invoke(cli.app, ["script", number, "--to", str(path)])
        assert result.stdout == f"torchrun --nproc-per-node {ranks} {path}\n"
        assert f"as a script for {ranks} ranks" in path.read_text()
    with pytest.raises(cli.Refused, match="There is no folder"):
        CliRunner().invoke(
            cli.app, ["script", "04", "--to", "no/x.py"], catch_exceptions=False
        )


# The world that `run` finds inside a launcher


@pytest.fixture
def two_nodes(monkeypatch):
    """Rank 3 of 4, two on each of two machines with two GPUs."""
    started = {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}
    for name, value in started.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(launch.torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    ("asked", "backend", "launcher"),
    [
        ({"backend": "auto"}, "nccl", True),  # a GPU each, though not on one machine
        ({"backend": "gloo"}, "gloo", True),
        ({"backend": "sim", "world_size": 4}, "sim", False),
        ({"backend": "sim", "world_size": 8}, "sim", False),
        ({"world_size": 4}, "nccl", True),  # the notebook's default is a simulation
        ({"world_size": 8}, "sim", False),  # which it stays for other numbers of ranks
    ],
)
def test_the_world_inside_a_launcher(two_nodes, monkeypatch, asked, backend, launcher):
    monkeypatch.setitem(launch._defaults, "backend", "sim")
    whole = {"world_size": None, "backend": None, "cluster": None, "device": None}
    world = launch.World(**(whole | asked))
    assert (world.backend, world.torchrun) == (backend, launcher)
