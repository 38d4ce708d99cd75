"""A learner's copy of the course: laid out once, kept up to date, never overwritten.

A notebook changes when it runs, so learners work on copies, and the originals, in a
clone or in the installed package, stay as they are.  A manifest in the copy says what
each file was when it was laid out, so that a later version can tell who changed it.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path

from ..shared.notebooks import MANIFEST, NEWER, installed, originals, write_bytes

KINDS = ("chapters/*.ipynb", "chapters/further/*.ipynb", "exercises/*.ipynb")
KINDS += ("solutions/*.ipynb", "pictures/*.png")


@dataclass
class Laid:
    """What `lay_out` did: names of files, as they are below `folder`.

    `beside` has pairs: a file that the learner changed, and the name under which its
    newer version is beside it.
    """

    folder: Path
    new: list = field(default_factory=list)
    updated: list = field(default_factory=list)
    beside: list = field(default_factory=list)

    def __str__(self):
        here, folder = Path.cwd(), self.folder
        folder = folder.relative_to(here) if here in folder.parents else folder
        lines = [f"The course is in {folder}. These copies are yours to change."]
        if self.updated:
            files = "1 file" if len(self.updated) == 1 else f"{len(self.updated)} files"
            lines.append(f"There was a newer version of {files}, now updated.")
        for mine, newer in self.beside:
            lines.append(
                f"You changed {mine}, so it stays as it is. "
                f"The newer version is beside it: {newer}."
            )
        return "\n".join(lines)


def default():
    """Return the folder for a working copy where the learner names none.

    It is the working copy that this folder is in, `work` in a clone, and
    `d2lpar-course` in this folder where the course comes from the installed package.
    """
    if folder := around():
        return folder
    source = originals()
    alone = source == installed()
    return Path.cwd() / "d2lpar-course" if alone else source / "work"


def around():
    """Return the working copy that this folder is in, or None."""
    here = Path.cwd()
    copies = (f for f in (here, *here.parents) if (f / MANIFEST).is_file())
    return next(copies, None)


def lay_out(folder, source=None):
    """Copy the course of `source` into `folder`; what the learner changed stays there.

    `source` is `originals()` where it is not given.  A file that the learner deleted
    comes back.  A file that is as it was laid out, or was only run, gets the newer
    version.  A changed one is kept, with the newer version beside it, once.  Returns
    `Laid`.  ValueError where `folder` is `source`.
    """
    folder, source = Path(folder), Path(source or originals())
    if folder.resolve() == source.resolve():
        raise ValueError(f"{folder} holds the originals. Name another folder.")
    known, laid = manifest(folder), Laid(folder)
    for path in sorted(path for kind in KINDS for path in source.glob(kind)):
        name = path.relative_to(source).as_posix()
        if not NEWER.search(path.stem):
            known |= _bring(folder, name, path.read_bytes(), known, laid)
    text = json.dumps({"files": known}, indent=1, sort_keys=True)
    _write(folder / MANIFEST, text.encode() + b"\n")
    return laid


def _bring(folder, name, data, known, laid):
    """Bring one file up to date; return what the manifest says of it from now on."""
    target, now = folder / name, _prints(data)
    entries = {name: now}
    if not target.exists():
        laid.new.append(name)
        _write(target, data)
        return entries
    mine, was = _prints(target.read_bytes()), known.get(name, {})
    if mine["bytes"] == now["bytes"] or was.get("bytes") == now["bytes"]:
        return entries  # nothing is newer
    same_text = was.get("text") == now["text"]
    as_laid = mine["bytes"] == was.get("bytes")
    if not as_laid and (same_text or mine["text"] == now["text"]):
        pass  # only outputs are newer, and the learner has outputs
    elif as_laid or mine["text"] == was.get("text"):
        laid.updated.append(name)
        _write(target, data)
    else:
        newer = _beside(folder, name, now, known)
        laid.beside.append((name, newer))
        _write(folder / newer, data)
        entries[newer] = now
    return entries


def _beside(folder, name, now, known):
    """Return a name for the newer version under which no work of the learner's is."""
    stem, dot, ending = name.rpartition(".")
    for count in itertools.count(1):
        newer = f"{stem}.new{count if count > 1 else ''}{dot}{ending}"
        path = folder / newer
        if not path.exists():
            return newer
        there = _prints(path.read_bytes())
        if there in (now, known.get(newer)):
            return newer


def _prints(data):
    """Return two hashes of a file: of its bytes, and of what a person writes into it.

    A notebook that was only run has the same text: outputs, counts and the empty cell
    that JupyterLab adds at the end do not count.
    """
    return {"bytes": _hash(data), "text": _hash(_text(data))}


def _text(data):
    try:
        cells = [
            (cell["cell_type"], "".join(cell["source"]), cell.get("attachments", {}))
            for cell in json.loads(data)["cells"]
        ]
    except (ValueError, TypeError, KeyError):  # no notebook, or no longer one
        return data
    return json.dumps([cell for cell in cells if cell[1].strip()]).encode()


def changed(folder, name, known):
    """Whether a file was saved since it was laid out, if only with other outputs."""
    was = known.get(name, {}).get("bytes")
    return was is not None and was != _hash((folder / name).read_bytes())


def _hash(data):
    return hashlib.sha256(data).hexdigest()


def manifest(folder):
    """What is known of the files in `folder`; nothing where there is no manifest."""
    try:
        known = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: dict(prints) for name, prints in known.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
