"""The first cell of every notebook: where it takes d2lpar from, and what it says.

No test has a Colab, so they play it: a server answers as public programs expect of
Colab's, and an object takes the place of `google.colab`.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import types
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from authoring import badges
from conftest import ROOT, completed
from d2lpar.shared import notebooks

CELL = notebooks.INSTALL_CELL
GIT = "git+https://github.com"
CHECK = 'import d2lpar; r = d2lpar.check("00.1", lambda x: None); print(r.passed)'


def stamped(address):
    return badges.ADDRESS.sub(f'address = "{address}"', CELL, count=1)


# Which address the cell takes.  pip is not started.


@pytest.fixture
def asked(monkeypatch):
    """A list of what pip was asked for, where d2lpar cannot be imported."""
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda call, **k: calls.append((call, k)))
    monkeypatch.setitem(sys.modules, "d2lpar.launch.run", None)
    monkeypatch.delenv("COLAB_JUPYTER_IP", raising=False)
    return calls


def colab(monkeypatch, server, path, origin=None):
    """Play Colab: its server has opened `path`, a copy of the notebook at `origin`."""
    server.pages["/api/sessions"] = json.dumps([{"path": path}]).encode()
    monkeypatch.setenv("COLAB_JUPYTER_IP", "127.0.0.1")
    monkeypatch.setenv("KMP_TARGET_PORT", str(server.server_port))
    copied = [{"file_id": origin, "timestamp": 1}] if origin else []
    notebook = {"ipynb": {"metadata": {"colab": {"provenance": copied}}}}
    message = types.SimpleNamespace(blocking_request=lambda name, timeout_sec: notebook)
    package = types.SimpleNamespace(_message=message)
    monkeypatch.setitem(sys.modules, "google.colab", package)


def github(name, branch="main", notebook="exercises/05_scatter"):
    return f"https://github.com/{name}/blob/{branch}/{notebook}.ipynb"


def test_it_does_nothing_where_d2lpar_is(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("installs"))
    exec(stamped("git+https://example.com/x"), {})
    assert capsys.readouterr().out == ""


def test_without_an_address_it_says_what_to_do(asked):
    with pytest.raises(SystemExit, match="Write the address of the repository") as end:
        exec(CELL, {})
    assert "nothing tells this cell where to get it" in str(end.value)
    assert asked == []


def test_it_asks_pip_once_and_for_nothing_heavy(asked, capsys):
    exec(stamped("git+https://example.com/x"), {})
    [(call, limits)] = asked
    assert call[1:6] == ["-m", "pip", "install", "--quiet", "--no-deps"]
    assert call[6:] == ["cloudpickle", "rich", "typer", "git+https://example.com/x"]
    assert limits["timeout"] == 600 and limits["start_new_session"]
    assert (
        capsys.readouterr().out == "Installed d2lpar from git+https://example.com/x.\n"
    )


FURTHER = "chapters/further/04_messages"
COLAB = {  # name: path that Colab has opened, origin of a copy, stamp, address
    "from GitHub": (github("ada/a.b"), None, "", f"{GIT}/ada/a.b@main"),
    "a branch": (github("ada/c", "v2/x"), None, "", f"{GIT}/ada/c@v2/x"),
    "Further": (github("ada/c", "v2/x", FURTHER), None, "", f"{GIT}/ada/c@v2/x"),
    "a fork": (github("eve/c"), None, f"{GIT}/ada/c", f"{GIT}/eve/c@main"),
    "a version": (github("eve/c"), None, f"{GIT}/ada/c@v2", f"{GIT}/ada/c@v2"),
    "a hash": (github("eve/c"), None, "https://x/d.whl#sha256=1", "https://x/d.whl#sha256=1"),
    "a release": (github("eve/c"), None, "d2lpar==0.1.0", "d2lpar==0.1.0"),
    "a copy": ("1ZAq", github("ada/c"), "", f"{GIT}/ada/c@main"),
    "a file": ("1ZAq", None, f"{GIT}/ada/c", f"{GIT}/ada/c"),
    "another notebook": (github("eve/c", notebook="x"), None, "git+ssh", "git+ssh"),
}  # fmt: skip


@pytest.mark.parametrize("case", COLAB)
def test_colab_tells_the_address_unless_a_version_is_stamped(
    asked, server, monkeypatch, case
):
    path, origin, stamp, expected = COLAB[case]
    colab(monkeypatch, server, "fileId=" + quote(path, safe=""), origin)
    exec(stamped(stamp), {})
    assert asked[0][0][-1] == expected


def test_a_colab_that_does_not_answer_is_as_none(asked, closed, monkeypatch):
    monkeypatch.setenv("COLAB_JUPYTER_IP", "127.0.0.1")
    monkeypatch.setenv("KMP_TARGET_PORT", str(closed))
    exec(stamped("git+https://example.com/x"), {})
    assert asked[0][0][-1] == "git+https://example.com/x"


def test_a_pip_that_never_ends_is_stopped(asked, monkeypatch):
    def run(call, timeout, **options):
        raise subprocess.TimeoutExpired("pip", timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit, match="'pip' timed out after 600 seconds.*again"):
        exec(stamped("git+https://example.com/x"), {})


# The real pip, in an environment that has every package of this one but d2lpar


@pytest.fixture
def server():
    """A package index: its `pages`, the paths `seen`, one that is `cut` off."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self.path)
            page = self.server.pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            half = len(page or b"") // 2 if self.path == self.server.cut else None
            self.wfile.write((page or b"")[:half])

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.pages, made.seen, made.cut = {}, [], None
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def closed():
    """A port on which nobody listens, and nobody can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Machine:
    """An environment without d2lpar; `site` is where pip installs."""

    def __init__(self, folder, index, without=()):
        self.folder = folder
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder / "v"], check=True
        )
        self.python = folder / "v" / "bin" / "python"
        [self.site] = folder.glob("v/lib/python*/site-packages")
        lent = folder / "lent"
        lent.mkdir()
        for here in map(Path, sys.path):
            if here.name in ("site-packages", "dist-packages"):
                for each in here.iterdir():
                    out = each.name.startswith(("d2lpar", "__editable__", *without))
                    if not out and not (lent / each.name).exists():
                        (lent / each.name).symlink_to(each)
        (self.site / "lent.pth").write_text(f"{lent}\n")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        # pip reads this 0 as "no isolation": what builds d2lpar is in the environment
        build = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_CACHE_DIR": "1"}
        where = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        where["PIP_INDEX_URL"] = f"http://127.0.0.1:{index}/simple"
        self.env = kept | build | where | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.env.pop("PYTHONPATH", None)
        self.env["GIT_CONFIG_COUNT"] = "0"

    def run(self, source, **env):
        """What the program has printed, and its last words: a sentence or nothing."""
        words = [self.python, "-c", source]
        return completed(words, cwd=self.folder, env=self.env | env)

    def installed(self):
        return {path.name.split("-")[0] for path in self.site.iterdir()} - {
            "lent.pth", "__pycache__", "pip",
        }  # fmt: skip


def wheel(folder, name="d2lpar"):
    """A wheel of that name with two modules."""
    info = f"{name}-0.1.0.dist-info"
    path = folder / f"{name}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}/__init__.py", "")
        made.writestr(f"{name}/launch/run.py", "")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\n"
                      "Version: 0.1.0\nRequires-Dist: torch>=99\n")  # fmt: skip
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.night
def test_from_a_repository_that_colab_names(tmp_path, server):
    machine = Machine(tmp_path, server.server_port)
    subprocess.run(["git", "clone", "-q", "--bare", ROOT, tmp_path / "b"], check=True)
    here = ["git", "-C", tmp_path / "b"]
    subprocess.run([*here, "update-ref", "refs/heads/main", "HEAD"], check=True)
    path = quote(github("ada/course"), safe="")
    server.pages["/api/sessions"] = json.dumps([{"path": f"fileId={path}"}]).encode()
    git = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/b.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/ada/course",
        "COLAB_JUPYTER_IP": "127.0.0.1",
        "KMP_TARGET_PORT": str(server.server_port),
    }
    done = machine.run(CELL, **git)
    assert done.stdout == f"Installed d2lpar from {GIT}/ada/course@main.\n", done.stderr
    assert machine.installed() == {"d2lpar"}
    assert server.seen == ["/api/sessions"]  # the index was asked for nothing
    assert machine.run(CHECK).stdout == "False\n"
    assert machine.run(CELL).stdout == ""


@pytest.mark.night
def test_a_wheel_with_its_hash_and_with_another(tmp_path, server):
    machine = Machine(tmp_path, server.server_port)
    path = wheel(tmp_path)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    address, _ = badges.place(str(path), digest=right[::-1])
    done = machine.run(stamped(address))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert machine.installed() == set()
    address, _ = badges.place(str(path), digest=right)
    assert machine.run(stamped(address)).stdout == f"Installed d2lpar from {address}.\n"
    assert machine.installed() == {"d2lpar"} and server.seen == []


@pytest.mark.night
def test_a_copy_that_was_cut_off_is_repaired(tmp_path, closed):
    machine = Machine(tmp_path, closed)
    address = wheel(tmp_path).as_uri()
    (machine.site / "d2lpar").mkdir()
    (machine.site / "d2lpar" / "__init__.py").touch()
    assert machine.run(stamped(address)).stdout == f"Installed d2lpar from {address}.\n"
    assert machine.run("import d2lpar.launch.run").returncode == 0


@pytest.mark.night
def test_without_a_network(tmp_path, closed):
    machine = Machine(tmp_path, closed)
    done = machine.run(stamped(f"git+http://127.0.0.1:{closed}/course"))
    assert done.returncode == 1 and done.stdout == ""
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(
        f"pip could not install d2lpar from git+http://127.0.0.1:{closed}"
    )
    assert "unable to access" in sentence and "run this cell again" in sentence
    assert machine.installed() == set()


@pytest.mark.night
def test_a_network_that_fails_half_way_and_comes_back(tmp_path, server):
    machine = Machine(tmp_path, server.server_port, without=["cloudpickle"])
    for name in ("cloudpickle", "d2lpar"):
        path = wheel(tmp_path, name)
        server.pages[f"/{path.name}"] = path.read_bytes()
        link = f'<a href="/{path.name}">{path.name}</a>'.encode()
        server.pages[f"/simple/{name}/"] = link
    address = f"http://127.0.0.1:{server.server_port}/d2lpar-0.1.0-py3-none-any.whl"
    server.cut = "/cloudpickle-0.1.0-py3-none-any.whl"
    done = machine.run(stamped(address))
    assert server.seen[0] == "/d2lpar-0.1.0-py3-none-any.whl"
    assert server.seen[-1] == server.cut
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert f"pip could not install d2lpar from {address}" in done.stderr
    assert machine.installed() == set()
    server.cut = None
    assert machine.run(stamped(address)).stdout == f"Installed d2lpar from {address}.\n"
    assert machine.installed() == {"cloudpickle", "d2lpar"}
    assert "/simple/d2lpar/" not in server.seen


# `make colab` finds a Python 3.13


def python_for_colab(folder, **env):
    """What find_python.sh prints, if there is nothing else on the path."""
    words = ["/bin/sh", ROOT / "tests" / "colab" / "find_python.sh"]
    return completed(words, env={"PATH": str(folder), "HOME": "/x"} | env)


def program(path, status):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_a_python_for_colab_is_found_where_it_is(tmp_path):
    done = python_for_colab(tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "needs Python 3.13, and neither the path nor pyenv nor uv" in done.stderr
    program(tmp_path / "python3.13", 127)  # as pyenv's, where no 3.13 is chosen
    pyenv = program(tmp_path / "pyenv/versions/3.13.7/bin/python3.13", 0)
    done = python_for_colab(tmp_path, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert done.stdout == f"{pyenv}\n"
    program(tmp_path / "python3.13", 0)
    assert python_for_colab(tmp_path).stdout == "python3.13\n"
    other = program(tmp_path / "python3.11", 1)
    done = python_for_colab(tmp_path, COLAB_PYTHON=str(other))
    assert done.returncode == 1 and "is not a Python 3.13" in done.stderr
