"""Schedules: the picture is the test, closed forms, published figures, broken ones."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import d2lpar
from d2lpar import schedule
from d2lpar.schedule import Action, ScheduleError, make, parse, simulate, validate

ONE_F_ONE_B = """\
rank 0   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
rank 1   1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"""

PICTURES = {
    ("naive", 2, 2): """\
rank 0   0F0 0B0 0F1 0B1
rank 1   1F0 1B0 1F1 1B1""",
    ("gpipe", 2, 3): """\
rank 0   0F0 0F1 0F2 0B0 0B1 0B2
rank 1   1F0 1F1 1F2 1B0 1B1 1B2""",
    ("1f1b", 3, 4): ONE_F_ONE_B,
    ("pipedream", 3, 4): ONE_F_ONE_B,
    ("interleaved", 2, 2): """\
rank 0   0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
rank 1   1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1""",
    ("interleaved", 2, 4): """\
rank 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
rank 1   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3""",
    ("zb-h1", 2, 3): """\
rank 0   0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
rank 1   1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2""",
    ("zb-h2", 2, 3): """\
rank 0   0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2
rank 1   1F0 1B0 1F1 1B1 1F2 1B2 1W0 1W1 1W2""",
}


@pytest.mark.parametrize("which", PICTURES, ids=str)
def test_the_schedule_is_its_picture(which):
    made = make(*which)
    assert str(made) == PICTURES[which]
    assert parse(str(made)).ranks == made.ranks
    assert (made.p, made.m) == which[1:]


def times(sim):
    """{action: (start, stop)}"""
    return {event.name: (event.start, event.stop) for event in sim.timeline}


def test_time_slots_are_those_of_the_picture():
    """Three stages, two micro-batches, a backward takes two slots.

    rank 0   F0 F1 .  .  .  .  B0 B0 .  B1 B1      (B1 waits for rank 1)
    rank 1   .  F0 F1 .  B0 B0 .  B1 B1
    rank 2   .  .  F0 B0 B0 F1 B1 B1               1F1B: F1 after B0
    """
    sim = simulate(make("1f1b", 3, 2))
    assert times(sim) == {
        "0F0": (0, 1), "0F1": (1, 2), "0B0": (7, 9), "0B1": (10, 12),
        "1F0": (1, 2), "1F1": (2, 3), "1B0": (5, 7), "1B1": (8, 10),
        "2F0": (2, 3), "2B0": (3, 5), "2F1": (5, 6), "2B1": (6, 8),
    }  # fmt: skip
    assert sim.elapsed == 12 and sim.spans == [12, 9, 6]
    assert sim.bubble == 0.5 and sim.in_flight == [2, 2, 1]


SIZES = [(p, m) for p in (1, 2, 3, 4, 5, 8) for m in (1, 2, 3, 4, 8, 13)]
EVERY = [
    (name, p, m, v)
    for name in schedule.MAKERS
    for p, m in SIZES
    for v in ((2, 3, 4) if name == "interleaved" else (None,))
]


@pytest.mark.parametrize("name", schedule.MAKERS)
def test_every_schedule_is_valid(name):
    for which in EVERY:
        if which[0] == name:
            validate(make(*which))
            assert make(*which).splits == name.startswith("zb")


def whole(sim):
    """What is lost, in units of time: the longest span without its work."""
    return sim.bubble * max(sim.spans)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubbles_are_those_of_the_closed_forms(p, m):
    """t = F + B + W; times that are sums of halves, so that equality is exact."""
    F, B, W = 1.0, 1.5, 0.5
    t = F + B + W
    lost = {
        name: whole(simulate(make(name, p, m), F, B, W)) for name in schedule.MAKERS
    }
    assert lost["naive"] == pytest.approx((p - 1) * m * t)
    assert lost["gpipe"] == pytest.approx((p - 1) * t)
    assert lost["1f1b"] == lost["pipedream"] == pytest.approx((p - 1) * t)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("v", [2, 4])
def test_interleaved_loses_1_v_of_it(p, rounds, v):
    sim = simulate(make("interleaved", p, rounds * p, v), 1 / v, 2 / v)
    assert whole(sim) == pytest.approx((p - 1) * 3 / v)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_zero_bubble_forms(p):
    """ZB-H1 loses (p-1)(F + B - W), ZB-H2 (p-1)(F + B - 2W); W of H2 fills it all."""
    m = 3 * p
    for F, B, W in [(1, 1, 1), (4, 3, 2)]:
        H1 = simulate(make("zb-h1", p, m), F, B, W)
        H2 = simulate(make("zb-h2", p, m), F, B, W)
        assert whole(H1) == pytest.approx((p - 1) * (F + B - W))
        assert whole(H2) == pytest.approx((p - 1) * (F + B - 2 * W))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_in_flight_are_exact_integers(p, m):
    held = {name: simulate(make(name, p, m)).in_flight for name in schedule.MAKERS}
    assert held["naive"] == [1] * p and held["gpipe"] == [m] * p
    assert held["1f1b"] == held["pipedream"] == [min(m, p - r) for r in range(p)]
    if m >= 2 * p:
        assert held["zb-h1"] == [p] * p and held["zb-h2"] == [2 * p - 1] * p
    if m > p and m % p == 0:  # (v-1) p + 2 (p-1-r) warm ones, and one more
        assert held["interleaved"] == [p + 2 * (p - 1 - r) + 1 for r in range(p)]


# Qi et al. 2024, tables 4 and 5: 6.2B model, p = 8; milliseconds.
PUBLISHED = [
    (24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),
    (64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"m={row[0]}")
def test_the_nine_published_rates(row):
    m, F, B, W, comm, *rates = row
    for name, rate in zip(("1f1b", "zb-h1", "zb-h2"), rates, strict=True):
        sim = simulate(make(name, 8, m), F, B, W, comm)
        assert round(sim.bubble, 4) == rate


def test_unequal_stages():
    """The slowest stage sets the pace."""
    sim = simulate(make("gpipe", 3, 4), forward=[1, 3, 1], backward=0)
    assert sim.elapsed == 1 + 4 * 3 + 1
    assert sim.spans == [14, 13, 10]


def test_communication_passes_between_ranks_only():
    two = parse("0F0 1F0 1B0 0B0")  # both stages on one rank
    assert simulate(two, comm=10).elapsed == 6
    assert simulate(make("naive", 2, 1), comm=10).elapsed == 6 + 20


def test_a_rank_may_have_nothing_to_do():
    both = parse("0F0 1F0 1B0 0B0").ranks
    sim = simulate(schedule.Schedule((*both, ())))
    assert sim.elapsed == 6 and sim.spans == [6, 0] and sim.in_flight == [2, 0]


def test_values_show_themselves():
    sim = simulate(make("1f1b", 3, 2))
    assert repr(sim) == "Simulation: 12 in all, bubble 50.0%, in flight 2, 2, 1"
    assert repr(make("gpipe", 2, 3)) == "Schedule gpipe: 2 ranks, 3 micro-batches"
    assert str(Action(2, "F", 0)) == "2F0"
    assert d2lpar.schedule is schedule and "schedule" in dir(d2lpar)


# Broken: the rule, and the cells that are marked

BROKEN = [
    ("text", "0F0 0X0", []),
    ("text", "", []),
    ("stages", "0F0 0B0\n2F0 2B0", ["2F0"]),
    ("micro-batches", "0F1 0B1", ["0F1"]),
    ("home", "0F0 1F0 0B0\n1B0", ["1B0"]),
    ("once", "0F0 0B0 0B0", ["0B0", "0B0"]),
    ("complete", "0F0 0F1 0B0", ["0B1?"]),
    ("complete", "0F0 0B0\n1F0", ["1B0?"]),
    ("complete", "0F0 0B0 0F1 0B1\n1F0 1B0", ["1F1?"]),
    ("weights", "0F0 0B0 0W0 0F1 0B1", ["0W1?"]),
    ("weights", "0F0 0B0 0W0\n1F0 1B0", ["1W0?"]),
    ("forward first", "0B0 0F0", ["0B0"]),
    ("backward first", "0F0 0W0 0B0", ["0W0"]),
    # rank 0 wants the backward of 0 before it sends 1, which rank 1 wants first
    ("circle", "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", ["0B0", "1F1"]),
    # a backward on a stage before the one of the stage after it
    ("circle", "0F0 0B0 1F0 1B0", ["0B0"]),
    ("circle", "1F0 0F0 1B0 0B0", ["1F0"]),
]


@pytest.mark.parametrize(("rule", "text", "cells"), BROKEN, ids=lambda x: str(x)[:9])
def test_broken_schedules_are_shown_with_the_cell_marked(rule, text, cells):
    with pytest.raises(ScheduleError) as caught:
        validate(parse(text))
    message = str(caught.value)
    assert caught.value.rule == rule and schedule.RULES[rule] in message
    assert re.findall(r"\[(\w+\??)\]", message.partition("\n")[2]) == cells
    with pytest.raises(ScheduleError):
        simulate(parse(text))


def test_the_message_of_a_circle_says_who_waits():
    with pytest.raises(ScheduleError) as caught:
        validate(parse("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"))
    assert str(caught.value) == (
        "No rank can continue: 0B0 waits for 1B0, 1F1 waits for 0F1. "
        "(Ranks must not wait for each other in a circle.)\n"
        "rank 0   0F0 [0B0] 0F1 0B1\n"
        "rank 1   1F0 [1F1] 1B0 1B1"
    )


def test_of_a_long_row_the_part_around_the_cell_is_shown():
    text = str(make("gpipe", 2, 40)).replace(" 1B20", " 1B19")
    with pytest.raises(ScheduleError) as caught:
        validate(parse(text))
    first, second = str(caught.value).splitlines()[1:]
    assert "[1B19] [1B19]" in second and "..." in first and len(second) < 130


def test_schedules_without_actions():
    for empty in (schedule.Schedule(()), schedule.Schedule(((), ()))):
        with pytest.raises(ScheduleError, match="no action"):
            validate(empty)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("2f2b", 2, 2), "no schedule '2f2b'. Choose one of naive, gpipe"),
        (("gpipe", 0, 2), "p must be a whole number of at least 1, not 0"),
        (("gpipe", 2, 1.5), "m must be a whole number of at least 1, not 1.5"),
        (("gpipe", True, 1), "p must be a whole number"),
        (("1f1b", 2, 2, 2), "Only interleaved takes v; 1f1b has one stage"),
        (("interleaved", 2, 2, 1), "v must be a whole number of at least 2, not 1"),
    ],
)
def test_bad_arguments_of_make(arguments, words):
    with pytest.raises(ValueError, match=words):
        make(*arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"forward": -1}, "forward must be a time of at least 0"),
        ({"backward": [1, 2, 3]}, "a list of 2"),
        ({"weight": float("nan")}, "weight must be a time"),
        ({"comm": -1}, "comm must be a time"),
    ],
)
def test_bad_times(options, words):
    with pytest.raises(ValueError, match=words):
        simulate(make("gpipe", 2, 2), **options)


# Any schedule at all: what validate accepts can be played, the rest cannot


@st.composite
def shuffled(draw):
    """A schedule of all its actions, in any order that keeps F before B."""
    p, m = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows = []
    for stage in range(p):
        order = draw(st.permutations([(k, i) for i in range(m) for k in "FB"]))
        row = [Action(stage, kind, micro) for kind, micro in order]
        places = {action: place for place, action in enumerate(row)}
        for i in range(m):
            f, b = Action(stage, "F", i), Action(stage, "B", i)
            if places[f] > places[b]:
                row[places[f]], row[places[b]] = b, f
        rows.append(tuple(row))
    return schedule.Schedule(tuple(rows))


@settings(max_examples=150, deadline=None)
@given(shuffled(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_what_is_valid_is_played_by_the_rules(made, forward, backward, comm):
    try:
        sim = simulate(made, forward, backward, 0.0, comm)
    except ScheduleError as error:
        assert error.rule == "circle"
        return
    span = times(sim)
    assert len(span) == sum(map(len, made.ranks))
    for row in made.ranks:
        ends = [span[str(action)] for action in row]
        assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:], strict=False))
        for action in row:
            for need in schedule.needs(action, made.stages):
                late = comm * (need.stage != action.stage)
                assert span[str(need)][1] + late <= span[str(action)][0]
