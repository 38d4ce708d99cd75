"""`check` itself: what it says, what it counts, and that nothing gets past it."""

import math
import sys
import time

import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import WATCHDOG
from d2lpar import checks
from d2lpar.report import Report, Row
from d2lpar.rubrics import judging
from d2lpar.rubrics.guard import replaced
from d2lpar.rubrics.judging import Case, Exercise, Mistake
from d2lpar.rubrics.requirements import (
    bytes_sent,
    extra_memory,
    from_messages,
    messages,
    rounds,
    same_bits,
    untouched,
)
from zoo.ex_05_1 import in_turn, torch_scatter


def pass_on(x):
    """The exercise of these tests: rank r returns what rank r-1 has."""
    n, r = dist.get_world_size(), dist.get_rank()
    incoming = torch.empty_like(x)
    works = [dist.isend(x, (r + 1) % n), dist.irecv(incoming, (r - 1) % n)]
    for work in works:
        work.wait()
    return incoming


def cases(rng):
    for n in (2, 3, 4):
        inputs = [torch.from_numpy(rng.normal(size=5)) for _ in range(n)]
        yield Case(
            n,
            f"{n} ranks",
            [(x.clone(),) for x in inputs],
            [inputs[r - 1] for r in range(n)],
            {"S": 5},
        )


RING = Exercise(
    "99.1",
    "Pass on",
    cases,
    [
        bytes_sent(lambda case: 40),
        messages(lambda case: case.n),
        rounds(lambda case: 1),
        extra_memory(lambda case: 40),
        from_messages(),
        untouched(),
    ],
    [Mistake("own", lambda a: a.right is False, "It keeps its own.", "Look left.")],
    processes=(),
)


@pytest.fixture
def ring(monkeypatch):
    """`check("99.1", ...)` is the exercise above."""
    monkeypatch.setattr(checks, "find", {"99.1": RING}.get)
    return lambda function, **options: d2lpar.check("99.1", function, **options)


def test_a_right_answer_passes(ring):
    report = ring(pass_on)
    assert report.passed and report.score == 1.0 and report.mistake is None
    assert [row.passed for row in report.rows] == [True] * 7
    assert str(report).startswith("99.1 Pass on: passed")
    assert "right in 3 of 3 calls" in str(report)


def test_a_stub_is_not_done_yet(ring):
    def stub(x):
        raise NotImplementedError

    report = ring(stub)
    assert (report.done, report.passed, report.score) == (False, False, 0.0)
    assert str(report) == "99.1 Pass on: not done yet"


def keeps_own(x):
    return x.clone()


def test_a_wrong_answer_is_told_where_and_why(ring):
    report = ring(keeps_own)
    assert (report.passed, report.score, report.mistake) == (False, 0.0, "own")
    text = str(report)
    assert "A failing call: 2 ranks" in text
    assert "rank 0 came     [" in text and "rank 0 expected [" in text
    assert "Likely: It keeps its own. (hint=True says more)" in text
    assert "Look left." in str(ring(keeps_own, hint=True))


def twice(x):
    pass_on(x)
    return pass_on(x)


def test_a_right_outcome_at_twice_the_cost_earns_a_part(ring):
    report = ring(twice)
    failed = [row.label for row in report.rows if not row.passed]
    assert failed == ["bytes sent by a rank", "messages of all ranks", "rounds"]
    assert report.score == 0.5 + 0.25 * 2 / 5
    assert report.mistake == "costly"
    assert "The timeline of that call:\n" in str(report)


def spoils(x):
    result = pass_on(x)
    x.zero_()
    return result


def test_a_changed_input_is_seen(ring):
    assert [row.label for row in ring(spoils).rows if not row.passed] == [
        "ranks whose input changed"
    ]


def gathers(x):
    n, r = dist.get_world_size(), dist.get_rank()
    everything = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(everything, x)
    return everything[r - 1]


def test_a_native_collective_earns_nothing(ring):
    report = ring(gathers)
    assert (report.score, report.mistake) == (0.0, "native collective")
    assert "all_gather" in report.sentence


def constant(x):
    return torch.zeros(5, dtype=torch.float64)


def hangs(x):
    dist.recv(torch.empty_like(x), (dist.get_rank() - 1) % dist.get_world_size())


def loops(x):
    while True:
        time.sleep(0.001)


def polls(x):
    work = dist.irecv(torch.empty_like(x), (dist.get_rank() - 1) % 2)
    while not work.is_completed():
        pass


def raises(x):
    return x[7]


def leaves(x):
    sys.exit(0)


def swallows(x):
    try:
        hangs(x)
    except BaseException:
        return x


