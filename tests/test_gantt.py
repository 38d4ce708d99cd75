"""The picture of a schedule: every action a box, every count a step."""

import pytest

from d2lpar.pipeline.schedule import MAKERS, make, simulate
from d2lpar.report.gantt import DARKER, FACES, held_over_time


def boxes(figure):
    """{(rank, start, width): colour} of the Gantt chart."""
    from matplotlib.colors import to_hex

    found = {}
    for bar in figure.axes[0].patches:
        rank = round(bar.get_y() + bar.get_height() / 2)
        found[rank, bar.get_x(), bar.get_width()] = to_hex(bar.get_facecolor()).upper()
    return found


@pytest.mark.parametrize("name", MAKERS)
def test_every_action_is_a_box_in_its_place_and_colour(name):
    p = 4 if name == "dualpipe" else 3
    sim = simulate(make(name, p, 4), 1, 2, 1, 0.25)
    found = boxes(sim.plot())
    wanted = {}
    for event in sim.timeline:
        stage, kind = int(event.name[0]), event.name[1]
        dark = event.rank != stage if name == "dualpipe" else stage >= 3
        colour = (DARKER if dark else FACES)[kind]
        wanted[event.rank, event.start, event.stop - event.start] = colour
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("name", MAKERS)
def test_the_steps_are_what_is_held(name):
    sim = simulate(make(name, 4, 5), 1, 1.5, 0.5)
    for rank in range(4):
        _, counts = held_over_time(sim, rank)
        assert max(counts) == sim.in_flight[rank] and counts[0] == counts[-1] == 0
        assert all(abs(a - b) == 1 for a, b in zip(counts, counts[1:], strict=False))


def test_numbers_are_written_where_there_is_room():
    small = simulate(make("gpipe", 2, 3)).plot()
    texts = sorted(int(text.get_text()) for text in small.axes[0].texts)
    assert texts == [0] * 4 + [1] * 4 + [2] * 4
    assert not simulate(make("gpipe", 2, 200)).plot().axes[0].texts


@pytest.mark.parametrize(("name", "p", "m"), [("1f1b", 4, 8), ("zb-h1", 8, 12)])
def test_nothing_overlaps_and_nothing_is_cut_off(name, p, m):
    figure = simulate(make(name, p, m)).plot("A title")
    figure.canvas.draw()
    top, below = figure.axes
    parts = [top._left_title, top.get_legend(), *figure.legends]
    boxes = [part.get_window_extent() for part in parts]
    boxes += [top.yaxis.get_tightbbox(), below.get_tightbbox()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(b.x1 <= figure.bbox.x1 and b.y1 <= figure.bbox.y1 for b in boxes)


def test_title_and_words():
    figure = simulate(make("1f1b", 3, 2)).plot("1F1B")
    assert figure.axes[0].get_title(loc="left") == "1F1B"
    assert figure.alt.startswith("Gantt chart of 3 ranks: 12 boxes in 12 units of time")
    data, _ = figure._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
