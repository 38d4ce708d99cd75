"""Execute a notebook on this machine and say what happened."""

import ast
import os
import platform
import queue
import re
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets import Type
from traitlets.config import Config

from ..shared import notebooks

OVERRIDES = ("D2LPAR_BACKEND", "D2LPAR_RANKS")


@dataclass(frozen=True)
class Failure:
    """The first cell that failed: its number, its first line, the error."""

    cell: int
    line: str
    error: str

    def __str__(self):
        return f"cell {self.cell}: `{self.line}`: {self.error}"


@dataclass(frozen=True)
class Outcome:
    """One notebook, executed: its dictionary as it came out, and how that went.

    `news` are the numbers of its text that were brought up to date.
    """

    path: Path
    seconds: float
    world: str
    failure: Failure | None
    notebook: dict
    news: list = field(default_factory=list)


def execute(path, environ=None, timeout=120.0, on_cell=None, folder=None, reader=None):
    """Run every cell in a fresh kernel of this Python, in the notebook's folder.

    The file is not changed.  `environ` is the kernel's environment, `timeout` the
    seconds a cell may take.  `on_cell()` is called after every code cell.  `folder` is
    where the kernel works, if not beside the notebook.  `reader` makes, of the client,
    what reads the text behind each code cell; authors bring its numbers up to date.
    """
    path = Path(path).resolve()
    environ = dict(os.environ if environ is None else environ)
    environ.setdefault("D2LPAR_PROGRESS", "0")
    environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # else none
    source = notebooks.read(path)
    notebooks.give_ids(source)
    node = nbformat.from_dict(source | {"nbformat": 4, "nbformat_minor": 5})
    start = time.perf_counter()
    client = _client(node, folder or path.parent, timeout)
    reader = reader and reader(client)
    failure = _run_cells(client, environ, on_cell, reader)
    seconds = time.perf_counter() - start
    # nbclient adds to the node, so it is the node that holds the outputs
    executed = notebooks.plain(node)
    news = reader.news if reader else []
    return Outcome(path, seconds, world(source, environ), failure, executed, news)


def torch_version():
    """The installed torch's version without its build: 2.13.0+cpu is "2.13.0"."""
    from importlib.metadata import version

    return version("torch").split("+")[0]


def processor():
    """The model, and the instructions that torch's kernels use: "AMD EPYC, AVX2"."""
    import torch

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.search(r"model name\s*: (.*)", text)[1]
    except (OSError, TypeError):
        model = platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def world(notebook, environ):
    """The world that the first `defaults` names, unless the environment does."""
    named = {"backend": "auto", "world_size": ""} | _defaults(notebook)
    backend = environ.get("D2LPAR_BACKEND") or named["backend"]
    ranks = environ.get("D2LPAR_RANKS") or named["world_size"]
    ending = "" if str(ranks) == "1" else "s"
    return f"{backend}, {ranks} rank{ending}" if ranks else str(backend)


def _defaults(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code" or "defaults(" not in cell["source"]:
            continue
        try:
            tree = ast.parse(cell["source"])
        except SyntaxError:  # a magic
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) == "defaults":
                values = {k.arg: k.value for k in node.keywords}
                return {
                    k: v.value
                    for k, v in values.items()
                    if isinstance(v, ast.Constant) and v.value is not None
                }
    return {}


def _name(function):
    return getattr(function, "attr", getattr(function, "id", None))


class _Channel(AsyncZMQSocketChannel):
    """Looks for itself, from time to time, whether a message is there.

    A widget's answer that goes out on this socket can swallow the news of a message
    that came in; then the reply is seen when the cell's time is over, and not before
    (github.com/jupyter/nbclient/issues/312).
    """

    LOOK = 0.25  # seconds

    async def get_msg(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = self.LOOK if end is None else max(0, end - time.monotonic())
            try:
                return await super().get_msg(min(left, self.LOOK))
            except queue.Empty:
                if left < self.LOOK:
                    raise


class _Client(AsyncKernelClient):
    shell_channel_class = Type(_Channel)


def without_ports():
    """Return where a kernel is spoken to: sockets that are files, but on Windows.

    Of kernels that start at once two may choose one port, and one of them hangs.
    """
    if os.name == "nt":
        return {}
    name = f"kernel-{secrets.token_hex(8)}"
    return {"transport": "ipc", "ip": os.path.join(tempfile.gettempdir(), name)}


def _client(node, folder, timeout):
    # no kernel folders: a "python3" that a user installed would be another Python
    folders = {"KernelSpecManager": {"kernel_dirs": []}}
    manager = {"client_factory": _Client, **without_ports()}
    config = Config(folders | {"AsyncKernelManager": manager})
    return NotebookClient(
        node,
        config=config,
        kernel_name="python3",
        timeout=timeout,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )


def _run_cells(client, environ, on_cell, reader=None):
    code = [i for i, c in enumerate(client.nb.cells) if c.cell_type == "code"]
    number, cell = 0, None
    try:
        with client.setup_kernel(env=environ):
            for number, index in enumerate(code, start=1):
                cell = client.nb.cells[index]
                cell.outputs = []
                client.execute_cell(cell, index, store_history=True)
                tags = cell.metadata.get("tags", [])
                if "raises-exception" in tags and not _raised(cell):
                    return Failure(number, _first(cell), "should raise, but did not")
                if reader is not None:
                    reader.read(number)
                if on_cell is not None:
                    on_cell()
    except CellExecutionError as error:
        return Failure(number, _first(cell), _sentence(error))
    except CellTimeoutError:
        error = f"took longer than {client.timeout:g} s"
        return Failure(number, _first(cell), error)
    except DeadKernelError:
        return Failure(number, _first(cell), "the kernel died")
    if reader is not None and reader.complaints:
        first = reader.complaints[0][0]
        told = "\n    ".join(text for _, text in reader.complaints)
        line = _first(client.nb.cells[code[first - 1]])
        return Failure(first, line, f"the text below says otherwise:\n    {told}")
    return None


def _sentence(error):
    lines = str(error.evalue).strip().splitlines()
    return f"{error.ename}: {lines[0]}" if lines else error.ename


def _raised(cell):
    return any(output["output_type"] == "error" for output in cell.outputs)


def _first(cell):
    return next((s for s in cell.source.splitlines() if s.strip()), "").strip()
