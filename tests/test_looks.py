import matplotlib.pyplot as plt

from d2lpar.report.looks import block, halved


def test_a_block_says_whose_piece_it_is():
    _, ax = plt.subplots()
    for value in (0, 1, 30, 33, 1110, 3333):
        block(ax, 0, 0, value)
    assert [x.get_text() for x in ax.texts] == [" ", "A0", "B2", "AB2", "BCD0", "+2"]
    assert [bool(x.get_hatch()) for x in ax.patches] == [0, 0, 0, 1, 1, 1]
    plt.close("all")


def test_halves_side_by_side_and_sheets_that_are_added():
    _, ax = plt.subplots()
    cases = [((4, 6), 1, False), ((4, 6), 0, False), ((4, 6), -1, False)]
    for size, along, sums in [*cases, ((4, 6), -1, True)]:
        halved(ax, 0, 10, size, along, sums)
    boxes = [(*box.get_xy(), box.get_width(), box.get_height()) for box in ax.patches]
    assert boxes[:2] == [(3, 8, 3, 4), (0, 8, 3, 4)]  # B, and A on its left
    assert boxes[2:4] == [(0, 8, 6, 2), (0, 10, 6, 2)]  # B, and A above it
    assert boxes[4:] == [(0, 8, 6, 4), (1, 9, 6, 4), (0, 8, 6, 4)]
    assert [text.get_text().strip() for text in ax.texts] == list("BABA") + [""] * 3
    assert [bool(box.get_hatch()) for box in ax.patches] == [0] * 5 + [1, 1]
    plt.close("all")
