"""The doctor's findings on machines that this one is not."""

import functools
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

import d2lpar
from d2lpar.cli import doctor
from d2lpar.launch import versions


def fake_torch(version="2.13.0", cuda="13.0", gpus=0, peers=True, nccl=True):
    """As much of torch as the doctor looks at."""
    properties = SimpleNamespace(name="H100", total_memory=80e9)
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            device_count=lambda: gpus,
            get_device_properties=lambda i: properties,
            can_device_access_peer=lambda i, j: peers,
        ),
        distributed=SimpleNamespace(
            is_available=lambda: True,
            is_gloo_available=lambda: True,
            is_nccl_available=lambda: nccl,
        ),
    )


@pytest.fixture
def machine(monkeypatch):
    """Call it to put another torch, or none, into this machine."""

    def put(torch, nvidia_smi=None):
        monkeypatch.setattr(doctor, "_torch", lambda: torch)
        monkeypatch.setattr(doctor.shutil, "which", lambda name: nvidia_smi)

    return put


def by_topic(findings):
    return {finding.topic: finding for finding in findings}


def test_this_machine_can_run_the_course():
    findings = doctor.examine()
    assert doctor.can_run(findings)
    topics = by_topic(findings)
    assert {"Python", "machine", "torch", "Gloo", "NCCL", "d2l"} <= set(topics)
    assert "cores" in topics["machine"].value


def test_what_is_missing_comes_with_advice():
    for finding in doctor.examine():
        assert finding.state in ("ok", "note", "missing")
        assert (finding.state == "ok") == (finding.advice == "")


def test_without_torch_the_course_cannot_run(machine):
    machine(None)
    findings = doctor.examine()
    assert not doctor.can_run(findings)
    assert "pip install" in by_topic(findings)["torch"].advice


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.10.1", "missing"), ("2.11.0+cu128", "ok"), ("3.0.0a0+git12", "note")],
)
def test_torch_must_be_new_enough(machine, version, state):
    machine(fake_torch(version))
    assert doctor.torch()[0].state == state


def test_a_torch_newer_than_tried_is_said_once_and_runs(monkeypatch):
    seven = lambda: d2lpar.run(lambda: 7, world_size=2, backend="sim").results
    monkeypatch.setattr(versions, "NEWEST", (2, 10))
    monkeypatch.setattr(versions, "warn", functools.cache(versions.warn.__wrapped__))
    found = doctor.torch()[0]
    assert found.state == "note" and found.advice.endswith("tried with is 2.10.")
    with pytest.warns(UserWarning, match=r"newest .* tried with is 2\.10") as warned:
        assert seven() == seven() == [7, 7]
    assert [each.filename for each in warned] == [__file__]


def test_a_newer_torch_without_what_is_imported_is_named(monkeypatch):
    def fail(*_):
        raise ImportError("cannot import name 'FakeTensor'")

    with monkeypatch.context() as patch:
        patch.setattr(d2lpar.importlib, "import_module", fail)
        with pytest.raises(ImportError, match="^cannot import name 'FakeTensor'$"):
            d2lpar.__getattr__("run")
        patch.setattr(versions, "NEWEST", (2, 10))
        with pytest.raises(ImportError, match=r"tried with is 2\.10.*FakeTensor"):
            d2lpar.__getattr__("run")


def test_old_python_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert doctor.python().state == "missing"


def test_without_a_driver_a_cpu_torch_is_enough(machine):
    machine(fake_torch(cuda=None))
    (finding,) = doctor.gpus()
    assert finding.state == "note"
    assert "CPU build of torch is enough" in finding.advice


def test_a_driver_that_torch_cannot_use_is_said(machine):
    machine(fake_torch(cuda=None), "/usr/bin/nvidia-smi")
    assert "a CUDA build of torch would use it" in doctor.gpus()[0].advice
    machine(fake_torch(), "/usr/bin/nvidia-smi")
    assert "torch sees no GPU" in doctor.gpus()[0].advice


def test_two_gpus_and_the_links_between_them(machine, monkeypatch):
    machine(fake_torch(gpus=2), "/usr/bin/nvidia-smi")
    heading = "\t\x1b[4mGPU0\tGPU1\x1b[0m\n"
    printed = heading + "GPU0\t X \tNV18\nGPU1\tNV18\t X \n\nLegend:\n  X = Self\n"
    done = SimpleNamespace(stdout=printed, returncode=0)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: done)
    topics = by_topic(doctor.gpus())
    assert topics["GPU 1"].value == "H100, 80 GB"
    assert topics["links"].value.splitlines() == [
        "2 of 2 pairs reach each other's memory",
        "\tGPU0\tGPU1",
        "GPU0\t X \tNV18",
        "GPU1\tNV18\t X",
    ]


def test_the_driver_of_two_gpus_is_named_once(machine, monkeypatch):
    machine(fake_torch(gpus=2), "/usr/bin/nvidia-smi")
    done = SimpleNamespace(stdout="580.65.06\n580.65.06\n", returncode=0)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: done)
    assert doctor.driver() == "580.65.06"
    done.stdout, done.returncode = "Failed to initialize NVML\n", 9
    assert doctor.driver() == "unknown"
    machine(fake_torch(gpus=2))
    assert doctor.driver() == "unknown"


def test_links_without_nvidia_smi(machine):
    machine(fake_torch(gpus=3, peers=False))
    assert doctor.links(doctor._torch(), 3).value.startswith("0 of 6 pairs")


@pytest.mark.parametrize(
    ("gpus", "chosen"),
    [(0, "gloo"), (1, "nccl up to world_size=1"), (8, "nccl up to world_size=8")],
)
def test_what_auto_chooses(machine, gpus, chosen):
    machine(fake_torch(gpus=gpus))
    assert doctor.auto().value.startswith(chosen)


def test_a_temporary_folder_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/nowhere/at/all")
    finding = doctor.scratch()
    assert finding.state == "missing"
    assert "TMPDIR" in finding.advice


def test_missing_packages_are_notes(monkeypatch):
    monkeypatch.setattr(doctor, "_has", lambda name: False)
    assert doctor.notebooks().state == "note"
    assert 'pip install "d2lpar[lab]"' in doctor.notebooks().advice
    assert "--no-deps d2l==1.0.3" in doctor.d2l().advice


def test_the_table_shows_every_finding():
    findings = [
        doctor.Finding("torch", "2.13.0[cpu]"),
        doctor.Finding("d2l", "not installed", "note", "pip install it"),
    ]
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(doctor.table(findings))
    text = console.export_text()
    for word in ("torch", "2.13.0[cpu]", "ok", "d2l", "note", "pip install it"):
        assert word in text
