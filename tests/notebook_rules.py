"""The rules that committed notebooks keep, each as a function that yields complaints.

Many close a way in which nbval passes without having compared anything.
"""

import ast
import base64
import json
import re
from pathlib import Path

from authoring import inline_code
from d2lpar.shared import notebooks

ROOT = Path(__file__).resolve().parent.parent
IGNORE, RAISES = "nbval-ignore-output", "raises-exception"
PRIVATE = re.compile(
    r"/home/|/tmp/|/root/|/Users/|[A-Z]:\\\\|ipykernel_|site-packages|\bpid[ =:]\d"
    r"|0x[0-9a-f]{6,}|" + re.escape(str(ROOT))
)
SHELL = re.compile(r"^\s*([\w, ]+=\s*)?!|^%%|\bget_ipython\(\)\.system", re.MULTILINE)
MEASURES = re.compile(r"gloo|nccl|perf_counter|Timer|doctor|timeit|time\.time")
NUMBER = re.compile(
    r"(?P<bound>\b(?:below|within|under|at most|to) |< )?"
    r"(?<![\w.])(?P<digits>\d+(?:\.\d*)?)(?:e[-+]?\d+)?"
)
FLOATS = re.compile(r"tensor\([^()]*\d[.e]")
MAX_BYTES = 1_000_000
MAX_WIDTH = 760  # pixels; a phone shows half of them


def problems(notebook):
    """Every complaint about a notebook, as one sentence with the number of its cell."""
    found = [*_file(notebook)]
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        for rule in RULES:
            found += [f"cell {number}: {text}" for text in rule(cell, number)]
    return found


def about_gpus(notebook):
    """The code cells of the sections about GPUs."""
    inside, found = False, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found += [cell] * inside
        elif headings := re.findall("^# .*", cell["source"], re.MULTILINE):
            inside = headings[-1] in ("# On one GPU", "# On real GPUs")
    return found


def _file(notebook):
    ids = [cell.get("id") for cell in notebook["cells"]]
    if None in ids or len(set(ids)) < len(ids):
        yield "a cell has no id, or another cell has the same"
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        yield "the format is not 4.5"
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "the kernel is not python3"
    if "widgets" in notebook["metadata"]:
        yield "widget state is stored"
    if not notebook["metadata"].get("d2lpar", {}).get("torch"):
        yield "nobody wrote down which torch made the outputs: run `make execute`"
    for cell in about_gpus(notebook):  # `make processes` leaves them out
        if "d2lpar.run(" in cell["source"] and '"sim"' not in cell["source"]:
            yield f"a run about GPUs has no backend, so is not simulated: {cell['id']}"


def count(cell, number):
    """nbval does not compare a cell without an execution count."""
    if cell["execution_count"] != number:
        yield f"its execution count is {cell['execution_count']}"
    for output in cell["outputs"]:
        if output.get("execution_count", number) != number:
            yield "an output has another execution count"


def empty(cell, number):
    """An empty cell is never executed."""
    if not cell["source"].strip():
        yield "it is empty"


def errors(cell, number):
    """nbval's lax mode lets a cell pass that was to fail and did not."""
    failed = any(o["output_type"] == "error" for o in cell["outputs"])
    if failed and RAISES not in tags(cell):
        yield f"it failed and has no tag {RAISES}"
    if not failed and RAISES in tags(cell):
        yield f"it has the tag {RAISES} and did not fail"


def private(cell, number):
    """Paths, process ids and addresses differ on the next machine."""
    outputs = json.loads(json.dumps(cell["outputs"]))
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    hit = PRIVATE.search(json.dumps(outputs))
    if hit:
        yield f"an output contains {hit.group()!r}"


def length(cell, number):
    """At most 15 lines, 25 for a definition of the library, 79 characters there.

    The answer to an exercise may have as many as it needs.  The cell that installs is
    folded.
    """
    lines = cell["source"].splitlines()
    if cell["source"] == notebooks.INSTALL_CELL.rstrip():
        if not cell["metadata"].get("jupyter", {}).get("source_hidden"):
            yield "the cell that installs is not folded: run `d2lpar badges --remove`"
        return
    if cell["metadata"].get("nbgrader", {}).get("solution"):
        return
    if not inline_code.is_marked(cell):
        if len(lines) > 15:
            yield f"it has {len(lines)} lines"
        return
    if any(len(line) > 79 for line in lines):
        yield "a line of kept code has more than 79 characters"
    for shown in inline_code.definitions(cell["source"]):
        body = [x for x in shown.text.splitlines() if not x.startswith("#")]
        if len(body) > 25:
            yield f"{shown.names[0]} has {len(body)} lines"


