"""Cells that show the library's own code, kept equal to it.

Such a cell starts with `# in d2lpar/messages.py` and holds definitions of that module,
each with the comment directly above it.  A class may span cells: a method that a later
cell shows below `@add_to_class(Mail)` is left out of the cell that shows `class Mail`.
"""

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

MARK = "# in d2lpar/"
ADD = "add_to_class"
PACKAGE = Path(__file__).resolve().parents[1] / "d2lpar"


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


def library_text(source, package=PACKAGE, elsewhere=()):
    """What the marked `source` should be, by the library as it is now.

    `elsewhere` names methods, such as "Mail.send", that other cells add to a class.
    """
    module = module_of(source)
    path = Path(package) / module
    if not path.is_file():
        raise InlineCodeError(f"There is no d2lpar/{module}.")
    head, body = (source + "\n").split("\n", 1)
    library = definitions(path.read_text(encoding="utf-8"))
    wanted = [_find(one, library, module, elsewhere) for one in definitions(body)]
    if not wanted:
        raise InlineCodeError(f"The cell `{head}` holds no definition.")
    return head + "\n" + _laid_out(wanted, library)


def sync(notebook, package=PACKAGE):
    """Marked cells hold the library's text, in place; returns what changed.

    One pair per changed cell: the old source and the new one.
    """
    changed, marked = [], list(filter(is_marked, notebook["cells"]))
    shown = [one for cell in marked for one in definitions(cell["source"])]
    methods = {name for one in shown for name in one.names if "." in name}
    for cell in marked:
        new = library_text(cell["source"], package, methods)
        if new != cell["source"]:
            changed.append((cell["source"], new))
            cell["source"] = new
    return changed


def _find(shown, library, module, elsewhere):
    if not shown.names:
        line = shown.text.splitlines()[0]
        raise InlineCodeError(f"d2lpar/{module}: `{line}` is not a definition.")
    owner, _, method = shown.names[0].partition(".")
    for found in library:
        if found.names == (owner,) and method in {name for name, *_ in _bodies(found)}:
            return Definition(shown.names, 0, 0, _added(found, method))
        if found.names == shown.names:
            text = _without(found, elsewhere)
            return Definition(found.names, found.first, found.last, text)
    raise InlineCodeError(f"d2lpar/{module} does not define {', '.join(shown.names)}.")


def _bodies(definition):
    """(name, first line, last line) of the methods of a class, lines from 0."""
    lines = definition.text.splitlines()
    for node in getattr(ast.parse(definition.text).body[0], "body", ()):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in _decorators(node))]) - 1
            while lines[first - 1].startswith("    #"):
                first -= 1
            yield node.name, first, node.end_lineno


def _added(definition, method):
    """The method as a cell shows it: comments, `@add_to_class`, and its text."""
    lines = definition.text.splitlines()
    first, last = next((a, b) for name, a, b in _bodies(definition) if name == method)
    shown = textwrap.dedent("\n".join(lines[first:last])).splitlines()
    above = next(k for k, line in enumerate(shown) if line[:1] != "#")
    shown.insert(above, f"@{ADD}({definition.names[0]})")
    return "\n".join(shown)


def _without(definition, names):
    """The text of a class without these methods and the blank lines above them."""
    lines = definition.text.splitlines()
    for name, first, last in reversed(list(_bodies(definition))):
        if f"{definition.names[0]}.{name}" in names:
            del lines[first - (not lines[first - 1]) : last]
    return "\n".join(lines)


def _laid_out(wanted, library):
    """Neighbours keep the blank lines between them; others are two lines apart."""
    starts = {definition.first: k for k, definition in enumerate(library)}
    text = wanted[0].text
    for before, after in zip(wanted, wanted[1:], strict=False):
        neighbours = starts.get(after.first, -1) - starts.get(before.first, -1) == 1
        blank = after.first - before.last - 1 if neighbours and before.first else 2
        text += "\n" * (blank + 1) + after.text
    return text


def _decorators(node):
    return getattr(node, "decorator_list", [])


def _names(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        for text in map(ast.unparse, _decorators(node)):
            if text.startswith(f"{ADD}("):  # a method of the class in brackets
                return (f"{text[len(ADD) + 1 : -1]}.{node.name}",)
        return (node.name,)
    if isinstance(node, ast.Assign):
        targets = [n for t in node.targets for n in ast.walk(t)]
        return tuple(n.id for n in targets if isinstance(n, ast.Name))
    if isinstance(node, ast.AnnAssign):
        return (node.target.id,)
    return ()
