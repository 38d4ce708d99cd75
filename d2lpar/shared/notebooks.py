"""Notebooks as files: find them, read them, give them one normal form, write them.

A notebook here is the plain dictionary of its JSON.  In normal form two executions of
the same notebook differ only where the computation did, so a diff shows what changed.
"""

import base64
import hashlib
import io
import json
import os
import re
import tempfile
from importlib.resources import files
from pathlib import Path

# The first code cell of every notebook; `d2lpar badges` writes an address into it.
INSTALL_CELL = Path(__file__).with_name("first_cell.py").read_text(encoding="utf-8")

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
KEPT_CELL_METADATA = ("alt", "cellView", "d2lpar", "deletable", "editable")
KEPT_CELL_METADATA += ("jupyter", "nbgrader", "tags")
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_TEXT = "A widget: run this cell to move its controls."
# What a working copy has of its own: see working_copy.py.
MANIFEST = ".d2lpar.json"
NEWER = re.compile(r"\.new\d*$")  # ends the name of a version beside a changed one
EVENTS = "application/vnd.d2lpar.timeline+json"  # what a player plays
# A chapter has a Core, and may have a Further part of the same name.
CORE, FURTHER = "chapters", "chapters/further"
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def repository():
    """Return the folder of a clone: this one, or the one from which d2lpar is imported.

    FileNotFoundError where there is neither.  A learner's working copy is no clone.
    """
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "chapters").is_dir() and not (folder / MANIFEST).exists():
            return folder
    raise FileNotFoundError(
        "No chapters/ folder here: run this from a clone of the repository."
    )


def installed():
    """Return the folder in which an installed d2lpar keeps the course, or None."""
    folder = files("d2lpar") / "course"
    return folder if (folder / "chapters").is_dir() else None


def originals():
    """Return the folder of the course as it was published: a clone or `installed()`."""
    try:
        return repository()
    except FileNotFoundError:
        if installed() is None:
            raise
        return installed()


def course():
    """Return the folder whose chapters are read: this one, or else `originals()`."""
    here = Path.cwd()
    return here if (here / "chapters").is_dir() else originals()


def find(names=(), folders=(CORE,), where=course):
    """Paths of the notebooks that `names` select ("04", "messages", a path), or all.

    `where()` is the folder of the course.  It is not asked where all names are paths.
    """
    root = None if names and all(Path(n).is_file() for n in names) else where()
    known = [p for f in folders if root for p in sorted((root / f).glob("*.ipynb"))]
    known = [path for path in known if not NEWER.search(path.stem)]
    if not names:
        return known
    return [path for name in names for path in _matches(name, known)]


def _matches(name, known):
    if Path(name).is_file():
        return [Path(name)]
    found = [p for p in known if name in (p.stem, *p.stem.split("_", 1))]
    if not found:
        have = ", ".join(p.stem for p in known) or "none"
        raise FileNotFoundError(f"No chapter {name!r}. There are: {have}.")
    return found


def label(path):
    """How a notebook is called in a list: "04_messages", "further/04_messages"."""
    return f"further/{path.stem}" if path.parent.name == "further" else path.stem


def further(path):
    """The notebook with the Further part of this chapter, or None."""
    beside = path.parent / "further" / path.name
    return read(beside) if beside.is_file() else None


