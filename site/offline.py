"""Says what pages would load from other hosts: `python site/offline.py FOLDER`.

It reads the files and opens nothing.  `browse.py` asks a browser.
"""

import re
import sys
from pathlib import Path

TAGS = r"<(?:script|img|iframe|source|video|embed|link)\b[^>]*?"
ELSEWHERE = r"(?:https?:)?//[^\"'\s)>]+"
LOADS = re.compile(rf"{TAGS}\b(?:src|href)=[\"']?({ELSEWHERE})")
STYLE = re.compile(rf"(?:@import\s*|url\(\s*|@import\s+url\(\s*)[\"']?({ELSEWHERE})")
SCRIPT = re.compile(rf"\bimport\s[^;]*?from\s*[\"']({ELSEWHERE})")


def loads(text):
    """Addresses on other hosts that a page or a style sheet loads by itself."""
    return [
        match[1] for rule in (LOADS, STYLE, SCRIPT) for match in rule.finditer(text)
    ]


def main(folder):
    """Exit 1 if a file of `folder` loads something from elsewhere."""
    files = [
        p for p in sorted(Path(folder).rglob("*")) if p.suffix in (".html", ".css")
    ]
    found = {path: loads(path.read_text(encoding="utf-8")) for path in files}
    for path, addresses in found.items():
        for address in addresses:
            print(f"{path} loads {address}")
    return 1 if any(found.values()) or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
