"""Write the outputs of notebooks, and the numbers in their text."""

import os

from d2lpar.cli.execution import OVERRIDES, execute, processor, torch_version
from d2lpar.shared import notebooks

from . import prose


def rewrite(path, timeout=120.0, on_cell=None):
    """The file holds the outputs of an execution in the worlds that it names itself.

    Numbers in the text are what the cells compute.  Nothing is written where a cell
    fails, or where a sentence is wrong in words.  Returns the outcome.
    """
    environ = {k: v for k, v in os.environ.items() if k not in OVERRIDES}
    outcome = execute(path, environ, timeout, on_cell, reader=_Reader)
    if outcome.failure is None:
        before = notebooks.read(path)
        after = notebooks.normalise(outcome.notebook, before)
        recorded = {"torch": torch_version(), "processor": processor()}
        after["metadata"]["d2lpar"] = recorded
        notebooks.write(path, after)
    return outcome


class _Reader:
    """Compares the text below a code cell with what the kernel knows by then."""

    def __init__(self, client):
        self.client, self.news, self.complaints = client, [], []
        self.after = prose.after(client.nb.cells)

    def read(self, number):
        """Bring the texts behind code cell `number` up to date, or complain."""
        cells = [self.client.nb.cells[place] for place in self.after[number - 1]]
        sources = [cell.source for cell in cells]
        asked = prose.question(sources)
        if not asked:
            return
        sent = self.client.kc.execute("", silent=True, user_expressions=asked)
        reply = self.client.wait_for_reply(sent)
        texts, complaints, news = prose.judged(sources, reply)
        for cell, text in zip(cells, texts, strict=True):
            cell.source = text
        self.news += news
        self.complaints += [(number, text) for text in complaints]
