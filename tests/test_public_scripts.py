"""Public scripts for several GPUs run in `simulate`, and nothing is told against them.

D2LPAR_PUBLIC is a folder of clones, <owner>+<name>, that have the commits below.
Arguments and edits make a script small; it learns from tokens that are drawn.
"""

import io
import json
import math
import os
import pickle
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from conftest import ROOT

CLONES = Path(os.environ.get("D2LPAR_PUBLIC", "nowhere"))
ALARMS = "RaceError|MismatchError|DeadlockError|never waited|in flight"
# A module that is not installed, and of which nothing is used.
STAND_IN = """
from unittest.mock import MagicMock
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()
"""
CHAT_DATA = """
import torch
def tokenizing_distributed_data_loader_with_state_bos_bestfit(tok, b, t, **more):
    while True:
        x = torch.randint(0, 64, (b, t + 1)).sort().values
        yield x[:, :-1].clone(), x[:, 1:].clone(), dict(epoch=1, pq_idx=0, rg_idx=0)
tokenizing_distributed_data_loader_bos_bestfit = None
"""
CHAT_TOKENS = """
class get_tokenizer:
    get_vocab_size = lambda self: 64
get_token_bytes = lambda device: None
"""


class Case(NamedTuple):
    repository: str
    commit: str
    command: str  # N: how many ranks
    edits: dict = {}  # of a file: {pattern: what is in its place}
    absent: str = ""  # modules to stand in for
    written: dict = {}  # a file's text
    paths: str = ""  # what of the repository is needed, else all
    folder: str = "."
    loss: str = r"(?i)loss[:= ]+(\d+\.\d+)"
    sizes: tuple = (2, 4)
    rows: int = 1000  # of twenty tokens each


def dualpipe(v):
    small = {"seq_len = 256": "seq_len = 16", "hidden_size = 512": "hidden_size = 32"}
    once = {"range.num_gpus, 0": "range(num_gpus, num_gpus - 1"}  # with all ranks
    edits = {f"dualpipe/dualpipe{v}.py": {r".*device == torch.device.*": ""}}
    edits[f"examples/example_dualpipe{v}.py"] = small | once
    command = f"example_dualpipe{v}.py"  # it compares losses and gradients itself
    repository, commit = "deepseek-ai/DualPipe", "3da1bbea5360"
    return Case(repository, commit, command, edits, folder="examples", loss="")


CASES = {
    "nanoGPT": Case(
        "karpathy/nanoGPT", "3adf61e154c3",
        "train.py --dataset=tiny --n_layer=2 --n_head=2 --n_embd=32 --block_size=32 "
        "--batch_size=4 --gradient_accumulation_steps=8 --max_iters=6 --log_interval=1 "
        "--warmup_iters=1 --lr_decay_iters=6 --eval_interval=3 --eval_iters=1 "
        "--compile=False --dtype=float32 --learning_rate=1e-2",
    ),
    "llm.c": Case(
        "karpathy/llm.c", "f1e2ace65149",
        "train_gpt2.py --model d12 --input_bin data/fineweb_train_0.bin --batch_size 2 "
        "--sequence_length 32 --total_batch_size 256 --write_tensors 0 --zero_stage 1 "
        "--learning_rate 1e-2 --num_iterations 6",
        {"train_gpt2.py": {
            "50257, n_layer=12, n_head=12, n_embd=768":
                "64, n_layer=2, n_head=2, n_embd=32",
        }},
        "tiktoken", paths="train_gpt2.py",
    ),
    "modded-nanogpt": Case(
        "KellerJordan/modded-nanogpt", "45544f533ae9", "train_gpt.py",
        {"train_gpt.py": {
            r"8\*64\*1024": "512", r"64\*1024": "128", "10485760": "512",
            "every = 125": "every = 2", "= 1390": "= 4", "data/fineweb10B": "data",
            "=50304, (.*)=6, model_dim=768": r"=64, \1=2, model_dim=32",
            "'nvidia-smi'": "'true'", "y = flex_": "y = F.scaled_dot_product_",
            ", block_mask=block_mask": ", is_causal=True",
        }},
        paths="train_gpt.py",
    ),
    "nanochat": Case(
        "karpathy/nanochat", "92d63d4e8bb4",
        "-m scripts.base_train --depth 2 --aspect-ratio 16 --head-dim 16 "
        "--device-batch-size 2 --total-batch-size 256 --num-iterations 6 "
        "--eval-every -1 --max-seq-len 32 --core-metric-every -1 --sample-every -1",
        {}, "wandb",
        {"nanochat/dataloader.py": CHAT_DATA, "nanochat/tokenizer.py": CHAT_TOKENS,
         "scripts/base_eval.py": "evaluate_core = None"},
        paths="nanochat scripts",
    ),
    "dion": Case(
        "microsoft/dion", "0a059a4542e5",
        "train.py --optimizer muon --data_dir data --model_dim 32 --n_layer 2 "
        "--n_head 2 --sequence_length 32 --batch_size 8 --device_batch_size 2 "
        "--lr 0.02 --num_iterations 4 --no_wandb --no_triton --no_compile --fs_size N",
        {"train.py": {"val_tokens: int = .*": "val_tokens: int = 256"}},
        "wandb tqdm yaml",
    ),
    "FSDP2": Case(
        "pytorch/examples", "77f55b912142",
        "example.py --explicit-prefetching --mixed-precision",
        folder="distributed/FSDP2", paths="distributed/FSDP2", loss="", sizes=(2,),
    ),
    "DualPipe": dualpipe(""),
    "DualPipeV": dualpipe("v"),
}  # fmt: skip
PLANTED = {  # name: (file, what is left out there, the line that is then too early)
    "modded-nanogpt": ("train_gpt.py", r"handle\.wait\(\)", "p_world.data.add_("),
    "DualPipe": ("dualpipe/dualpipe.py", r"req\.wait\(\)", "F.linear(input, weight)"),
}


