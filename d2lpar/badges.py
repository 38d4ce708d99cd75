"""A fork's own address, written into the README and the notebooks of a clone.

The first cell of a chapter or exercise gets two badges below its title.  The cell that
installs gets the address from which pip takes this fork.  Nothing else changes.
"""

import re

from . import notebooks, project_links

COLAB = "https://colab.research.google.com"
KAGGLE = "https://kaggle.com"
GITHUB = "https://github.com"
OWNER = r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}"
NAME = r"(?!\.+$)[A-Za-z0-9._-]{1,100}(?<!\.git)"
BADGES = re.compile(r"^\[!\[Open in Colab\].*\n\n?", re.MULTILINE)


def stamp(repo, branch="main", root=None):
    """The clone at `root` names `repo`, OWNER/NAME on GitHub; returns what changed.

    What another call has written is replaced.  ValueError where a name cannot be.
    """
    _check(repo, branch)
    root = root or notebooks.repository()
    library, readme = root / "d2lpar" / "notebooks.py", root / "README.md"
    if not library.is_file() or not readme.is_file():
        raise ValueError(f"{root} is no whole clone: README.md or d2lpar/ is missing.")
    where = f"{GITHUB}/{repo}/blob/{branch}"
    address = f"git+{GITHUB}/{repo}" + ("" if branch == "main" else f"@{branch}")
    text = library.read_text(encoding="utf-8")
    changed = [library] if _write(library, _addressed(text, "ADDRESS", address)) else []
    text = readme.read_text(encoding="utf-8")
    text = _badged(text, f"{where}/chapters/00_start.ipynb")
    changed += [readme] if _write(readme, _addressed(text, "address", address)) else []
    changed += _stamp_project(root, f"{GITHUB}/{repo}", branch)
    for folder in ("chapters", "exercises", "solutions"):
        opened = "chapters" if folder == "chapters" else "exercises"
        for path in sorted((root / folder).glob("*.ipynb")):
            if _stamp_notebook(path, f"{where}/{opened}/{path.name}", address):
                changed.append(path)
    return changed


def _check(repo, branch):
    if not re.fullmatch(f"{OWNER}/{NAME}", repo):
        raise ValueError(f"--repo is OWNER/NAME, such as ada/d2lpar, not {repo!r}.")
    if not re.fullmatch(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]*", branch):
        raise ValueError(
            f"--branch is a name of letters, digits, dots and dashes, not {branch!r}."
        )


def _badged(text, url):
    """`text` with badges that open the notebook at `url`, below its title."""
    title, _, rest = BADGES.sub("", text).partition("\n")
    kaggle = f"{KAGGLE}/kernels/welcome?src={url}"
    line = _badge("Colab", f"{COLAB}/assets/colab-badge.svg", _colab(url)) + " "
    line += _badge("Kaggle", f"{KAGGLE}/static/images/open-in-kaggle.svg", kaggle)
    return f"{title}\n\n{line}\n\n{rest.lstrip()}"


def _badge(name, picture, url):
    return f"[![Open in {name}]({picture})]({url})"


def _colab(url):
    return url.replace(GITHUB, f"{COLAB}/github", 1)


def _addressed(text, variable, address):
    """`text` in which pip installs from this address, the value of a variable."""
    line = re.compile(rf'^( *){variable} = ".*"$', re.MULTILINE)
    return line.sub(rf'\1{variable} = "{address}"', text)


def _stamp_notebook(path, url, address):
    notebook = notebooks.read(path)
    first, *others = notebook["cells"]
    first["source"] = _badged(first["source"], url)
    for cell in others:
        if cell["cell_type"] == "code" and 'find_spec("d2lpar")' in cell["source"]:
            cell["source"] = _addressed(cell["source"], "address", address)
            break
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
    """Write the repository's page on GitHub into pyproject.toml, if there is one."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [path] if _write(path, project_links.linked(text, github, branch)) else []
