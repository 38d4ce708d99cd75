"""Starts the processes that are ranks.

A fork server with torch loaded, one per kernel, forks them: a process that runs threads
must not fork itself, and a fresh interpreter needs seconds to load torch.  It holds
this package as it was when the server started; whoever edits the package restarts the
kernel, as for the package's modules in the kernel itself.  Where there is no fork
server (Windows), each is a fresh interpreter.  The user's own multiprocessing is not
touched.
"""

import contextlib
import gc
import io
import multiprocessing
import os
import signal
import sys
from multiprocessing import connection, context, process, reduction, util

from ..sim.environment import working_directory
from ..sim.patching import patched

if "forkserver" in multiprocessing.get_all_start_methods():
    from multiprocessing import forkserver, popen_forkserver, resource_tracker
else:  # Windows
    forkserver = None

# What most ranks need; to load it takes longer than to fork.
PRELOADED = ["torch.distributed", "torch._dynamo", "numpy", "cloudpickle"]
PRELOADED += ["d2lpar.launch.forks", "d2lpar.launch.worker"]
PRELOADED += ["d2lpar.launch.run", "d2lpar.allreduce"]
FORGET_ANOTHER = f"""
import sys
found = sys.modules.get("d2lpar")
if found and found.__path__ != {sys.modules["d2lpar"].__path__!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "d2lpar"]:
        del sys.modules[name]
"""  # where the server has found another copy of this package than the kernel
GUARDS = []  # each gives (what to call, its arguments), before a rank does anything
TICK = 0.05  # seconds between two looks for an interrupt


def warm():
    """The fork server is starting; a run soon after need not wait for it."""
    if forkserver is not None:
        _servers.get()


class _Servers:
    """The fork server of this process, started when first needed."""

    def __init__(self):
        self.server = None

    def get(self):
        """The server; it may still be loading torch."""
        if self.server is None:
            self.server = forkserver.ForkServer()
            self.server.set_forkserver_preload(PRELOADED)
        with _undecided(), _uninterrupted():
            self.server.ensure_running()
        return self.server

    def forget(self):
        """In a forked child: the server is the parent's."""
        self.server = None

    def kill(self):
        """The server ends now, whatever it does; the next run starts another."""
        server, self.server = self.server, None
        if server is not None and server._forkserver_pid is not None:
            with contextlib.suppress(OSError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()


_servers = _Servers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_servers.forget)


@contextlib.contextmanager
def _undecided():
    """multiprocessing's start method is as undecided afterwards as before."""
    default = context._default_context
    actual = default._actual_context
    try:
        yield
    finally:
        default._actual_context = actual


@contextlib.contextmanager
def _uninterrupted():
    """The server started inside never hears of Ctrl-C, which is for us."""
    resource_tracker.ensure_running()  # not inside: it would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Do:
    """Unpickled, it has called `function(*arguments)`."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


def _preparation():
    """What a child is told before anything else; `__main__` is not among it."""
    data = {
        "package": _Do(exec, FORGET_ANOTHER, {}),
        "memory": _Do(gc.freeze),  # or collecting copies every page of torch's objects
        "name": "rank",
        "authkey": process.current_process().authkey,
        "sys_path": [path or working_directory() for path in sys.path],
        "sys_argv": sys.argv,
        "guards": [_Do(call, *arguments) for call, arguments in (g() for g in GUARDS)],
    }
    with contextlib.suppress(OSError):
        data["dir"] = os.getcwd()
    method = multiprocessing.get_start_method(allow_none=True)
    if method is not None:
        data["start_method"] = method
    return data


class RankProcess(process.BaseProcess):
    """A process that calls `worker.main(start, link, files)`; names to descriptors."""

    _start_method = None

    def __init__(self, start, link, files, check_interrupt):
        super().__init__(name=f"rank {start.rank}")
        self.start_data, self.link, self.files = start, link, files
        self.check_interrupt = check_interrupt

    def __getstate__(self):
        state = {**self.__dict__, "check_interrupt": None}
        state["files"] = {
            name: reduction.DupFd(file) if isinstance(file, int) else file
            for name, file in self.files.items()
        }
        return state

    def run(self):
        from . import worker

        files = {
            name: file.detach() if hasattr(file, "detach") else file
            for name, file in self.files.items()
        }
        worker.main(self.start_data, self.link, files)

    @staticmethod
    def _Popen(rank):
        return _spawned(rank) if forkserver is None else _Forked(rank)


def _spawned(rank):
    """A Popen of the `spawn` method whose child does not run `__main__`."""
    from multiprocessing import spawn

    told = lambda name: _preparation()
    with patched((spawn, "get_preparation_data", lambda _: told)):
        return multiprocessing.get_context("spawn").Process._Popen(rank)


if forkserver is not None:

    class _Forked(popen_forkserver.Popen):
        """As multiprocessing's, with our fork server and our preparation."""

        def _launch(self, rank):
            data = io.BytesIO()
            context.set_spawning_popen(self)
            try:
                reduction.dump(_preparation(), data)
                reduction.dump(rank, data)
            finally:
                context.set_spawning_popen(None)
            server = _servers.get()
            self.sentinel, writer = server.connect_to_new_process(self._fds)
            fds = (os.dup(writer), self.sentinel)  # the first: we are still here
            self.finalizer = util.Finalize(self, util.close_fds, fds)
            with open(writer, "wb", closefd=True) as file:
                file.write(data.getbuffer())
            try:
                while not connection.wait([self.sentinel], TICK):
                    rank.check_interrupt()
            except BaseException:
                _servers.kill()
                self.finalizer()
                raise
            self.pid = forkserver.read_signed(self.sentinel)
