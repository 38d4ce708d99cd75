"""The address of a course in its package: links for a package index and its README.

A package index shows the README without the files beside it.  pyproject.toml says what
becomes of links to those files there: plain text, or links to the repository.
"""

import re

RAW = "https://raw.githubusercontent.com"
URLS = re.compile(r"^\[project\.urls\]\n(?:.+\n)+\n", re.MULTILINE)
BEFORE = "[project.scripts]\n"
# The replacements in pyproject.toml, in their order, without an address and with one.
DROPPED = {"pictures": "", "files": r"\1", "sections": r"\1"}
KEPT = {
    "pictures": r"![\1]({raw}/\2)\n\n",
    "files": r"[\1]({blob}/\2)",
    "sections": r"[\1]({blob}/README.md\2)",
}


def linked(text, github=None, branch="main"):
    """Return the text of pyproject.toml with the addresses of a repository on GitHub.

    `github` is the page of the repository.  Without it the addresses of an earlier call
    are removed.
    """
    text = URLS.sub("", text)
    wanted = DROPPED
    if github:
        blob, raw = f"{github}/blob/{branch}", github.replace("https://github.com", RAW)
        raw += f"/{branch}"
        wanted = {kind: to.format(raw=raw, blob=blob) for kind, to in KEPT.items()}
        urls = {"Homepage": github, "Changelog": f"{blob}/CHANGELOG.md"}
        lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
        text = text.replace(BEFORE, f"[project.urls]\n{lines}\n{BEFORE}", 1)
    for kind, to in wanted.items():
        line = re.compile(rf"(replacement = )'[^']*'(.*# {kind}$)", re.MULTILINE)
        text = line.sub(lambda found, to=to: f"{found[1]}'{to}'{found[2]}", text)
    return text
