"""A chapter as a Python script, for the ranks that torchrun has started.

Every rank executes all of it.  `d2lpar.run` uses the ranks that are there, and rank 0
shows what a notebook would show as text.  Left out is what those ranks cannot do: fail
on purpose, or be as many as a cell asks for.
"""

import ast
import re
import symtable

HEAD = '''\
"""{name} as a script for {ranks} ranks: torchrun --nproc-per-node {ranks} {name}.py"""

import os
import sys

if os.environ.get("RANK", "0") != "0":  # rank 0 speaks for all
    sys.stdout = open(os.devnull, "w", encoding="utf-8")


def display(*values):
    """What a notebook shows below its cell, as text."""
    for value in values:
        if value is not None:
            print(repr(value))
'''


def script(notebook, name):
    """The code cells of a notebook as one program; comments say which are left out."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    head = HEAD.format(name=name, ranks=ranks(notebook))
    parts, lost = [head], set()
    for number, cell in enumerate(code, start=1):
        made, used = _names(cell["source"])
        why = _left_out(cell, made, used & lost)
        if why:
            lost |= made
            parts.append(f"# Cell {number} is left out: {why}.\n")
        else:
            lost -= made
            parts.append(f"# Cell {number}\n{shown(cell['source'])}\n")
    return "\n\n".join(parts)


def ranks(notebook):
    """How many ranks the notebook's `d2lpar.defaults` names; 4 where it names none."""
    sources = [c["source"] for c in notebook["cells"] if c["cell_type"] == "code"]
    named = re.search(r"\bdefaults\([^)]*world_size=(\d+)", "\n".join(sources))
    return int(named[1]) if named else 4


def shown(source):
    """`source` with its last value displayed, as Jupyter does."""
    body = ast.parse(source).body
    if not body or not isinstance(body[-1], ast.Expr):
        return source
    lines, last = source.splitlines(), body[-1]
    before, text = lines[: last.lineno - 1], lines[last.lineno - 1 : last.end_lineno]
    after = lines[last.end_lineno :]
    return "\n".join([*before, "display(", *text, ")", *after])


def _left_out(cell, made, missing):
    """Why a script goes without this cell, or None; it makes and misses names."""
    if "raises-exception" in cell["metadata"].get("tags", []):
        return "it fails on purpose"
    nodes = list(ast.walk(ast.parse(cell["source"])))
    if any(isinstance(n, ast.ExceptHandler) and _is_ours(n.type) for n in nodes):
        return "its ranks fail on purpose"
    calls = any(isinstance(n, ast.Call) and _starts_ranks(n) for n in nodes)
    if calls or any(name.startswith("bench") for name in made):
        return "it starts ranks of its own"
    return f"it needs {min(missing)} from a cell that is left out" if missing else None


def _is_ours(kind):
    """Whether `except` names an error of `d2lpar.run`."""
    return kind is not None and ast.unparse(kind).startswith("d2lpar.")


def _starts_ranks(call):
    """Whether this is a `run` of so many real processes."""
    given = {k.arg: k.value for k in call.keywords}
    backend = getattr(given.get("backend"), "value", None)
    return "world_size" in given and backend in ("gloo", "nccl")


def _names(source):
    """The global names that this cell makes, and those that it uses."""
    made, used = set(), set()
    tables = [symtable.symtable(source, "cell", "exec")]
    for table in tables:
        tables += table.get_children()
        top = table.get_type() == "module"
        symbols = [x for x in table.get_symbols() if top or x.is_global()]
        used |= {x.get_name() for x in symbols if x.is_referenced()}
        if top:
            made = {x.get_name() for x in symbols if x.is_assigned() or x.is_imported()}
    return made, used - made
