"""Run the cells of chapters and solutions that use a GPU, and only what they need.

    D2LPAR_PRETEND=4 PYTHONPATH=tests/pretend/site-packages \
        python tests/pretend/paths.py [--whole] [--strict] NOTEBOOK ...

A statement is needed if it binds or changes a name that a cell with a GPU uses,
directly or by way of other statements.  With `--whole` every cell runs.  Prints a line
of JSON per notebook: which cells ran, what failed, which lines read a clock before a
GPU was through (in this process, not in the ranks), and seconds.  `--strict`: what is
wrong in a notebook is an error of the program.
"""

import ast
import builtins
import json
import linecache
import os
import re
import sys
import time
import traceback
import types

import nbformat
from pretended import gpus

from d2lpar import run
from d2lpar.launch import arguments

GPU = re.compile(r"""\bcuda\b|["']nccl["']|try_gpu|DEVICES""")
CHANGING = {"append", "extend", "update", "add", "insert", "setdefault", "sort"}
CHANGING |= {"defaults", "manual_seed", "set_default_dtype", "set_num_threads", "pop"}
LOOKING = {"print", "display", "len", "run", "plot", "plot_moves", "close", "show"}
FUNCTIONS = ast.FunctionDef, ast.Lambda
COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
DEFINITIONS = ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom
COMPOUND = ast.If, ast.For, ast.While, ast.Try, ast.With


class Statement:
    """One statement of a cell: the names that it binds, changes and uses."""

    def __init__(self, cell, node):
        self.cell, self.node = cell, node
        self.defines = isinstance(node, DEFINITIONS)
        self.uses, self.later = set(), set()  # now; when a function is called
        _look(node, self.uses, self.later)
        bound = set(_bound(node))
        self.touches = bound | set(_changed(node))
        if isinstance(node, COMPOUND):
            self.uses -= bound
        changing = isinstance(node, (*COMPOUND, ast.AugAssign))
        self.replaces = set() if changing else set(_bound(node))


def _look(node, uses, later):
    """Collect the names that a node uses, without those of a function itself."""
    if isinstance(node, FUNCTIONS):
        arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        inside, arguments = set(), {each.arg for each in arguments}
        for child in ast.iter_child_nodes(node):
            _look(child, inside, inside)
        for now in (node.args, *getattr(node, "decorator_list", [])):
            _look(now, uses, later)
        body = node.body if isinstance(node.body, list) else [node.body]
        later |= inside - arguments - {name for each in body for name in _bound(each)}
        return
    if isinstance(node, ast.Name):
        uses.add(node.id)
    if isinstance(node, COMPREHENSIONS):
        inside, loops = set(), [loop.target for loop in node.generators]
        for child in ast.iter_child_nodes(node):
            _look(child, inside, later)
        uses |= inside - {name for loop in loops for name in _bound(loop)}
        return
    for child in ast.iter_child_nodes(node):
        _look(child, uses, later)


def _bound(node):
    """Names that get a new value, but for those inside of functions."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (*COMPREHENSIONS, ast.Lambda)):
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _changed(node):
    """Names whose values may change: x[0] = 1, x.a = 1, x.append(1), change(x)."""
    for each in ast.walk(node):
        places = []
        if isinstance(each, (ast.Attribute, ast.Subscript)):
            places = [each] if isinstance(each.ctx, ast.Store) else []
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            places = [each.func] if each.func.attr in CHANGING else []
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            name = getattr(each.value.func, "attr", getattr(each.value.func, "id", ""))
            places = [] if name in LOOKING else each.value.args
        for place in places:
            while isinstance(place, (ast.Attribute, ast.Subscript)):
                place = place.value
            if isinstance(place, ast.Name):
                yield place.id
    for decorator in getattr(node, "decorator_list", []):
        yield from (x.id for x in ast.walk(decorator) if isinstance(x, ast.Name))


def on_purpose(cell):
    """Does the cell fail to show how?"""
    return "raises-exception" in cell.metadata.get("tags", [])


def statements(notebook):
    """All Statements of a notebook's code."""
    found = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            tree = ast.parse(re.sub(r"(?m)^[%!]", "#", cell.source))
            found += [Statement(number, node) for node in tree.body]
    return found


