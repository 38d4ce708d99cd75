"""The README's picture is what its script draws from recorded events."""

import base64
import importlib.util
import re

from PIL import Image

from conftest import ROOT
from d2lpar.tools import notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMITTED = ROOT / "pictures" / "gather_ring.png"


def script():
    spec = importlib.util.spec_from_file_location("cover", COMMITTED.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_the_one_that_its_script_draws(tmp_path):
    script().draw(tmp_path / "new.png")
    old, new = (Image.open(path) for path in (COMMITTED, tmp_path / "new.png"))
    assert old.text["Description"] == new.text["Description"]
    assert COMMITTED.stat().st_size < 150_000
    if old.text["Software"] == new.text["Software"]:  # the same matplotlib
        pngs = COMMITTED.read_bytes(), (tmp_path / "new.png").read_bytes()
        assert notebooks.same_picture(*map(base64.b64encode, pngs))


def test_the_readme_shows_it_with_the_times_of_the_runs():
    alt, path = re.search(r"!\[([^\]]+)\]\((pictures/[^)]+)\)", README).groups()
    gather, ring = script().runs().values()
    assert ROOT / path == COMMITTED
    for run in (gather, ring):
        assert f"{run.elapsed * 1e6:.0f} us" in alt
    assert gather.results[0][0] == ring.results[3][-1] == 1.5
