"""A plugin of pytest: kernels are forked from a process that has loaded torch.

A kernel of its own interpreter needs two seconds of processor to load torch and
matplotlib, and as long again for the fork server of its ranks; a forked one needs a
tenth.  Nothing else is shared: a kernel is a fresh process with its own modules.
"""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import util

import jupyter_client.provisioning.local_provisioner as provisioner

LOADED = ["tests.loaded_kernel", "ipykernel.ipkernel", "ipykernel.zmqshell"]
LOADED += ["torch.distributed.tensor", "torch._dynamo", "cloudpickle", "ipywidgets"]
LOADED += ["tests.huge_pages"]
LIMIT = 1 << 16  # no descriptor is higher

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(LOADED)


class Kernel:
    """A forked kernel, with what `jupyter_client` asks of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, command, env, cwd=None, **_):
        file = command[command.index("-f") + 1]
        ready, tell = _forks.Pipe(duplex=False)
        self._process = _forks.Process(target=_run, args=(file, env, cwd, tell))
        self._process.start()
        tell.close()
        ready.recv()  # signals for its group are not for ours from now on
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(connection_file, env, cwd, tell):
    """Be the kernel, as `python -m ipykernel_launcher -f connection_file` is."""
    os.setsid()
    tell.send(True)
    os.environ.clear()
    os.environ.update(env)
    os.environ.pop("JPY_PARENT_PID", None)
    if cwd is not None:
        os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _fork_server_of_ranks()
    threading.Thread(target=_follow, daemon=True).start()
    from ipykernel.kernelapp import IPKernelApp

    sys.argv = ["ipykernel_launcher", "-f", connection_file]
    IPKernelApp.launch_instance(sys.argv[1:])


def _follow():
    """End with the process that asked for the kernel."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _fork_server_of_ranks():
    """Fork the server that forks ranks, while this process has one thread."""
    from d2lpar.launch import forks

    def forked(_, arguments, kept):
        pid = os.fork()
        if not pid:
            # Among them the end of the pipe by which it hears that the kernel ended.
            for low, high in itertools.pairwise([2, *sorted(kept), LIMIT]):
                os.closerange(low + 1, high)
            exec(arguments[-1], {})
            os._exit(0)
        return pid

    usual, util.spawnv_passfds = util.spawnv_passfds, forked
    forks.warm()
    util.spawnv_passfds = usual


provisioner.launch_kernel = Kernel
