"""pytest on notebooks, with nbval: cells are counted, and torch's version matters.

nbval executes cells without history, so that each would call itself cell 1 in the
message of an error.  Here they count, as in Jupyter.

Outputs are compared on the torch that recorded them only: operations are charged as
they run, so another torch may give other virtual times.  There the cells are executed,
and their assertions count.

Where outputs are compared, so are the numbers in the text that `authoring.prose`
binds to the cells above them.  If one differs all the same, the message begins with
where it was recorded.
"""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

# The threads of an operation sleep while they wait for each other.  By default they
# poll, which takes the processors from other tests: on a busy machine the check of 07.1
# took five times as many seconds of processor.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def recorded_with(notebook):
    """The version of torch in a notebook's metadata, or None."""
    return notebook["metadata"].get("d2lpar", {}).get("torch")


def installed():
    """The version of the installed torch, without its build."""
    return version("torch").split("+")[0]


def other_torch(notebook):
    """Whether this notebook's outputs come from another torch than the installed."""
    return recorded_with(notebook) not in (None, installed())


def pytest_configure(config):
    """Cells that nbval executes have the numbers 1..N."""
    if any(getattr(config.option, name, False) for name in ("nbval", "nbval_lax")):
        from nbval.kernel import RunningKernel

        RunningKernel.execute_cell_input = _execute_and_count


def _execute_and_count(kernel, source, allow_stdin=None):
    return kernel.kc.execute(
        source, store_history=True, allow_stdin=allow_stdin, stop_on_error=False
    )


def pytest_collection_modifyitems(config, items):
    """Cells recorded with another torch are executed and not compared.

    On processes the sections about GPUs are left out: nothing in them would run there.
    """
    left = []
    for item in items:
        notebook = getattr(item.parent, "nb", None)
        if notebook is not None and other_torch(notebook):
            item.options["check"] = False
        if notebook is not None and os.environ.get("D2LPAR_BACKEND") == "gloo":
            left += [item] * (item.cell.id in _about_gpus(notebook))
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _about_gpus(notebook):
    from tests.notebook_rules import about_gpus

    return {cell.id for cell in about_gpus(notebook)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A cell passes if the text up to the next one says what the kernel knows."""
    notebook = getattr(item.parent, "nb", None)
    try:
        result = yield
    except Exception as error:
        if notebook is not None and str(error) == "Cell outputs differ":
            error.args = (f"{_where_recorded(notebook)}\n{error}",)
        raise
    if notebook is not None and _compares(item, notebook):
        wrong = _wrong_sentences(item, notebook)
        if wrong:
            item.raise_cell_error(
                "The text below it says otherwise:\n" + "\n".join(wrong)
            )
    return result


def _where_recorded(notebook):
    processor = (
        notebook["metadata"].get("d2lpar", {}).get("processor", "an unknown processor")
    )
    return (
        f"These outputs were recorded with torch {recorded_with(notebook)} on "
        f"{processor}, and are compared as text: another processor may round otherwise."
    )


def _compares(item, notebook):
    return item.parent.compare_outputs and not other_torch(notebook)


def _wrong_sentences(item, notebook):
    from authoring import prose

    texts = [
        notebook.cells[place].source
        for place in prose.after(notebook.cells)[item.cell_num]
    ]
    asked = prose.question(texts)
    if not asked:
        return []
    client = item.parent.kernel.kc
    sent = client.execute("", silent=True, user_expressions=asked)
    reply = {"parent_header": {}}
    while reply["parent_header"].get("msg_id") != sent:
        reply = client.get_shell_msg(timeout=item.config.option.nbval_cell_timeout)
    _, complaints, changed = prose.judged(texts, reply)
    return complaints + changed


def pytest_terminal_summary(terminalreporter, config):
    """Say for which notebooks `--nbval` did not compare outputs."""
    if not getattr(config.option, "nbval", False):
        return
    for path in sorted(_notebooks(config)):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if other_torch(notebook):
            terminalreporter.write_line(
                f"{path.name}: outputs not compared. They were recorded with torch "
                f"{recorded_with(notebook)}; this is {installed()}."
            )


def _notebooks(config):
    for argument in config.args:
        path = Path(argument.split("::")[0])
        if path.is_dir():
            yield from path.glob("**/*.ipynb")
        elif path.suffix == ".ipynb":
            yield path
