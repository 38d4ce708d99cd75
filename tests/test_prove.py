"""`doctor --prove`, rehearsed on the CPU: the report has what its tests found."""

import re
import sys

import pytest
import torch
from typer.testing import CliRunner

import test_gpu
from d2lpar.cli import gpu_report
from d2lpar.cli import main as cli

PATHS = [name for name in vars(test_gpu) if name.startswith("test_")]


def invoke(*words):
    return CliRunner().invoke(cli.app, ["doctor", *words])


def test_every_path_passes_in_the_simulator(tmp_path):
    out = tmp_path / "report.md"
    done = invoke("--prove", "--backend", "sim", "--ranks", "3", "--out", str(out))
    text = out.read_text()
    assert done.exit_code == 0 and text in done.stdout
    rows = re.findall(r"\| sim, 3 ranks \| (.*?) \| (\w+) \|", text)
    assert [f"test_{path}".replace(" ", "_") for path, _ in rows] == PATHS
    assert [path for path, state in rows if state != "passed"] == [
        "bandwidth of all reduces"  # its clock is virtual
    ]
    assert f"proves nothing about GPUs: {len(PATHS) - 1} of {len(PATHS) - 1}" in text
    assert f"| torch | {torch.__version__}" in text


def test_bandwidth_is_measured_on_processes():
    worlds = gpu_report.worlds("gloo", "2")
    [(world, _, state, _, remark)] = gpu_report.prove(worlds, "-k", "bandwidth")
    assert (world.n, state) == (2, "passed"), remark
    assert remark.count("GB/s") == 4


def test_a_path_that_computes_something_else_fails(monkeypatch):
    wrong, go = lambda x, group: x.add_(1), gpu_report.prove
    monkeypatch.setattr(test_gpu.allreduce, "tree_allreduce", wrong)
    monkeypatch.setattr(gpu_report, "prove", lambda worlds: go(worlds, "-k", "06"))
    done = invoke("--prove", "--backend", "sim", "--ranks", "2")
    assert done.exit_code == 1 and "0 of 1 paths passed" in done.stdout
    assert "| chapter 06 from scratch | FAILED |" in done.stdout
    assert "tree_allreduce of size 1: " in done.stdout


def test_paths_that_did_not_run_have_not_passed():
    with pytest.raises(RuntimeError, match="did not run all paths.*NO_TESTS"):
        gpu_report.prove(gpu_report.worlds("sim", "2"), "-k", "nothing")


def worlds_of(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    return gpu_report.worlds()


@pytest.mark.parametrize(
    ("gpus", "nccl"), [(0, []), (1, [1]), (2, [1, 2]), (6, [1, 2, 3, 4, 6])]
)
def test_nccl_comes_first_and_once_more_after_cuda_was_used(gpus, nccl, monkeypatch):
    found = [(w.backend, w.n, w.used) for w in worlds_of(gpus, monkeypatch)]
    rest = [("gloo", 4, False), ("sim", 4, False), ("nccl", gpus, True)]
    assert found == [("nccl", n, False) for n in nccl] + rest * (gpus > 0)


@pytest.mark.parametrize(("gpus", "said"), [(1, "is not proven"), (4, "up to 4 GPUs")])
def test_what_is_proven_is_said(gpus, said, monkeypatch):
    worlds = worlds_of(gpus, monkeypatch)
    for state, sentence in (("passed", said), ("skipped", "is not proven")):
        rows = [(w, "a path", state, 0.0, "") for w in worlds]
        assert sentence in gpu_report.verdict(rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--prove"], gpu_report.NOTHING),
        (["--out", "x"], "options of --prove"),
        (["--prove", "--out", "nowhere/x"], "There is no folder nowhere for x."),
        (["--prove", "--backend", "sim", "--ranks", "one"], "numbers from 2 on"),
        (["--prove", "--backend", "sim", "--ranks", "2,1"], "numbers from 2 on"),
    ],
)
def test_a_mistake_gets_one_sentence(words, sentence, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert sentence in str(invoke(*words).exception)


def test_without_pytest_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.delattr("d2lpar.cli.gpu_report")
    monkeypatch.delitem(sys.modules, "d2lpar.cli.gpu_report")
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert "pip install pytest" in str(invoke("--prove").exception)
