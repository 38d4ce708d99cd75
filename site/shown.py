"""A Sphinx extension: pictures that one can enlarge, and tables that fit their page.

A click on a picture shows it large, with its alternative text.  HTML does it alone: the
picture is a button for an element with the attribute `popover`.  So it needs no script,
works from a file, takes the keyboard, and Escape closes it.
"""

import html
import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator

ALT = re.compile(r'\balt="[^"]*"')
# Behind a dot, an underscore or an open bracket, and in CamelCase; but not in ZeRO.
BREAK = re.compile(r"(?<=\w[._(=/])(?=\w)|(?<=[a-z]{3})(?=[A-Z])")


def large(number, picture, alt):
    """HTML of a picture's button and of what it opens, from the picture's own HTML.

    Both are phrasing content, because a picture may be in a paragraph.
    """
    name = f"picture-{number}"
    text = f'<span class="alt">{html.escape(alt)}</span>' if alt else ""
    again = ALT.sub('alt=""', picture) if alt else picture
    return (
        f'<button class="zoom" popovertarget="{name}" title="Enlarge">'
        f"{picture}</button>"
        f'<span popover class="zoomed" id="{name}">'
        f'<button popovertarget="{name}" popovertargetaction="hide" autofocus>'
        f"Close</button>{again}{text}</span>"
    )


def visit_image(translator, node):
    """Write a picture that has a button around it, unless it is part of a link."""
    before = len(translator.body)
    HTML5Translator.visit_image(translator, node)
    if isinstance(node.parent, nodes.reference):
        return
    picture = "".join(translator.body[before:]).strip()
    del translator.body[before:]
    translator.zoomed = getattr(translator, "zoomed", 0) + 1
    translator.body.append(large(translator.zoomed, picture, node.get("alt", "")))


def depart_image(translator, node):
    HTML5Translator.depart_image(translator, node)


class BreakNames(SphinxPostTransform):
    """Names of code in a table may break where their parts begin."""

    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs):
        for name in self.document.findall(nodes.literal):
            cell = name.parent
            while cell is not None and not isinstance(cell, nodes.entry):
                cell = cell.parent
            if cell is not None:
                name[:] = parts(name.astext())


def parts(name):
    """Nodes of a name of code, with a `wbr` at every place where it may break."""
    first, *others = BREAK.split(name)
    made = [nodes.Text(first)]
    for part in others:
        made += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]
    return made


def setup(app):
    app.add_post_transform(BreakNames)
    app.add_node(nodes.image, override=True, html=(visit_image, depart_image))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
