"""Schedules: the picture is the test, closed forms, published figures, broken ones."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import d2lpar
from d2lpar.pipeline import schedule
from d2lpar.pipeline.schedule import (
    Action,
    ScheduleError,
    make,
    parse,
    simulate,
    validate,
)
from d2lpar.report.gantt import held_over_time

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
    ("breadth-first", 2, 2): """\
rank 0   0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
rank 1   1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1""",
    ("zb-v", 2, 3): """\
rank 0   0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0B0 0W0 3F2 3B2 3W2 0B1 0W1 0B2 0W2
rank 1   1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1B1 2B2 1B2 1W1 2W2 1W2""",
    ("dualpipe", 2, 4): """\
rank 0   0F0 1F2 0F1 1B2 1W2 1F3 0B0 0W0 1B3 1W3 0B1 0W1
rank 1   0F2 1F0 0F3 1B0 1W0 1F1 0B2 0W2 1B1 1W1 0B3 0W3""",
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
    for v in ((2, 3, 4) if name in schedule.makers.TAKE_V else (None,))
    if name != "dualpipe" or p % 2 == 0
]


@pytest.mark.parametrize("name", schedule.MAKERS)
def test_every_schedule_is_valid(name):
    for which in EVERY:
        if which[0] == name:
            validate(make(*which))
            assert make(*which).splits == name.startswith(("zb", "dual"))


def whole(sim):
    """What is lost, in units of time: the longest span without its work."""
    return sim.bubble * max(sim.spans)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubbles_are_those_of_the_closed_forms(p, m):
    """t = F + B + W; times that are sums of halves, so that equality is exact."""
    F, B, W = 1.0, 1.5, 0.5
    t = F + B + W
    names = ("naive", "gpipe", "1f1b")
    lost = {name: whole(simulate(make(name, p, m), F, B, W)) for name in names}
    assert lost["naive"] == pytest.approx((p - 1) * m * t)
    assert lost["gpipe"] == pytest.approx((p - 1) * t)
    assert lost["1f1b"] == pytest.approx((p - 1) * t)


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
    names = [name for name in schedule.MAKERS if name != "dualpipe"]
    held = {name: simulate(make(name, p, m)).in_flight for name in names}
    assert held["naive"] == [1] * p and held["gpipe"] == [m] * p
    assert held["1f1b"] == [min(m, p - r) for r in range(p)]
    if m >= 2 * p:
        assert held["zb-h1"] == [p] * p and held["zb-h2"] == [2 * p - 1] * p
    if m > p and m % p == 0:  # (v-1) p + 2 (p-1-r) warm ones, and one more
        assert held["interleaved"] == [p + 2 * (p - 1 - r) + 1 for r in range(p)]
    assert held["breadth-first"] == [2 * m] * p
    if m >= 2 * p:
        assert held["zb-v"] == [2 * p] * p and held["dualpipe-v"] == [2 * p + 1] * p


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_the_bubbles_of_schedules_on_a_v(p, rounds):
    """ZB-V loses nothing with equal times; DualPipe and its V (p-1)(F + B - W)."""
    m = rounds * p
    breadth = simulate(make("breadth-first", p, m, 3), 1, 2)
    assert whole(breadth) == pytest.approx((p - 1) * 3)
    assert whole(simulate(make("zb-v", p, m), 1, 1, 1)) == pytest.approx(0)
    for F, B, W in [(1, 1, 1), (4, 3, 2), (3, 3, 1)]:
        V = simulate(make("dualpipe-v", p, m), F, B, W)
        both = simulate(make("dualpipe", 2 * p, 2 * m), F, B, W)
        assert whole(V) == pytest.approx((p - 1) * (F + B - W)) == whole(both)
        assert both.in_flight == [2 * p + 1] * 2 * p


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [2, 3])
def test_the_published_bubble_of_dualpipe(p, m):
    """(PP/2 - 1)(F&B + B - 3W), where B is whole, and F&B takes F + B.

    DeepSeek-V3 2024, table 2.  It is exact for equal times; PP = 2p.
    """
    F, whole_B, W, block = 1, 2, 1, 3
    form = (p - 1) * (block + whole_B - 3 * W)
    for made in (make("dualpipe-v", p, m * p), make("dualpipe", 2 * p, 2 * m * p)):
        assert max(schedule.idle(made, F, whole_B - W, W, block)) == form
        shorter = schedule.idle(made, F, whole_B - W, W, 0.8 * block)
        assert max(shorter) <= (p - 1) * (0.8 * block + whole_B - 3 * W) + 1e-9


def test_blocks_are_an_f_and_the_whole_backward_pass_of_another_stage():
    row = parse("0F0 0F1 1B0 1W0 1F1 1B1 1W1 0F2 1B2 0W1").ranks[0]
    assert [" ".join(map(str, block)) for block in schedule.blocks(row)] == [
        "0F0", "0F1 1B0 1W0", "1F1", "1B1", "1W1", "0F2", "1B2", "0W1"
    ]  # fmt: skip


# What waits for its weights


@pytest.mark.parametrize("kept", [0, 0.25, 0.5, 1, 1.75])
@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
def test_what_waits_for_its_weights_counts_apart(kept, name):
    sim = simulate(made := make(name, 3, 7), 3, 2.5, 2, 0.25, kept)
    for rank, row in enumerate(made.ranks):
        held, most = 0, 0
        for kind in (action.kind for action in row):
            held += {"F": 1, "B": kept - 1, "W": -kept}[kind]
            most = max(most, held)
        assert most == pytest.approx(sim.in_flight[rank])
        assert held == pytest.approx(0)
        assert max(held_over_time(sim, rank)[1]) == pytest.approx(most)


def test_nothing_waits_for_weights_where_they_are_not_apart():
    assert simulate(make("1f1b", 3, 6), kept=0.5).in_flight == [3, 2, 1]
    assert simulate(make("zb-h1", 3, 6), weight=1, kept=0).in_flight == [3, 2, 1]


def test_a_bad_share_is_refused():
    with pytest.raises(ValueError, match="kept must be a share of at least 0, not nan"):
        simulate(make("1f1b", 2, 2), kept=float("nan"))


# PyTorch's lists of actions

PAIRS = [
    ("GPipe", "gpipe", None),
    ("1F1B", "1f1b", None),
    ("LoopedBFS", "breadth-first", 2),
    ("LoopedBFS", "breadth-first", 3),
    ("Interleaved1F1B", "interleaved", 2),
    ("Interleaved1F1B", "interleaved", 3),
    ("InterleavedZeroBubble", "zb-h1", 1),
    ("ZBVZeroBubble", "zb-v", None),
    ("DualPipeV", "dualpipe-v", None),
]


@pytest.mark.parametrize(("kind", "name", "v"), PAIRS)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_action_by_action_they_are_torchs(kind, name, v, p):
    for m in (2 * p, 3 * p, 2 * p + 2, 4 * p + 1):
        try:
            theirs = schedule.from_torch(kind, p, m, v)
        except ValueError as refusal:
            assert "number of rounds" in str(refusal)  # m that are no rounds of p
            continue
        ours = make(name, p, m, v if name in schedule.makers.TAKE_V else None)
        found = schedule.differences(ours, theirs)
        if kind == "LoopedBFS":  # goes back in reverse order
            found = schedule.differences(ours, backwards_turned(theirs))
        if kind == "1F1B":  # its list numbers the last rank's forwards from 1
            assert {rank for rank, *_ in found} <= {p - 1}
            assert all(b == a._replace(micro=a.micro + 1) for _, _, a, b in found)
        else:
            assert found == []
            validate(theirs)


def backwards_turned(made):
    """The schedule with the micro-batches of its backward passes in reverse order."""
    turn = lambda a: a._replace(micro=made.m - 1 - a.micro) if a.kind == "B" else a
    rows = tuple(tuple(map(turn, row)) for row in made.ranks)
    return schedule.Schedule(rows, made.name)


def test_torch_reads_as_text_and_says_what_it_refuses():
    theirs = schedule.from_torch("DualPipeV", 1, 2)
    assert str(theirs) == "rank 0   0F0 1F0 0F1 1B0 1W0 1F1 0B0 0W0 1B1 1W1 0B1 0W1"
    assert repr(theirs).startswith("Schedule torch DualPipeV: 1 ranks")
    with pytest.raises(ValueError, match="at least as many microbatches as stages"):
        schedule.from_torch("DualPipeV", 2, 2)
    with pytest.raises(ValueError, match="Unknown schedule name 'ZeroBubble'"):
        schedule.from_torch("ZeroBubble", 2, 2)


def test_differences_are_named_and_a_row_may_end_early():
    ours, theirs = parse("0F0 0B0 0F1 0B1"), parse("0F0 0F1 0B0")
    F1, B0, B1 = Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1)
    wanted = [(0, 1, B0, F1), (0, 2, F1, B0), (0, 3, B1, None)]
    assert schedule.differences(ours, theirs) == wanted
    assert schedule.differences(ours, ours) == []


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


@pytest.mark.parametrize(
    ("text", "copies", "words"),
    [
        ("0F0 0B0\n0F1 0B1", 1, "Stage 0 is on rank 0 and on rank 1. (Each stage,"),
        ("0F0\n0F1 0B1 0B0", 2, "on rank 0 and on rank 1 for micro-batch 0."),
        ("0F0 0B0\n0F1 0B1\n0F2 0B2", 2, "rank 0 and on rank 1 and on rank 2 for"),
    ],
)
def test_copies_of_a_stage_must_be_declared_and_whole(text, copies, words):
    with pytest.raises(ScheduleError) as caught:
        validate(parse(text, copies=copies))
    assert words in str(caught.value) and caught.value.rule == "home"
    validate(parse("0F0 0B0\n0F1 0B1", copies=2))
    validate(parse(str(make("dualpipe", 4, 8)), copies=2))


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
        (("1f1b", 2, 2, 2), "Only interleaved and breadth-first take v, the stages"),
        (("dualpipe", 3, 6), "dualpipe needs an even number of ranks, not 3"),
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
