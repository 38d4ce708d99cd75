"""Kill training ranks at random, many times, and compare every loss with one long run.

    make soak                          300 kills, a few minutes
    python tests/soak.py 500 7         500 kills, seed 7

Two processes train a GPT with ZeRO-1, and save beside the training.  Half of the kills
come at a phase of a step or of a save, before or after it, and half at any moment.  All
are SIGKILL, from the rank itself or from a thread of it.  After each kill the run is
started again and continues with the newest checkpoint that is whole.  At the end one
of two nodes of a torchrun job is killed, and the other one goes on alone.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

import d2lpar
from d2lpar import RankError
from d2lpar.failures import saving
from d2lpar.failures.mesh_saving import restore, run_state
from d2lpar.mesh import Config, Mesh, MeshModel

CONFIG = Config(D=8, depth=2, heads=2, context=4, vocabulary=12, dropout=0.1)
RANKS = 2
# What is killed before or after it: a name here, a function there.
STEP = {
    "forward": "d2lpar.mesh.pipeline.MeshPipeline.forward",
    "backward": "d2lpar.mesh.pipeline.MeshPipeline.backward",
    "gradients": "d2lpar.mesh.MeshModel.finish",
    "optimizer": "torch.optim.Adam.step",
    "update": "d2lpar.mesh.MeshModel.update",
}
SAVE = {
    "agree": "d2lpar.failures.saving.agree",
    "copy": "d2lpar.failures.saving.split_off",
    "bytes": "torch.save",
    "fsync": "os.fsync",
    "file name": "os.replace",
    "manifest": "d2lpar.failures.saving._complete",
    "folder name": "os.rename",
    "remove old": "shutil.rmtree",
}
PHASES = STEP | SAVE


def die():
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill):
    """Prepare this rank's end: `kill` is (rank, phase, side, visit or seconds)."""
    rank, phase, side, when = kill
    if dist.get_rank() != rank:
        return
    if phase == "moment":
        timer = threading.Timer(when, die)
        timer.daemon = True
        timer.start()
        return
    *path, name = PHASES[phase].split(".")
    owner = sys.modules.get(".".join(path))
    if owner is None:
        owner = getattr(sys.modules[".".join(path[:-1])], path[-1])
    function, visits = getattr(owner, name), Counter()

    def deadly(*args, **kwargs):
        visits["seen"] += 1
        due = visits["seen"] == when
        if due and side == "before":
            die()
        if due and side == "half":  # some bytes are written, no more
            args[1].write(b"half of a file")
            args[1].flush()
            die()
        result = function(*args, **kwargs)
        if due:
            die()
        return result

    setattr(owner, name, deadly)


def train(folder, stop, kill=None, every=2):
    """Train from the newest checkpoint to step `stop`, unless killed."""
    mesh = Mesh(data=dist.get_world_size())
    model = MeshModel(CONFIG, mesh, micro_batches=2, zero=1)
    optimizer = torch.optim.Adam(model.shards, lr=1e-2)
    path = Path(folder) / "saved"
    if saving.complete(path):
        restore(model, optimizer, saving.load(path, mesh))
    begin = model.moment.step
    if kill:
        arm(kill)
    with open(Path(folder) / f"losses-{dist.get_rank()}", "a") as log:
        for k in range(begin, stop):
            if k % every == 0 and k > begin:
                saving.save(run_state(model, optimizer), path, wait=False)
            tokens = torch.randint(0, 12, (2, 4, 4))  # the saved random state draws
            loss = model.step(*tokens)
            model.update(optimizer)
            log.write(f"{k} {float(loss).hex()}\n")
            log.flush()
    saving.save(run_state(model, optimizer), path)
    return begin


def run(folder, stop, kill=None, timeout=30.0):
    """Run two ranks; return the name of the failure, or None."""
    try:
        d2lpar.run(
            train, folder, stop, kill, world_size=RANKS, backend="gloo", timeout=timeout
        )
    except RankError as error:
        return str(error).split("\n", maxsplit=1)[0]


def draw(chance):
    """Return a kill at random."""
    rank = chance.randrange(RANKS)
    if chance.random() < 0.5:
        return rank, "moment", "", chance.uniform(0.0, 0.15)
    phase = chance.choice(list(PHASES))
    sides = ["before", "after"] + ["half"] * (phase == "bytes")
    return rank, phase, chance.choice(sides), chance.randint(1, 4)


def losses(folder):
    """Return {step: set of the losses that any rank logged}."""
    found = {}
    for path in Path(folder).glob("losses-*"):
        for line in path.read_text().splitlines():
            step, _, loss = line.partition(" ")
            found.setdefault(int(step), set()).add(loss)
    return found


