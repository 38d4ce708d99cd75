"""The proof of this machine's paths, rehearsed on the CPU."""

import pytest
import torch
from typer.testing import CliRunner

from d2lpar.cli import main as cli
from d2lpar.cli import proofs, prove

FEW = ("send, recv and exchange in a ring", "bandwidth of all-reduces")


@pytest.mark.parametrize("path", prove.PATHS)
def test_every_path_passes_in_the_simulator(path):
    [(_, proof)] = prove.plan("sim", "3", [path])
    done = proof()
    wanted = prove.SKIPPED if "bandwidth" in path else prove.PASSED
    assert (done.state, done.path) == (wanted, path), done.remark


def test_a_path_passes_on_processes():
    [(_, proof)] = prove.plan("gloo", "2", FEW[1:])
    done = proof()
    assert done.state == prove.PASSED, done.remark
    assert done.remark.count("GB/s") == 4


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "proof"), prove.plan(), ids=lambda x: str(x)[:60])
def test_on_the_gpus_of_this_machine(name, proof):
    done = proof()
    assert done.state != prove.FAILED, f"{name}: {done.remark}"


def broken_sum(tensor, group=None):
    tensor += 1


def test_a_path_that_computes_something_else_fails(monkeypatch):
    monkeypatch.setattr(proofs.allreduce, "tree_allreduce", broken_sum)
    [(name, proof)] = prove.plan("sim", "2", ["chapter 06, from scratch"])
    done = proof()
    assert name == "sim, 2 ranks: chapter 06, from scratch"
    assert done.state == prove.FAILED
    assert "tree_allreduce of size 1: off by" in done.remark
    report = prove.report([done], "sim")
    assert "0 of 1 paths passed" in report
    assert "proves nothing about GPUs" in report


@pytest.mark.parametrize(
    ("gpus", "nccl"), [(0, []), (1, [1]), (2, [1, 2]), (6, [1, 2, 3, 4, 6])]
)
def test_the_worlds_of_some_gpus(gpus, nccl):
    found = prove.worlds(gpus)
    assert [w.n for w in found if w.backend == "nccl" and not w.used] == nccl
    rest = [w for w in found if w.backend != "nccl" or w.used]
    assert [w.backend for w in rest] == ["gloo", "sim", "nccl"] * (gpus > 0)
    # the simulator uses CUDA in this process: NCCL must be proven before
    assert all(w.n == gpus for w in rest[2:])
    assert found[len(nccl) :] == rest


def test_what_is_proven_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    proofs = []
    for world in prove.worlds(1):
        proofs.append(prove.Proof("a path", world, prove.PASSED))
    assert "NCCL between GPUs is not proven" in prove.verdict(proofs)
    four = [prove.Proof("a path", w, prove.PASSED) for w in prove.worlds(4)]
    assert prove.verdict(four).startswith("NCCL on up to 4 GPUs: 7 of 7 paths passed")


def test_a_torch_without_nccl_has_nothing_to_pass(monkeypatch):
    monkeypatch.setattr(prove.dist, "is_nccl_available", lambda: False)
    proof = prove.prove("a path", prove.bandwidth, prove.worlds(2)[0])
    assert (proof.state, proof.remark) == (prove.SKIPPED, "this torch has no NCCL")
    assert "NCCL between GPUs is not proven" in prove.verdict([proof])


def invoke(*words):
    return CliRunner().invoke(cli.app, ["doctor", *words])


def test_without_a_gpu_there_is_nothing_to_prove(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = invoke("--prove")
    assert done.exit_code == 1
    assert str(done.exception) == prove.NOTHING


def test_the_report_is_printed_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(prove.plan, "__defaults__", (None, "2,4", FEW))
    out = tmp_path / "report.md"
    done = invoke("--prove", "--backend", "sim", "--ranks", "2", "--out", str(out))
    assert done.exit_code == 0
    text = out.read_text()
    assert text in done.stdout
    assert text.startswith("# d2lpar doctor --prove\n")
    assert f"| sim, 2 ranks | {FEW[0]} | passed |" in text
    assert f"| sim, 2 ranks | {FEW[1]} | skipped |" in text
    assert f"| torch | {torch.__version__}" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "x"], "options of --prove"),
        (["--prove", "--out", "nowhere/x"], "There is no folder nowhere for x."),
        (["--prove", "--backend", "sim", "--ranks", "one"], "numbers from 2 on"),
    ],
)
def test_a_mistake_gets_one_sentence(words, sentence):
    assert sentence in str(invoke(*words).exception)
