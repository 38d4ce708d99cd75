"""Pictures that chapters draw: what a block says and how it looks."""

import matplotlib.pyplot as plt
import pytest

from d2lpar.report.looks import TILES, block


@pytest.mark.parametrize(
    ("value", "text", "colour"),
    [
        (0, "", "white"),
        (1, "A0", TILES[0]),
        (30, "B2", TILES[1]),
        (4000, "D3", TILES[3]),
        (33, "AB2", "white"),
        (1110, "BCD0", "white"),
        (3333, "+2", "white"),
    ],
)
def test_a_block_says_whose_piece_it_is(value, text, colour):
    _, ax = plt.subplots()
    assert block(ax, 0, 0, value) == text == ax.texts[0].get_text()
    box = ax.patches[0]
    assert box.get_facecolor() == plt.matplotlib.colors.to_rgba(colour)
    assert bool(box.get_hatch()) == (len(text) > 2 or text[:1] == "+")
    plt.close("all")