def tokens(folder, rows):
    """What the scripts learn from, in the formats and places that they expect."""
    drawn = np.random.default_rng(0).integers(0, 64, (rows, 20))
    found = np.sort(drawn, axis=1).reshape(-1).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(found)
    (folder / "data/tiny").mkdir(parents=True)
    (folder / "data/tiny/meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))
    for part in ("train", "val"):
        found.tofile(folder / f"data/tiny/{part}.bin")
        file = folder / f"data/fineweb_{part}_0.bin"
        file.write_bytes(header.tobytes() + found.tobytes())


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def simulated(case, n, folder, **planted):
    """The finished process of `simulate` with the case's script on n ranks."""
    clone = CLONES / case.repository.replace("/", "+")
    if not clone.is_dir():
        pytest.skip(f"D2LPAR_PUBLIC has no clone of {case.repository}")
    command = ["git", "-C", clone, "archive", case.commit, *case.paths.split()]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    tokens(folder / case.folder, case.rows)
    for file, edits in [*case.edits.items(), *planted.items()]:
        text = (folder / file).read_text(encoding="utf-8")
        for pattern, new in edits.items():
            text, count = re.subn(pattern, new, text)
            assert count, f"{file} has no {pattern!r}"
        write(folder / file, text)
    for file, text in case.written.items():
        write(folder / file, text)
    for name in case.absent.split():
        write(folder / "absent" / name.replace(".", "/") / "__init__.py", STAND_IN)
    words = case.command.replace("N", str(n)).split()
    paths = os.pathsep.join(map(str, (ROOT, folder, folder / "absent")))
    command = f"-m d2lpar simulate --cluster {n}xA100".split()
    env = {**os.environ, "PYTHONPATH": paths, "NANOCHAT_BASE_DIR": str(folder / "out")}
    kept = {"env": env, "cwd": folder / case.folder, "text": True}
    command = [sys.executable, *command, *words]
    return subprocess.run(command, timeout=300, capture_output=True, **kept)


CALLS = [(name, n) for name, case in CASES.items() for n in case.sizes]


@pytest.mark.night
@pytest.mark.parametrize(("name", "n"), CALLS)
def test_nothing_is_told_against_a_public_script(name, n, tmp_path):
    loss, done = CASES[name].loss, simulated(CASES[name], n, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not re.search(ALARMS, done.stdout + done.stderr)
    losses = [float(each) for each in re.findall(loss, done.stdout) if loss]
    assert all(map(math.isfinite, losses))
    assert not loss or losses[-1] < losses[0]


@pytest.mark.night
@pytest.mark.parametrize("name", PLANTED)
def test_a_race_planted_in_a_public_script_is_told(name, tmp_path):
    file, call, early = PLANTED[name]
    done = simulated(CASES[name], 2, tmp_path, **{file: {call: "pass"}})
    assert done.returncode == 1
    told = re.search(r"RaceError: .*? at (\S+\.py):(\d+) while", done.stderr)
    lines = (tmp_path / CASES[name].folder / told[1]).read_text(encoding="utf-8")
    assert early in lines.split("\n")[int(told[2]) - 1]


GPT2 = "--shapes --cluster 8xA100-40GB train.py config/train_gpt2.py --dataset=tiny "
GPT2 += "--max_iters=2 --eval_iters=1 --log_interval=1 --wandb_log=False"


@pytest.mark.night
def test_what_the_guide_says_of_nanogpt_in_its_own_size(tmp_path):
    edits = {"train.py": {r"os.path.exists.meta_path.": "False"}}  # all of its words
    case = CASES["nanoGPT"]._replace(command=GPT2, edits=edits)
    done = simulated(case, 8, tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"a step: (\S+) ms", done.stdout)[1]
    assert told("nanoGPT's GPT-2") == f"{float(found):.0f} ms"


def told(run, column=2):
    """What the guide says is predicted of a published run; 3: and of its cause."""
    guide = (ROOT / "GUIDE.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in guide if f"| {run}" in line).split(" | ")[column]


LLMC = "--shapes --alike --cluster {} train_gpt2.py --dtype bfloat16 --flash 1 "
LLMC += "--input_bin data/fineweb_train_0.bin --write_tensors 0 --zero_stage 1 "
LLMC += "--sequence_length 1024 --num_iterations 3 --tensorcores 1 "
LLMC += "--total_batch_size {} --batch_size {} --model {}"
SMALL, LARGE = ("524288", "64", "d12"), ("1048576", "16", "d48")
GELU = {r"return 0\.5 \* input.*": "return F.gelu(input, approximate='tanh')"}


@pytest.mark.night
@pytest.mark.parametrize(
    ("run", "cluster", "sizes", "edits", "column"),
    [
        ("llm.c's GPT-2 on 8 A100", "8xA100", SMALL, {}, 2),
        ("llm.c's GPT-2 on 8 A100", "8xA100", SMALL, GELU, 3),
        ("the same on 8 H100", "8xH100", SMALL, {}, 2),
        ("the same on 8 H100", "8xH100", SMALL, GELU, 3),
        ("llm.c's 1558M", "8xH100", LARGE, GELU, 2),
    ],
)
def test_what_the_guide_predicts_of_llm_c(run, cluster, sizes, edits, column, tmp_path):
    changes = {"command": LLMC.format(cluster, *sizes), "rows": 60_000}
    case = CASES["llm.c"]._replace(edits={"train_gpt2.py": edits}, **changes)
    done = simulated(case, 8, tmp_path)
    assert done.returncode == 0, done.stderr
    number, unit = re.search(r"a step: (\S+) (m?s)\b", done.stdout).groups()
    figure = f"{float(number):.0f} ms" if unit == "ms" else f"{float(number):.2f} s"
    assert figure in told(run, column)


@pytest.mark.night
@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("torchtitan's 8B on 64 A100", "8x8xA100 --network 4x200Gb"),
        ("torchtitan's 8B on 8 H100", "8xH100 --network 8x400Gb"),
        ("the same on 128 H100", "16x8xH100 --network 8x400Gb"),
    ],
)
def test_what_the_guide_predicts_of_torchtitan(run, words, tmp_path):
    batch, file = "1" if "A100" in run else "2", tmp_path / "report.json"
    command = f"{sys.executable} -m d2lpar simulate --shapes --alike --cluster {words}"
    script = ["--json", file, ROOT / "bench/llama8b.py", batch]
    subprocess.run([*command.split(), *script], check=True, timeout=300)
    report = json.loads(file.read_text())
    rate = report["step"]["tokens"] / report["step"]["seconds"]
    memory = f"; {report['peak_memory'][0] / 2**30:.1f} GiB" * (batch == "2")
    assert told(run) == f"{rate:,.0f}{memory}"