@pytest.mark.parametrize(
    "answer, words",
    [
        (constant, "right in 0 of 3 calls"),
        (hangs, "deadlock"),
        (loops, "no progress"),
        (polls, "not at an end"),
        (raises, "IndexError"),
        (leaves, "sys.exit(0)"),
        (swallows, "deadlock"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_whatever_it_does_a_report_comes(ring, monkeypatch, answer, words):
    start = time.monotonic()
    with monkeypatch.context() as hurried:
        hurried.setattr(judging, "PATIENCE", 1.0)
        hurried.setattr(judging, "LONGEST", 2.0)
        report = ring(answer)
    assert time.monotonic() - start < WATCHDOG
    assert not report.passed and report.score == 0.0
    assert words in str(report)
    assert ring(pass_on).passed  # and nothing is left behind


def test_a_replaced_function_of_the_library_is_named(ring, monkeypatch):
    monkeypatch.setattr(judging, "same", lambda *_: True)
    report = ring(keeps_own)
    assert (report.score, report.mistake) == (0.0, "replaced")
    assert "d2lpar.rubrics.judging.same" in report.sentence


def test_a_function_that_is_replaced_by_the_answer_is_named(ring, monkeypatch):
    kept = judging.close

    def cheats(x):
        judging_ = sys.modules["d2lpar.rubrics.judging"]
        judging_.close = lambda *_: True
        return x.clone()

    try:
        report = ring(cheats)
    finally:
        judging.close = kept
    assert (report.score, report.mistake) == (0.0, "replaced")
    assert replaced() == []


def test_torchs_own_functions_are_guarded(monkeypatch):
    monkeypatch.setattr(torch, "equal", lambda *_: True)
    assert replaced() == ["torch.equal"]


def test_another_seed_draws_other_numbers(monkeypatch):
    drawn = []

    def remember(rng):
        for case in cases(rng):
            drawn.append(case.inputs[0][0].tolist())
            yield case

    exercise = Exercise("99.1", "Pass on", remember, processes=())
    monkeypatch.setattr(checks, "find", {"99.1": exercise}.get)
    for seed in (0, 1, 0):
        d2lpar.check("99.1", pass_on, seed=seed)
    first, second, third = drawn[:3], drawn[3:6], drawn[6:]
    assert first == third != second


def test_real_processes_are_tried_where_the_exercise_says_so(monkeypatch):
    def knows_the_simulator(x):
        thread = sys.modules["threading"].current_thread().name
        return pass_on(x) if thread.startswith("rank") else x

    memory = [extra_memory(lambda case: 40)]  # counted in the simulator only
    exercise = Exercise("99.1", "Pass on", cases, memory)
    monkeypatch.setattr(checks, "find", {"99.1": exercise}.get)
    assert d2lpar.check("99.1", pass_on).passed
    report = d2lpar.check("99.1", knows_the_simulator)
    assert [row.passed for row in report.rows] == [True, True, False]
    assert report.rows[2].label == "on real processes" and report.score == 0.0


def through_a_module(x):
    """Zeros travel; the numbers go through a module, which threads share."""
    n, r = dist.get_world_size(), dist.get_rank()
    board = vars(torch).setdefault("board", {})
    board[n, r] = x.clone()
    pass_on(torch.zeros_like(x))
    return board.get((n, (r - 1) % n), x)


def test_a_side_channel_of_threads_does_not_pass(monkeypatch):
    exercise = Exercise("99.1", "Pass on", cases)
    monkeypatch.setattr(checks, "find", {"99.1": exercise}.get)
    report = d2lpar.check("99.1", through_a_module)
    vars(torch).pop("board")
    assert [row.passed for row in report.rows] == [True, False]
    assert report.score == 0.0


def test_the_notebooks_own_defaults_do_not_matter(ring, monkeypatch):
    monkeypatch.setitem(d2lpar.launch._defaults, "cluster", d2lpar.Cluster.of("2xA100"))
    assert ring(pass_on).passed  # on 4 ranks


def test_a_pattern_in_the_failing_cases_is_told(monkeypatch):
    def not_for_three(x):
        return pass_on(x) if dist.get_world_size() != 3 else x

    exercise = Exercise("99.1", "Pass on", cases)
    monkeypatch.setattr(checks, "find", {"99.1": exercise}.get)
    report = d2lpar.check("99.1", not_for_three)
    assert report.sentence == "It fails exactly where the number of ranks is odd."


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"no exercise '05.9': there are 05.1"):
        d2lpar.check("05.9", pass_on)
    with pytest.raises(ValueError, match=r"no exercise '77': there are in chapters 00"):
        d2lpar.check("77", pass_on)
    with pytest.raises(TypeError, match=r'check\("05.1", ...\) wants your function'):
        d2lpar.check("05.1", 3)


def test_bits_are_compared_and_not_only_numbers():
    requirement = same_bits()

    class Two:
        case = Case(2, "", [], [])
        came = [torch.ones(1, dtype=torch.float64)] * 2

    assert requirement.holds(Two)
    Two.came = [torch.ones(1).double(), torch.ones(1).double() * (1 + 2e-16 * 2)]
    assert not requirement.holds(Two)


def test_equality_is_strict_in_kind_and_shape():
    same = judging.same
    one = torch.ones(2, dtype=torch.float64)
    assert same(one, one.clone()) and not same(one, one.float())
    assert not same(one, one.reshape(2, 1)) and not same([1.0, 1.0], one)
    assert not same(one * math.nan, one) and not same(None, one)
    assert same([1, (2.0, one)], (1, [2.0, one])) and not same([1], [1, 1])
    assert same(2, 2.0) and not same(True, 1) and not same("1", 1)
    assert same({"a": 1}, {"a": 1}) and not same({"a": 1}, {"b": 1})


def test_the_report_in_a_notebook():
    rows = [Row("outcome", "<b>", "all", False, "", True)]
    report = Report("99.1", "Pass on", rows, sentence="So & so.")
    html = report._repr_html_()
    assert "&lt;b&gt;" in html and "So &amp; so." in html
    assert '<th scope="row">outcome</th>' in html


def test_a_failing_report_shows_the_picture(ring, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda x, **_: shown.append(x))
    ring(pass_on)._ipython_display_()
    assert len(shown) == 1 and set(shown[0]) == {"text/plain", "text/html"}
    ring(twice)._ipython_display_()
    assert len(shown) == 3


def test_no_output_of_a_check_but_its_report(capfd):
    d2lpar.check("05.1", in_turn), d2lpar.check("05.1", torch_scatter)
    assert capfd.readouterr() == ("", "")  # nbgrader fails a cell that writes errors
