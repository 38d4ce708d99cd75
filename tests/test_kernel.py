"""A run inside a Jupyter kernel: interrupted, it leaves nothing behind."""

import os
import queue
import re
import subprocess
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from conftest import WATCHDOG

ANSI = re.compile(r"\x1b\[[0-9;]*m")
BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])
SETUP = """
import time, torch, torch.distributed as dist, d2lpar

def add_up():
    x = torch.ones(1) * dist.get_rank()
    dist.all_reduce(x)
    return x.item()

def endless():
    while True:
        time.sleep(0.001)

def one_skips():
    if dist.get_rank() == 0:
        time.sleep(1000)
    dist.barrier()

assert d2lpar.run(add_up, world_size=4, backend=BACKEND).results == [6.0] * 4
"""


@pytest.fixture(scope="module")
def kernel():
    environ = {**os.environ, "D2LPAR_PROGRESS": "0"}
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager, client = start_new_kernel(env=environ, **quiet)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def execute(client, code, meanwhile=None, messages=None):
    """(name of the error or None, seconds since `meanwhile` was called).

    What the kernel says is in `messages`, as (kind, content).
    """
    request, error, since = client.execute(code), None, time.monotonic()
    deadline = time.monotonic() + WATCHDOG
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            message = None
        if message and message["parent_header"].get("msg_id") == request:
            if messages is not None:
                messages.append((message["msg_type"], message["content"]))
            if message["msg_type"] == "error":
                error = message["content"]["ename"]
            if message["content"].get("execution_state") == "idle":
                return error, time.monotonic() - since
        if meanwhile is not None and time.monotonic() - since > 3:
            meanwhile()
            meanwhile, since = None, time.monotonic()
    raise AssertionError("the kernel did not come back to its prompt")


def children(manager):
    return [
        child.pid
        for child in psutil.Process(manager.provisioner.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


def shown(messages):
    """The lines of a traceback, without colours."""
    [content] = [content for kind, content in messages if kind == "error"]
    return ANSI.sub("", "\n".join(content["traceback"])).splitlines()


def assert_table(lines, hanging, call):
    """After the call of the cell, a line for every rank, and nothing of the library."""
    first = next(i for i, line in enumerate(lines) if "interrupted after" in line)
    assert lines[first].startswith("KeyboardInterrupt: interrupted after ")
    rows = [line for line in lines[first + 1 :] if line.startswith("  rank ")]
    assert [row.split(":")[0] for row in rows] == [f"  rank {r}" for r in range(4)]
    if hanging == "endless":
        assert "running, cell [" in rows[0]
    else:
        assert "time.sleep(1000)" in rows[0]
    assert any(call in line for line in lines[:first])
    assert len(lines) < 12
    assert not any("d2lpar/launch" in line for line in lines)


@BOTH
def test_a_failing_run_shows_the_callers_lines_only(kernel, backend):
    manager, client = kernel
    setup = SETUP.replace("BACKEND", repr(backend))
    assert execute(client, setup)[0] is None
    fails = "def fails():\n    return 1 / dist.get_rank()\n"
    call = f"d2lpar.run(fails, world_size=2, backend={backend!r})"
    messages = []
    assert execute(client, fails + call, messages=messages)[0] == "RankError"
    lines = shown(messages)
    assert f"----> 3 {call}" in lines
    assert "RankError: rank 0 raised ZeroDivisionError: division by zero" in str(lines)
    assert not any("d2lpar/launch" in line for line in lines)
    assert execute(client, "import sys; error = sys.last_value")[0] is None
    known = "assert error.rank == 0 and error.run.world_size == 2"
    assert execute(client, known)[0] is None


PICTURE = """
import os
os.environ["D2LPAR_PROGRESS"] = SHOW

def slow():
    if dist.get_rank() == 1:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            time.sleep(0.01)
    dist.barrier()

d2lpar.run(slow, world_size=2, backend=BACKEND)
"""


@BOTH
@pytest.mark.parametrize("progress", ["1", "0"])
def test_a_long_run_shows_what_its_ranks_do(kernel, backend, progress):
    manager, client = kernel
    code = SETUP.replace("BACKEND", repr(backend))
    assert execute(client, code)[0] is None
    code = PICTURE.replace("BACKEND", repr(backend)).replace("SHOW", repr(progress))
    messages = []
    assert execute(client, code, messages=messages)[0] is None
    updates = [c for kind, c in messages if kind == "update_display_data"]
    pictures = [update["data"] for update in updates]
    assert all(each["metadata"] == {"d2lpar": "progress"} for each in updates)
    if progress == "0":
        assert not pictures
        return
    *during, after = pictures
    assert after == {"text/plain": ""}
    text = "\n".join(data["text/plain"] for data in during)
    assert "0 of 2 ranks returned" in text
    assert (
        re.search(r"rank 0  in barrier +\d+ steps", text)
        and "rank 1  computing" in text
    )
    assert "<pre>" in during[-1]["text/html"]


@BOTH
def test_an_interrupted_kernel_is_at_its_prompt(kernel, backend):
    manager, client = kernel
    setup = SETUP.replace("BACKEND", repr(backend))
    assert execute(client, setup)[0] is None
    before = children(manager)
    for hanging in ("endless", "one_skips"):
        call = f"d2lpar.run({hanging}, world_size=4, backend={backend!r}, timeout=300)"
        messages = []
        error, seconds = execute(client, call, manager.interrupt_kernel, messages)
        print(f"{backend} {hanging}: back after {seconds:.2f} s")
        assert error == "KeyboardInterrupt"
        assert_table(shown(messages), hanging, call)
        assert children(manager) == before
        again = f"assert d2lpar.run(add_up, world_size=4, backend={backend!r}).results"
        assert execute(client, again + " == [6.0] * 4")[0] is None


def test_a_notebook_of_several_ranks_makes_processes_ready():
    environ = {**os.environ, "D2LPAR_PROGRESS": "0"}
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager, client = start_new_kernel(env=environ, **quiet)
    try:
        run = "assert d2lpar.run(lambda: 7, backend='gloo').results == [7] * 4"
        assert (
            execute(client, "import d2lpar; d2lpar.defaults(world_size=1)")[0] is None
        )
        assert not children(manager)
        assert execute(client, "d2lpar.defaults(world_size=4)")[0] is None
        ready = children(manager)
        assert len(ready) >= 1
        manager.interrupt_kernel()  # reaches all processes of the kernel
        assert execute(client, run)[0] is None
        assert set(children(manager)) == set(ready)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
