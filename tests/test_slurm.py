"""slurm/: the job scripts, run with a played Slurm that records what is started."""

import os
import shutil

import pytest
from torch.distributed.run import get_args_parser

from conftest import ROOT, completed

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")

PLAYED = {
    "python": 'echo "$@" >> "$LOG"',
    "srun": 'shift; exec "$@"',
    "scontrol": "printf 'node7\\nnode9\\n'",
}


def job(name, tmp_path, *arguments, **environ):
    """What a job has started, a line for each, and what it printed."""
    for program, body in PLAYED.items():
        path = tmp_path / program
        path.write_text(f"#!{BASH}\n{body}\n")
        path.chmod(0o755)
    slurm = {"JOB_ID": 41, "JOB_NUM_NODES": 2, "JOB_NODELIST": "node[7,9]"}
    variables = {f"SLURM_{key}": str(value) for key, value in slurm.items()}
    variables |= {"SLURM_SUBMIT_DIR": str(tmp_path), "LOG": f"{tmp_path}/log"}
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "python"}
    words = [BASH, ROOT / "slurm" / name, *arguments]
    done = completed(words, env=os.environ | variables | environ)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "log").read_text().splitlines(), done.stdout


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [({}, "2"), ({"SLURM_GPUS_ON_NODE": "8"}, "8"), ({"RANKS_PER_NODE": "3"}, "3")],
)
def test_a_chapter_is_started_on_every_node(tmp_path, environ, ranks):
    (convert, start), _ = job("chapter.sbatch", tmp_path, "04", **environ)
    assert convert == "-m d2lpar script 04 --to d2lpar-41.py"
    module, name, *options = start.split()
    assert (module, name) == ("-m", "torch.distributed.run")
    given = get_args_parser().parse_args(options)
    assert (given.nnodes, given.nproc_per_node) == ("2", ranks)
    assert (given.rdzv_backend, given.rdzv_endpoint) == ("c10d", "node7:20041")
    assert (given.rdzv_id, given.training_script) == ("41", "d2lpar-41.py")


def test_jupyterlab_is_open_to_this_node_alone(tmp_path):
    (start,), told = job("lab.sbatch", tmp_path)
    assert start.startswith("-m d2lpar lab --no-browser --ip=localhost --port=20041")
    assert "ssh -N -L 20041:localhost:20041 -J LOGIN-NODE" in told


@pytest.mark.parametrize("name", ["chapter.sbatch", "lab.sbatch"])
def test_options_for_slurm_stand_above_the_first_command(name):
    lines = (ROOT / "slurm" / name).read_text().splitlines()
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    first = next(i for i, x in enumerate(lines) if x.strip() and not x.startswith("#"))
    assert options and max(options) < first
