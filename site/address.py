"""What stamped notebooks say of their repository, and where the site itself will be.

`d2lpar badges` writes an address into the notebooks of a fork.  Nothing is assumed
where there is none: the pages have a download then, and no link that leads nowhere.
"""

import html
import re
from pathlib import PurePath
from typing import NamedTuple

GIT = re.compile(
    r"""^\s*address = "git\+((?:https|ssh)://(?:[\w-]+@)?[^"@#]+?)(?:\.git)?"""
    r"""(?:@([^"#]+))?["#]""",
    re.MULTILINE,
)
BADGE = re.compile(r"\[!\[([^]]*)\]\([^)]*\)\]\((https?:[^)\s]*)\)")
COMMIT = re.compile("[0-9a-f]{40}")
# Hosts on which we know how the address of a file is made.
KNOWN = ("https://github.com/", "https://gitlab.com/")


class Repository(NamedTuple):
    """A repository on the web: its address without .git, and a branch or commit."""

    url: str
    version: str

    @property
    def name(self):
        """What git calls the folder of a clone."""
        return self.url.rpartition("/")[2]

    @property
    def branch(self):
        """The branch on which pages can be edited, or None."""
        known = self.url.startswith(KNOWN)
        return self.version if known and not COMMIT.fullmatch(self.version) else None

    def source(self, path):
        """The web address of a file, or None on a host that we do not know."""
        known = self.url.startswith(KNOWN)
        return f"{self.url}/blob/{self.version}/{path}" if known else None


def repository(notebook):
    """The repository from which a notebook installs d2lpar, or None."""
    for cell in notebook["cells"]:
        found = cell["cell_type"] == "code" and GIT.search(cell["source"])
        if found:
            return Repository(found[1], found[2] or "main")
    return None


def badges(text):
    """Name and address of every badge in a text, in order."""
    return BADGE.findall(text)


def without_badges(text):
    """The text without the lines that hold nothing but badges."""
    line = re.compile(rf"^(?:{BADGE.pattern}[ \t]*)+\n\n?", re.MULTILINE)
    return line.sub("", f"{text}\n").rstrip("\n")


def launch_links(notebook, path):
    """Where else a notebook opens: its badges, its source, and a copy to download.

    `path` is that of the notebook in the repository, such as chapters/00_start.ipynb.
    """
    links, found = badges(notebook["cells"][0]["source"]), repository(notebook)
    if found and found.source(path):
        links.append(("Source", found.source(path)))
    up = "../" * path.count("/")
    if PurePath(path).parent.name == "chapters":
        links.append(("Slides", f"{up}slides/{PurePath(path).stem}.html"))
    return [*links, ("Download notebook", f"{up}download/{path}")]


def launch(links):
    """A row of links as HTML, from pairs of a text and an address."""
    shown = [
        f'<a href="{html.escape(url)}"{" download" if "/download/" in url else ""}>'
        f"{html.escape(text)}</a>"
        for text, url in links
    ]
    return "\n".join(
        ['<nav class="launch" aria-label="This notebook">', *shown, "</nav>"]
    )


def clone_command(found):
    """The lines of a shell that bring the course here and open it; "" where unknown."""
    if not found:
        return ""
    lines = [f"git clone {found.url}", f"cd {found.name}"]
    if found.version != "main":
        lines.append(f"git checkout {found.version}")
    return "\n".join(["```bash", *lines, "make lab", "```"])
