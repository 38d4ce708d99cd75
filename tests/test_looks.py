import matplotlib.pyplot as plt

from d2lpar.report.looks import block


def test_a_block_says_whose_piece_it_is():
    _, ax = plt.subplots()
    for value in (0, 1, 30, 33, 1110, 3333):
        block(ax, 0, 0, value)
    assert [x.get_text() for x in ax.texts] == [" ", "A0", "B2", "AB2", "BCD0", "+2"]
    assert [bool(x.get_hatch()) for x in ax.patches] == [0, 0, 0, 1, 1, 1]
    plt.close("all")