def read(path):
    """The notebook's dictionary, every text joined into one string.

    ValueError where the file is no notebook.
    """
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(
            f"{path} is no notebook: save it in JupyterLab again."
        ) from None
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell["source"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            data = output.get("data", {})
            for kind, value in data.items():
                if not kind.endswith("json"):
                    data[kind] = _joined(value)
    return notebook


def write(path, notebook):
    """The file holds `notebook`, at once or not at all."""
    text = json.dumps(_split(notebook), indent=1, ensure_ascii=False, sort_keys=True)
    path = Path(path)
    mode = path.stat().st_mode if path.exists() else 0o644
    write_bytes(path, f"{text}\n".encode(), mode & 0o777)


def write_bytes(path, data, mode=0o644):
    """The file holds `data`, at once or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def normalise(notebook, before=None):
    """`notebook` is in normal form, in place; unchanged pictures are those of `before`.

    Counts run 1..N.  Ids that exist stay.  Widget state, timings, colours and the
    library's frames in tracebacks are gone.  Streams that touch are one.
    """
    kept = notebook.get("metadata", {}).get("d2lpar")
    notebook["metadata"] = {"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)}
    if kept:
        notebook["metadata"]["d2lpar"] = kept
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    give_ids(notebook)
    count = 0
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].rstrip()
        old = cell.get("metadata", {})
        cell["metadata"] = {k: old[k] for k in KEPT_CELL_METADATA if k in old}
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _outputs(cell, count)
    if before is not None:
        _keep_pictures(notebook, before)
    return notebook


def give_ids(notebook):
    """Every cell has its own id; a new one follows from the cell's text alone."""
    seen = set()
    for cell in notebook["cells"]:
        text = cell["cell_type"] + cell["source"]
        name, n = cell.get("id"), 0
        while not name or name in seen:
            name = hashlib.sha256(f"{text}{n or ''}".encode()).hexdigest()[:8]
            n += 1
        cell["id"] = name
        seen.add(name)


def _outputs(cell, count):
    done = []
    for output in cell["outputs"]:
        kind = output["output_type"]
        if output.get("metadata", {}).get("d2lpar") == "progress":
            continue
        if kind == "stream":
            last = done[-1] if done else {}
            if last.get("name") == output["name"]:
                last["text"] += output["text"]
                continue
            output = {k: output[k] for k in ("name", "output_type", "text")}
        elif kind == "error":
            output["evalue"] = ANSI.sub("", output["evalue"])
            output["traceback"] = short_traceback(output["traceback"])
        else:
            _tidy_data(output, cell["metadata"].get("alt"))
            if kind == "execute_result":
                output["execution_count"] = count
        done.append(output)
    for output in done:
        if output["output_type"] == "stream":
            output["text"] = re.sub(r"[^\n]*\r(?!\n)", "", output["text"])
    return [o for o in done if o.get("text") != ""]


def _tidy_data(output, alt):
    data = output["data"]
    if EVENTS in data:  # the site makes the page of a player from its events
        data.pop("text/html", None)
    if data.pop(WIDGET, None) is not None:
        data["text/plain"] = WIDGET_TEXT
    if "text/plain" in data:
        data["text/plain"] = ANSI.sub("", data["text/plain"])
    if "image/png" in data:
        data["image/png"] = data["image/png"].strip()
        if alt:
            output["metadata"].setdefault("image/png", {}).setdefault("alt", alt)


def short_traceback(entries):
    """The traceback's entries without colours and without the frames of files."""
    plain = [ANSI.sub("", entry) for entry in entries]
    # IPython calls the frames of a cell "Cell In[3], line 2"
    return [text for text in plain if not text.startswith(("File ", "/", "~"))]


def _keep_pictures(notebook, before):
    old = {c.get("id"): c.get("outputs", []) for c in before["cells"]}
    for cell in notebook["cells"]:
        pairs = zip(cell.get("outputs", []), old.get(cell["id"], []), strict=False)
        for now, then in pairs:
            png = now.get("data", {}).get("image/png")
            earlier = then.get("data", {}).get("image/png")
            if png and earlier and same_picture(png, earlier):
                now["data"]["image/png"] = earlier.strip()


def same_picture(one, other):
    """Whether two base64 PNGs have equal pixels."""
    if one.strip() == other.strip():
        return True
    from PIL import Image

    pixels = [Image.open(io.BytesIO(base64.b64decode(p))) for p in (one, other)]
    a, b = (p.convert("RGBA") for p in pixels)
    return a.size == b.size and a.tobytes() == b.tobytes()


def _joined(text):
    return "".join(text) if isinstance(text, list) else text


def _split(notebook):
    """A copy with texts as lists of lines, as Jupyter saves them."""
    copy = json.loads(json.dumps(notebook))
    for cell in copy["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            data = output.get("data", {})
            for kind, value in data.items():
                if kind.startswith("text/") or kind == "image/svg+xml":
                    data[kind] = value.splitlines(keepends=True)
    return copy


def plain(node):
    """A notebook of nbformat's as plain dictionaries and lists."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    return node
