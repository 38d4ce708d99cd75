"""A run inside a Jupyter kernel: interrupted, it leaves nothing behind."""

import os
import queue
import subprocess
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from conftest import WATCHDOG

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


def execute(client, code, meanwhile=None):
    """(name of the error or None, seconds since `meanwhile` was called)."""
    request, error, since = client.execute(code), None, time.monotonic()
    deadline = time.monotonic() + WATCHDOG
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            message = None
        if message and message["parent_header"].get("msg_id") == request:
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


@BOTH
def test_an_interrupted_kernel_is_at_its_prompt(kernel, backend):
    manager, client = kernel
    setup = SETUP.replace("BACKEND", repr(backend))
    assert execute(client, setup)[0] is None
    before = children(manager)
    for hanging in ("endless", "one_skips"):
        call = f"d2lpar.run({hanging}, world_size=4, backend={backend!r}, timeout=300)"
        error, seconds = execute(client, call, manager.interrupt_kernel)
        print(f"{backend} {hanging}: back after {seconds:.2f} s")
        assert error == "KeyboardInterrupt"
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
