"""The course on GPUs that are not there; `tests/pretend` has what pretends."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest

from conftest import CHAPTERS, FURTHER, ROOT, completed

pytestmark = pytest.mark.night

PRETEND = ROOT / "tests" / "pretend"
WHOLE = os.environ.get("D2LPAR_ANSWERS") == "whole"  # every night
FEW = {"01", "03"}  # otherwise: `make gpus` has the others, too


def pretending(*words, folder=ROOT, count=2):
    """What a Python that has GPUs printed, as the JSON objects among its lines."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("D2LPAR_")}
    paths = [str(PRETEND / "site-packages"), str(ROOT), environ.get("PYTHONPATH", "")]
    environ |= {"D2LPAR_PRETEND": str(count), "PYTHONPATH": os.pathsep.join(paths)}
    environ |= {"D2LPAR_PROGRESS": "0", "MPLBACKEND": "Agg"}
    done = completed([sys.executable, *words], cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def planted():
    [found] = pretending(PRETEND / "planted.py")
    return found


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("a mask of the host", "found at least two devices, cuda:1 and cpu!"),
        ("a tensor made in the backward pass", "two devices, cuda:1 and cpu!"),
        ("labels of the host", "found at least two devices, cuda:1 and cpu!"),
        ("a layer that stays behind", "found at least two devices"),
        ("two GPUs", "found at least two devices, cuda:1 and cuda:0!"),
        ("indices of a GPU for the host", "indices should be either on cpu or on"),
        ("numpy of a GPU", "can't convert cuda:1 device type tensor to numpy"),
        ("an array of a GPU", "can't convert cuda:1 device type tensor to numpy"),
        ("a GPU too many", "invalid device ordinal"),
        ("a generator of the host", "Expected a 'cuda' device type for generator"),
        ("writing to the host", "found at least two devices, cuda:1 and cpu!"),
        ("NCCL on the host", "No backend type associated with device type cpu"),
        ("NCCL on another rank's GPU", "a tensor is on another rank's GPU"),
        ("CUDA after a fork", "Cannot re-initialize CUDA in forked subprocess"),
        ("a clock without waiting", "a clock was read 4 lines down, 1 time"),
    ],
)
def test_a_mistake_that_a_gpu_would_show_is_red(planted, mistake, sentence):
    assert sentence in (planted[mistake] or "nothing was raised")


def test_what_is_right_on_a_gpu_is_green(planted):
    right = "training", "files", "memory", "a clock", "random numbers"
    right += ("memory of messages",)
    right += "a mask where the scores are", "a number of the host"
    right += "indices of the host", "a copy between devices", "numpy of a copy"
    right += "a copy of a collective", "a large tensor of the host"
    assert {name: planted[name] for name in right} == dict.fromkeys(right)


def chapters():
    return [path for path in CHAPTERS + FURTHER if WHOLE or path.name[:2] in FEW]


def complaints(report):
    """What is wrong in a line of `paths.py`."""
    found = [report["failed"]] if report["failed"] else []
    hasty = report["hasty"]
    return found + [f"the clock does not wait for the GPU: {line}" for line in hasty]


def test_cells_for_gpus_run_on_two_of_them():
    paths = [path.relative_to(ROOT) for path in chapters()]
    reports = pretending(PRETEND / "paths.py", *paths)
    assert [report["path"] for report in reports] == list(map(str, paths))
    assert not {r["path"]: complaints(r) for r in reports if complaints(r)}
    ran = {Path(r["path"]).name[:2] for r in reports if r["cells"]}
    assert ran == FEW | ({"04"} if WHOLE else set())  # these use CUDA by name


def test_the_paths_that_a_machine_proves_pass_on_two_gpus():
    worlds = ["sim on the GPU", *["NCCL, 2 ranks"] * WHOLE]
    [report] = pretending(PRETEND / "proven.py", *worlds)
    assert report["passed"] > 15 * len(worlds)
    assert not report["failed"]
    assert "| GPU 1 | pretended GPU, 80 GB |" in report["report"]
    assert "| driver | " in report["report"]


# What a hand may do to a chapter: (chapter, what is right, what is not, what is said)
SLIPS = [
    ("03", "+= data[i].to(data[0].device)", "+= data[i]", "two devices"),
    ("01", "        torch.cuda.synchronize()", "        pass", "does not wait"),
]


def test_slips_in_chapters_are_red(tmp_path):
    for k, (chapter, right, wrong, _) in enumerate(SLIPS):
        [path] = ROOT.glob(f"chapters/{chapter}_*.ipynb")
        notebook = nbformat.read(path, 4)
        cells = [cell for cell in notebook.cells if right in cell.source]
        assert cells, right
        cells[0].source = cells[0].source.replace(right, wrong)
        nbformat.write(notebook, tmp_path / f"{k}.ipynb")
    names = [f"{k}.ipynb" for k in range(len(SLIPS))]
    reports = pretending(PRETEND / "paths.py", *names, folder=tmp_path)
    for report, (*_, sentence) in zip(reports, SLIPS, strict=True):
        assert sentence in " ".join(complaints(report)), report
