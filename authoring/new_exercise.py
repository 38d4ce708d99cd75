"""Lay out an exercise: cells of a notebook and the file of its check, which work."""

import keyword
import re
from string import Template

from d2lpar.cli.console import Refused
from d2lpar.shared import notebooks

TEXT = Template("""\
## $name $title

*Write a function of about 4 lines.* Say what is needed and why, with the numbers of an
example. Here every rank gets the tensor of its left neighbour: with three ranks, rank 0
gets that of rank 2.

- Say what the function is given, what it returns, and what must stay unchanged.
- State every limit that the check grades: each rank sends one message, in one round.

In one process, where a list holds one entry per rank, it is a single line:""")
REFERENCE = Template("""\
import torch
import torch.distributed as dist

from d2lpar.messages import exchange


def ${function}_reference(xs):
    return xs[-1:] + xs[:-1]


print(${function}_reference(["a", "b", "c"]))""")
ANSWER = Template('''\
def $function(x):
    """Return the tensor that the left neighbour has."""
    ### BEGIN SOLUTION
    n, r = dist.get_world_size(), dist.get_rank()
    theirs = x.clone()
    if n > 1:
        exchange(x, (r + 1) % n, theirs, (r - 1) % n)
    return theirs
    ### END SOLUTION''')
CHECK = Template("""\
display(d2lpar.check("$name", $function))
### BEGIN HIDDEN TESTS
d2lpar.check("$name", $function, seed=11).score * 2
### END HIDDEN TESTS""")
FILE = Template('''\
"""$name $title: $function(x)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case

ex = Exercise("$name")


@ex.cases
def cases(rng, reference):
    """No element, one, more: on one rank, two, a power of two, and not."""
    for n in (1, 2, 3, 4, 5, 8):
        for S in (1, 6, 0):
            xs = list(torch.from_numpy(rng.normal(size=(n, S))))
            yield Case.of(n, [(x,) for x in xs], reference(xs), S=S)


one = lambda case: min(1, case.n - 1)
ex.boundaries("one rank", "two ranks", "no power of two", "empty")
ex.require(rows.from_messages(), rows.all_waited(), rows.untouched())
ex.at_most(rounds=one, messages=lambda case: case.n * one(case))

# Texts of the answer, for edits

PEERS = "(r + 1) % n, theirs, (r - 1) % n"

# Mistakes of its own

ex.slip("right", {PEERS: "(r - 1) % n, theirs, (r + 1) % n"}).says("""
    Every rank has the tensor of its right neighbour.
    Hint: Which of the two neighbours has to send to this rank?
""")

# Answers to which the general sentences apply

ex.wrong("raises", {"if n > 1:": "if True:"})
ex.right({"(r + 1) % n, ": "(r + 1 - n) % n, "})
''')


def lay_out(name, title, function):
    """Add the cells to the notebook of the chapter, and write the file of the check.

    Returns both paths.  Refused, with nothing written, where a name is none or the
    exercise is there.
    """
    if not re.fullmatch(r"\d\d\.\d", name):
        raise Refused(f"{name!r} names no exercise. A name is as 06.2, of chapter 06.")
    if not function.isidentifier() or keyword.iskeyword(function):
        raise Refused(f"{function!r} is no name of a function.")
    folder = notebooks.repository() / "solutions"
    [notebook] = notebooks.find([name[:2]], ("solutions",), lambda: folder.parent)
    path = folder / f"ex_{name.replace('.', '_')}.py"
    book = notebooks.read(notebook)
    if path.exists() or any(f"## {name} " in c["source"] for c in book["cells"]):
        raise Refused(f"Exercise {name} is there already.")
    words = {"name": name, "title": title, "function": function}
    answer, check = (_graded(name, kind) for kind in ("answer", "check"))
    check |= {"d2lpar": {"minutes": 10}}
    book["cells"] += [
        _cell("markdown", TEXT, words, {}),
        _cell("code", REFERENCE, words, {}),
        _cell("code", ANSWER, words, answer),
        _cell("code", CHECK, words, check),
    ]
    notebooks.give_ids(book)
    path.write_text(FILE.substitute(words), encoding="utf-8")
    notebooks.write(notebook, book)
    return notebook, path


def _graded(name, kind):
    """What nbgrader keeps about a cell, in the metadata of that cell."""
    marks = {"grade": kind == "check", "locked": kind == "check", "task": False}
    marks |= {"grade_id": f"{name.replace('.', '-')}-{kind}", "schema_version": 3}
    marks |= {"points": 2} if kind == "check" else {}
    return {"nbgrader": marks | {"solution": kind == "answer"}}


def _cell(kind, text, words, metadata):
    cell = {"cell_type": kind, "metadata": metadata, "source": text.substitute(words)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