def needed(notebook):
    """The Statements of the cells that use a GPU, and those that they need."""
    found, chosen, done = statements(notebook), set(), set()
    shown = lambda cell: cell.source.startswith("# in d2lpar")
    uses_gpu = lambda cell: GPU.search(cell.source) and not shown(cell)
    targets = {k for k, cell in enumerate(notebook.cells) if uses_gpu(cell)}
    asked, gradients = [], {}
    for place, each in enumerate(found):  # a gradient has no name of its own
        if not each.defines and ".backward(" in ast.unparse(each.node):
            gradients.setdefault(each.cell, set()).add(place)

    def choose(place, until):
        chosen.add(place)
        if not found[place].defines:
            for other in gradients.get(found[place].cell, set()) - chosen:
                choose(other, other)
        asked.extend((name, place) for name in found[place].uses)
        asked.extend((name, until) for name in found[place].later)

    for place, each in enumerate(found):
        if each.cell in targets:
            choose(place, len(found))
    while asked:
        name, until = question = asked.pop()
        if question in done:
            continue
        done.add(question)
        for place in range(until - 1, -1, -1):
            if name in found[place].touches:
                choose(place, until)
                if name in found[place].replaces:
                    break
    return [found[place] for place in sorted(chosen)]


def execute(path, whole):
    """(the cells of which something ran, what went wrong or None)."""
    notebook = nbformat.read(path, 4)
    chosen = statements(notebook) if whole else needed(notebook)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update(display=print, __builtins__=builtins)
    cells = list(dict.fromkeys(each.cell for each in chosen))
    for number in cells:
        name = f"{path}, cell {number}"
        source = notebook.cells[number].source
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        body = [each.node for each in chosen if each.cell == number]
        for gpu in gpus.all_gpus():
            gpus.wait(gpu)  # what is not awaited here is another cell's
        try:
            exec(compile(ast.Module(body, []), name, "exec"), module.__dict__)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if on_purpose(notebook.cells[number]):
                continue
            cause = error.__cause__ or error
            lines = traceback.format_exception(cause)
            lines = [line for line in lines[:-6] if path in line] + lines[-6:]
            told = f"cell {number}: {type(error).__name__}: {error}\n{''.join(lines)}"
            return cells, told
    return cells, None


def be_patient(seconds=300.0):
    """Let a run go on for so long without progress: pretending slows tensors down."""
    arguments.USUAL["timeout"] = run.__kwdefaults__["timeout"] = seconds


def main(paths, whole):
    """Report on every notebook; was there no error, and no such line?"""
    if not gpus.all_gpus():  # an error in sitecustomize ends no Python
        raise SystemExit("there are no pretended GPUs: set D2LPAR_PRETEND")
    be_patient()
    went_well = True
    for path in paths:
        folder = os.getcwd()
        gpus.HASTY.clear()
        gpus.WATCHED[:] = [path]
        worked, began = time.process_time(), time.perf_counter()
        cells, failed = execute(path, whole)
        os.chdir(folder)
        hasty = [linecache.getline(*place).strip() for place in gpus.HASTY]
        report = {"path": path, "cells": cells, "failed": failed, "hasty": hasty}
        report["processor"] = time.process_time() - worked
        report["seconds"] = time.perf_counter() - began
        print("\n" + json.dumps(report), flush=True)
        went_well = went_well and failed is None and not hasty
    return went_well


if __name__ == "__main__":
    words = sys.argv[1:]
    went_well = main([w for w in words if w[:2] != "--"], "--whole" in words)
    raise SystemExit("--strict" in words and not went_well)