def semicolon(cell, number):
    """A last line that ends in a semicolon shows other things in nbval."""
    if cell["source"].rstrip().endswith(";"):
        yield "its last line ends with a semicolon"


def shell(cell, number):
    """A shell command that fails does not make its cell fail."""
    if IGNORE not in tags(cell) and SHELL.search(cell["source"]):
        yield "it runs a shell command or a cell magic"


def widgets(cell, number):
    """nbval does not clear outputs, and it does not compare widgets."""
    if IGNORE in tags(cell):
        return
    for name in ("clear_output", "interact", "interactive"):
        if re.search(rf"\b{name}\(", cell["source"]):
            yield f"{name} in a cell whose output is compared"
    if any(notebooks.WIDGET in o.get("data", {}) for o in cell["outputs"]):
        yield "a widget in a cell whose output is compared"


def pictures(cell, number):
    """Figures are PNG, fit a phone, have alternative text and are not compared."""
    for output in cell["outputs"]:
        kinds = [k for k in output.get("data", {}) if k.startswith("image/")]
        for kind in kinds:
            if kind != "image/png":
                yield f"a picture is {kind}"
            if not output["metadata"].get(kind, {}).get("alt"):
                yield "a picture has no alternative text"
        head = base64.b64decode(output.get("data", {}).get("image/png", ""))[16:20]
        if int.from_bytes(head, "big") > MAX_WIDTH:
            yield f"a picture is {int.from_bytes(head, 'big')} pixels wide"
        if kinds and IGNORE not in tags(cell):
            yield f"it shows a picture and has no tag {IGNORE}"


def rounding(cell, number):
    """What is compared does not show in which order a processor adds.

    A difference is printed as a bound that the cell asserts ("below 1e-12"), a float
    with digits that no order moves.
    """
    if IGNORE in tags(cell):
        return
    text = "\n".join(_texts(cell["outputs"]))
    for found in NUMBER.finditer(text):
        shown = found.group().removeprefix(found["bound"] or "")
        if 0 < float(shown) < 1e-9 and not found["bound"]:
            yield f"it shows rounding, {shown}: assert a bound, and print that"
        if "." in shown and len(found["digits"].replace(".", "").lstrip("0")) >= 13:
            yield f"it shows every digit of a float, {shown}: print fewer"
    if FLOATS.search(text):
        yield "it shows a tensor of floats: print a list, rounded where it was computed"


def _texts(outputs):
    for output in outputs:
        data = output.get("data", {})
        yield from (text for kind, text in data.items() if kind.startswith("text/"))
        yield output.get("text", "") + output.get("evalue", "")


def ignored(cell, number):
    """Only pictures, widgets and measured times are left uncompared."""
    if IGNORE not in tags(cell):
        return
    shown = json.dumps(cell["outputs"])
    drawn = '"image/' in shown or notebooks.WIDGET_TEXT in shown
    if not (drawn or "measured" in shown or MEASURES.search(cell["source"])):
        yield f"the tag {IGNORE} hides an output that can be compared"


def steering(cell, number):
    """No other tag or comment steers nbval."""
    others = set(tags(cell)) - {IGNORE, RAISES}
    if others:
        yield f"unknown tags: {', '.join(sorted(others))}"
    if "NBVAL" in cell["source"]:
        yield "a comment steers nbval"


def mixed(cell, number):
    """A cell that cannot be parsed by Python cannot be turned into a script."""
    try:
        ast.parse(re.sub(r"^%(?!%).*$", "", cell["source"], flags=re.MULTILINE))
    except SyntaxError:
        if not SHELL.search(cell["source"]):
            yield "it is not Python"


RULES = (
    count, empty, errors, private, length, semicolon, shell, widgets, pictures,
    rounding, ignored, steering, mixed,
)  # fmt: skip


def tags(cell):
    """The tags of a cell."""
    return cell["metadata"].get("tags", [])
