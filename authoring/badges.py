"""The address of a course, written into the notebooks and the README of a clone.

The first code cell of every notebook gets the address from which pip installs d2lpar.
If the course is on GitHub, the README and each notebook also get two badges below their
title, which open them on Colab and on Kaggle, and pyproject.toml gets its links.
Nothing else changes.
"""

import re
from pathlib import Path

from d2lpar.shared import notebooks

from . import project_links

COLAB = "https://colab.research.google.com"
KAGGLE = "https://kaggle.com"
GITHUB = "https://github.com"
OWNER = r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}"
NAME = r"(?!\.+$)[A-Za-z0-9._-]{1,100}"
HOST, PATH = r"[A-Za-z0-9.-]+(:\d+)?", r"/[A-Za-z0-9._~/%+-]+"
URL = re.compile(
    rf"https://{HOST}{PATH}|ssh://([a-z0-9_-]+@)?{HOST}{PATH}|file://{PATH}"
)
BADGES = re.compile(r"^\[!\[Open in Colab\].*\n\n?", re.MULTILINE)
ADDRESS = re.compile(r'^address = ".*?"', re.MULTILINE)
TITLE = notebooks.INSTALL_CELL.partition("\n")[0]
# Colab and JupyterLab fold the cell; Colab shows its title and a field for the address.
HIDDEN = {"cellView": "form", "jupyter": {"source_hidden": True}}
REPO = (
    "--repo is OWNER/NAME on GitHub, the address of a Git repository or of a wheel "
    "(https://, ssh://, or a path that starts with /), or pypi:VERSION"
)


def stamp(repo, branch="main", digest=None, root=None):
    """Write the address of `repo` into the clone at `root`; return the changed files.

    What an earlier call has written is replaced, and removed if `repo` is None.  Raise
    ValueError if `repo`, `branch` and `digest` make no address; see `place`.
    """
    address, github = place(repo, branch, digest) if repo else ("", None)
    root = root or notebooks.repository()
    cell, readme = root / "d2lpar/shared/first_cell.py", root / "README.md"
    if not cell.is_file() or not readme.is_file():
        raise ValueError(f"{root} is no whole clone: README.md or d2lpar/ is missing.")
    where = github and f"{github}/blob/{branch}"
    source = cell.read_text(encoding="utf-8")
    source = ADDRESS.sub(f'address = "{address}"', source, count=1)
    changed = [cell] if _write(cell, source) else []
    text = readme.read_text(encoding="utf-8")
    text = _badged(text, where and f"{where}/chapters/00_start.ipynb")
    changed += [readme] if _write(readme, text) else []
    changed += _stamp_project(root, github, branch)
    for folder in (notebooks.CORE, notebooks.FURTHER, "exercises", "solutions"):
        opened = "exercises" if folder == "solutions" else folder
        for path in sorted((root / folder).glob("*.ipynb")):
            url = where and f"{where}/{opened}/{path.name}"
            if _stamp_notebook(path, url, source.rstrip()):
                changed.append(path)
    return changed


def place(repo, branch="main", digest=None):
    """What pip installs for `repo`, and the page of the repository on GitHub or None.

    `digest` is the commit of a repository or the SHA-256 of a wheel.  Raise ValueError
    with a sentence that says what was expected.
    """
    if not re.fullmatch(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]*", branch):
        raise ValueError(
            f"--branch is a name of letters, digits, dots and dashes, not {branch!r}."
        )
    if release := re.fullmatch(r"pypi:(\d[0-9A-Za-z.]*)", repo):
        if digest:
            raise ValueError(
                "--hash cannot be given with pypi:VERSION: name the wheel."
            )
        return f"d2lpar=={release[1]}", None
    path, _, given = repo.partition("#sha256=")
    url = _url(path)
    wheel = url.endswith(".whl")
    if not URL.fullmatch(url) or (given and not wheel):
        raise ValueError(f"{REPO}, not {repo!r}.")
    if wheel:
        digest = digest or given
        _check_digest(digest, 64, "the SHA-256 of the wheel, 64 hexadecimal digits")
        return url + (f"#sha256={digest}" if digest else ""), None
    _check_digest(digest, 40, "a whole commit, 40 hexadecimal digits")
    version = digest or (branch if branch != "main" else "")
    github = re.fullmatch(f"{GITHUB}/{OWNER}/{NAME}", url)
    return f"git+{url}" + (f"@{version}" if version else ""), github and url


def _url(repo):
    """`repo` as a URL, if it is none: OWNER/NAME, a path, or git@host:path."""
    repo = repo.removeprefix("git+")
    if re.fullmatch(f"{OWNER}/{NAME}", repo):
        repo = f"{GITHUB}/{repo}"
    elif Path(repo).is_absolute():
        repo = Path(repo).as_uri()
    elif found := re.fullmatch(r"(\w+@[A-Za-z0-9.-]+):([^/].*)", repo):
        repo = f"ssh://{found[1]}/{found[2]}"
    if repo.startswith(f"{GITHUB}/"):
        repo = repo.removesuffix("/").removesuffix(".git")
    return repo


def _check_digest(digest, digits, expected):
    if digest and not re.fullmatch(f"[0-9a-f]{{{digits}}}", digest):
        raise ValueError(f"--hash is {expected}, not {digest!r}.")


def _badged(text, url):
    """`text` with badges below its title, which open the notebook at `url` if any."""
    text = BADGES.sub("", text)
    if not url:
        return text
    title, _, rest = text.partition("\n")
    kaggle = f"{KAGGLE}/kernels/welcome?src={url}"
    colab = url.replace(GITHUB, f"{COLAB}/github", 1)
    line = _badge("Colab", f"{COLAB}/assets/colab-badge.svg", colab) + " "
    line += _badge("Kaggle", f"{KAGGLE}/static/images/open-in-kaggle.svg", kaggle)
    return f"{title}\n\n{line}\n\n{rest.lstrip()}"


def _badge(name, picture, url):
    return f"[![Open in {name}]({picture})]({url})"


def _stamp_notebook(path, url, source):
    """Write badges and the first code cell; return whether something changed."""
    notebook = notebooks.read(path)
    notebook["cells"][0]["source"] = _badged(notebook["cells"][0]["source"], url)
    for cell in notebook["cells"]:
        if cell["source"].startswith(TITLE):
            cell["source"] = source
            cell["metadata"] |= HIDDEN
    if notebook == notebooks.read(path):
        return False
    notebooks.write(path, notebook)
    return True


def _write(path, text):
    if text == path.read_text(encoding="utf-8"):
        return False
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


def _stamp_project(root, github, branch):
    """Write the repository's page on GitHub, if any, into pyproject.toml, if any."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [path] if _write(path, project_links.linked(text, github, branch)) else []