def left_over():
    """Return what is there of processes, shared memory, sockets and networks."""
    me = psutil.Process()
    ranks = [c.pid for child in me.children() for c in child.children(recursive=True)]
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    spaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    ports = [c.laddr.port for c in me.net_connections() if c.status == "LISTEN"]
    temporary = os.listdir(os.environ["TMPDIR"]) if "TMPDIR" in os.environ else []
    return {"processes": ranks, "shared memory": shared, "namespaces": spaces,
            "ports": ports, "temporary files": temporary}  # fmt: skip


def soak(folder, kills, seed=0, each=8):
    """Kill so many times, and return the figures; AssertionError if a loss differs."""
    chance, found, phases = random.Random(seed), [], Counter()
    failure = run(folder, 1)  # the server that starts ranks is there before
    assert failure is None, failure
    before, start, stop = left_over(), time.monotonic(), 1
    longest, runs = 0.0, 0
    while sum(phases.values()) < kills:
        kill = draw(chance)
        began, runs = time.monotonic(), runs + 1
        newest = max(saving.complete(Path(folder) / "saved"), default=0)
        failure = run(folder, stop + each, kill)
        longest = max(longest, time.monotonic() - began)
        if failure is None:  # it was over before the kill was due
            stop += each
            continue
        assert "SIGKILL" in failure, failure
        phases[kill[1]] += 1
        found = saving.complete(Path(folder) / "saved")
        assert found and found[-1] >= newest, (found, newest)
        assert not saving.damage(Path(folder) / "saved" / str(found[-1]))
    seconds = time.monotonic() - start
    assert run(folder, stop + each) is None
    return {
        "kills": sum(phases.values()), "phases": dict(phases), "runs": runs,
        "seconds": round(seconds, 1), "longest run": round(longest, 2),
        **compare(folder, stop + each), **remains(folder, before),
    }  # fmt: skip


def compare(folder, stop):
    """Return how many losses there are; AssertionError where one differs."""
    came = losses(folder)
    with tempfile.TemporaryDirectory() as other:
        assert run(other, stop) is None
        truth = losses(other)
    assert came == truth, {k: (came.get(k), truth[k]) for k in truth
                           if came.get(k) != truth[k]}  # fmt: skip
    return {"steps": len(came), "losses that differ": 0}


def remains(folder, before):
    """Return how many things there are that were not there before."""
    parts = list((Path(folder) / "saved").glob("*.part-*"))
    deadline = time.monotonic() + 5
    while (after := left_over())["processes"] and time.monotonic() < deadline:
        time.sleep(0.05)
    new = {name: len(set(after[name]) - set(before[name])) for name in after}
    return {"half-written checkpoints": len(parts), **new}


def elastic(folder, seconds=120):
    """Kill one of two nodes of a torchrun job, and return what rank 0 printed.

    A node is a launcher with its worker.  The script is the one of chapter 19, whose
    worker here kills its launcher, too.
    """
    program, kill = chapters_script(), "os.kill(os.getpid(), signal.SIGKILL)"
    program = program.replace(kill, f"os.kill(os.getppid(), signal.SIGKILL); {kill}")
    program = program.replace("r == n - 1:", 'os.environ["NODE"] == "1":')
    (Path(folder) / "train.py").write_text(program)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    limits = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=10"
    command = "torch.distributed.run --nnodes 1:2 --nproc-per-node 1 --max-restarts 3"
    command += f" --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id soak"
    nodes = []
    for node, host in enumerate(("true", "false")):
        mine = f"{command} --rdzv-conf {limits},is_host={host} train.py"
        how = {"cwd": folder, "env": os.environ | {"NODE": str(node)}, "text": True}
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        arguments = [sys.executable, "-u", "-m", *mine.split()]
        nodes.append(subprocess.Popen(arguments, start_new_session=True, **how))
        time.sleep(0.5)  # the first one serves the store
    try:
        text, _ = nodes[0].communicate(timeout=seconds)
        assert nodes[0].returncode == 0, text
        assert nodes[1].wait(30) == -signal.SIGKILL
    finally:
        for node in nodes:
            with contextlib.suppress(OSError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
            node.stdout.close()
    return [line for line in text.splitlines() if line]


def chapters_script():
    """Return the script of chapter 19 that torchrun executes there."""
    path = Path(d2lpar.__file__).parents[1] / "chapters" / "19_failures.ipynb"
    found = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if source.startswith(("head = ", "loop = ")):
            exec(source, found)
    return found["head"] + found["loop"]


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as mine:
        os.environ["TMPDIR"] = tempfile.tempdir = mine  # what appears there is ours
        print(json.dumps(soak(place, *(numbers or [300])), indent=1))
        with tempfile.TemporaryDirectory() as other:  # without checkpoints
            print(json.dumps(elastic(other), indent=1))
