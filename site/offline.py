"""Says what pages would load from other hosts: `python site/offline.py FOLDER`.

It also names links to files that are not there.  It reads the files and opens nothing;
`browse.py` asks a browser.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

# A link that says where the page is published loads nothing.
TAGS = r"<(?:script|img|iframe|source|video|embed|link(?! rel=\"canonical\"))\b[^>]*?"
ELSEWHERE = r"(?:https?:)?//[^\"'\s)>]+"
LOADS = re.compile(rf"{TAGS}\b(?:src|href)=[\"']?({ELSEWHERE})")
STYLE = re.compile(rf"(?:@import\s*|url\(\s*|@import\s+url\(\s*)[\"']?({ELSEWHERE})")
SCRIPT = re.compile(rf"\bimport\s[^;]*?from\s*[\"']({ELSEWHERE})")
# An address without a scheme, as far as its query or anchor.
LOCAL = re.compile(r"<[^>]*\s(?:href|src)=\"(?![a-z]+:|//)([^\"#?]*)")


def loads(text):
    """Addresses on other hosts that a page or a style sheet loads by itself."""
    return [
        match[1] for rule in (LOADS, STYLE, SCRIPT) for match in rule.finditer(text)
    ]


def dead(path, text):
    """Addresses in a page that name a file which is not beside it."""
    local = {unquote(url) for url in LOCAL.findall(text)}
    return sorted(url for url in local if url and not (path.parent / url).exists())


def main(folder):
    """Exit 1 if a file of `folder` loads something from elsewhere, or leads nowhere."""
    paths = sorted(Path(folder).rglob("*"))
    files = [path for path in paths if path.suffix in (".html", ".css")]
    failed = not files
    for path in files:
        text = path.read_text(encoding="utf-8")
        found = [f"loads {address}" for address in loads(text)]
        if path.suffix == ".html":
            found += [
                f"leads to {address}, which is not there"
                for address in dead(path, text)
            ]
        for complaint in found:
            print(f"{path} {complaint}")
        failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
