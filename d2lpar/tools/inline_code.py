"""Cells that show the library's own code, kept equal to it.

Such a cell starts with `# in d2lpar/messages.py` and holds definitions of that module,
each with the comment that stands directly above it.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

MARK = "# in d2lpar/"
PACKAGE = Path(__file__).resolve().parents[1]


class InlineCodeError(ValueError):
    """A marked cell that cannot be matched with the library."""


@dataclass(frozen=True)
class Definition:
    """One definition in a source text: its names, its lines (from 1), its text."""

    names: tuple
    first: int
    last: int
    text: str


def is_marked(cell):
    """Whether this cell of a notebook shows the library's code."""
    return cell["cell_type"] == "code" and cell["source"].startswith(MARK)


def module_of(source):
    """The module's path inside the package that a marked source names in line one."""
    return source.splitlines()[0].removeprefix(MARK).strip()


def definitions(source):
    """The definitions at the top level of `source`, in order, comments included."""
    lines = source.splitlines()
    found, previous = [], 0
    for node in ast.parse(source).body:
        first = min([node.lineno, *(d.lineno for d in _decorators(node))])
        while first - 1 > previous and lines[first - 2].startswith("#"):
            first -= 1
        text = "\n".join(lines[first - 1 : node.end_lineno])
        found.append(Definition(_names(node), first, node.end_lineno, text))
        previous = node.end_lineno
    return found


def library_text(source, package=PACKAGE):
    """What the marked `source` should be, by the library as it is now."""
    module = module_of(source)
    path = Path(package) / module
    if not path.is_file():
        raise InlineCodeError(f"There is no d2lpar/{module}.")
    head, body = (source + "\n").split("\n", 1)
    library = definitions(path.read_text(encoding="utf-8"))
    wanted = [_find(shown, library, module) for shown in definitions(body)]
    if not wanted:
        raise InlineCodeError(f"The cell `{head}` holds no definition.")
    return head + "\n" + _laid_out(wanted, library)


def sync(notebook, package=PACKAGE):
    """Marked cells hold the library's text, in place; returns what changed.

    One pair per changed cell: the old source and the new one.
    """
    changed = []
    for cell in filter(is_marked, notebook["cells"]):
        new = library_text(cell["source"], package)
        if new != cell["source"]:
            changed.append((cell["source"], new))
            cell["source"] = new
    return changed


def _find(shown, library, module):
    if not shown.names:
        line = shown.text.splitlines()[0]
        raise InlineCodeError(f"d2lpar/{module}: `{line}` is not a definition.")
    for definition in library:
        if definition.names == shown.names:
            return definition
    raise InlineCodeError(f"d2lpar/{module} does not define {', '.join(shown.names)}.")


def _laid_out(wanted, library):
    """Neighbours keep the blank lines between them; others are two lines apart."""
    text = wanted[0].text
    for before, after in zip(wanted, wanted[1:], strict=False):
        neighbours = library.index(after) == library.index(before) + 1
        blank = after.first - before.last - 1 if neighbours else 2
        text += "\n" * (blank + 1) + after.text
    return text


def _decorators(node):
    return getattr(node, "decorator_list", [])


def _names(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return (node.name,)
    if isinstance(node, ast.Assign):
        targets = [n for t in node.targets for n in ast.walk(t)]
        return tuple(n.id for n in targets if isinstance(n, ast.Name))
    if isinstance(node, ast.AnnAssign):
        return (node.target.id,)
    return ()
