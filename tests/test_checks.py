"""`check` itself: what it says, what it counts, and that nothing gets past it."""

import _thread
import dataclasses
import functools
import io
import math
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rich.console
import torch
import torch.distributed as dist

import d2lpar
from conftest import WATCHDOG
from d2lpar.checks import checker, equality, judging, solutions
from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.guard import replaced
from d2lpar.checks.judging import Attempt, Case
from d2lpar.checks.report import Report, Row
from d2lpar.checks.showing import compared
from d2lpar.checks.solutions import ex_02_1, ex_05_1, ex_17_2, ex_18_3


def pass_on(x):
    """The exercise of these tests: rank r returns what rank r-1 has."""
    n, r = dist.get_world_size(), dist.get_rank()
    incoming = torch.empty_like(x)
    works = [dist.isend(x, (r + 1) % n), dist.irecv(incoming, (r - 1) % n)]
    for work in works:
        work.wait()
    return incoming


def cases(rng, sizes=(2, 3, 4)):
    for n in sizes:
        inputs = [torch.from_numpy(rng.normal(size=5)) for _ in range(n)]
        wanted = [inputs[r - 1] for r in range(n)]
        given = [(x.clone(),) for x in inputs]
        yield Case(n, judging.ranks(n), given, wanted, {"S": 5})


MEMORY = rows.extra_memory(lambda case: 40)
MESSAGES = rows.messages(lambda case: case.n)
ASKED = [rows.bytes_sent(lambda case: 40), MESSAGES, rows.rounds(lambda case: 1)]
ASKED += [MEMORY, rows.from_messages(), rows.untouched()]
RING = Exercise("99.1", title="Pass on", draw=cases, requirements=ASKED, processes=())
RING.mistakes["own"] = lambda a: a.right is False
RING.words["own"] = judging.Mistake("own", "It keeps its own.", "Look left.")


@pytest.fixture
def judged(monkeypatch):
    """`judged(...)` is `check` for the exercise with these requirements only."""

    def by(*requirements, **changes):
        usual = {"mistakes": {}, "requirements": requirements, "processes": (3,)}
        exercise = RING.but(**usual | changes)
        monkeypatch.setattr(checker, "find", {"99.1": exercise}.get)
        return functools.partial(d2lpar.check, "99.1")

    return by


@pytest.fixture
def ring(judged):
    return judged(*ASKED, processes=(), mistakes=RING.mistakes)


def missed(report):
    """Labels of the rows that do not pass."""
    return [row.label for row in report.rows if not row.passed]


def test_a_right_answer_passes(ring):
    report = ring(pass_on)
    assert report.passed and report.score == 1.0 and report.mistake is None
    assert [row.passed for row in report.rows] == [True] * 7
    assert str(report).startswith("99.1 Pass on: passed")
    assert "right in 3 of 3 calls" in str(report)


@pytest.mark.parametrize("words", [(), ("four lines of yours",)])
def test_a_stub_is_not_done_yet(ring, words):
    def stub(x):
        raise NotImplementedError(*words)

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
    assert missed(report) == ["bytes sent by a rank", "messages of all ranks", "rounds"]
    assert report.score == 0.5 + 0.25 * 3 / 6
    assert report.mistake == "costly"
    assert report.sentence.endswith("it sends 2n messages, and n are enough.")
    assert str(report).endswith("hint=True") and len(str(report).splitlines()) <= 20
    report.hint = True
    assert "The timeline of that call:\n" in str(report)


def spoils(x):
    result = pass_on(x)
    x.zero_()
    return result


def meets_first(x):
    dist.barrier()
    return pass_on(x)


@pytest.mark.parametrize(
    "answer, row",
    [
        (spoils, "ranks whose input changed"),
        (meets_first, "native collectives called"),
    ],
)
def test_what_is_forbidden_is_seen_and_leaves_the_other_figures(ring, answer, row):
    report = ring(answer)
    assert missed(report) == [row]
    assert report.score == 0.5 + 0.25 * 5 / 6


def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return everything[dist.get_rank() - 1]


def test_a_native_collective_earns_half_and_its_bytes_are_not_judged(ring):
    report = ring(gathers)
    assert (report.score, report.mistake) == (0.5, "native collective")
    assert "all_gather" in report.sentence
    assert {row.passed for row in report.rows} == {True, False, None}
    judged = [row.label for row in report.rows if row.passed is not None]
    assert judged == ["outcome", "native collectives called"]
    assert "right outcome, 0 of 1 requirements met" in str(report)
    assert "Score 0.50: 0.50 for the right outcome, 0.00 for 0 of 1" in str(report)


def test_a_call_in_which_a_vital_row_fails_is_not_right(judged):
    """Neither in the row of the outcome, nor as a reason to try real processes."""
    late = lambda x: twice(x) if dist.get_world_size() == 4 else pass_on(x)
    report = judged(dataclasses.replace(MESSAGES, vital=True))(late)
    assert [row.label for row in report.rows] == ["outcome", "messages of all ranks"]
    outcome = report.rows[0]
    assert (outcome.measured, outcome.passed) == ("right in 2 of 3 calls", False)
    assert outcome.where == report.failing == "4 ranks" and report.score == 0.0


def test_two_ways_round_the_exercise_are_both_judged(judged):
    other = judging.Requirement("other", lambda a: 1, lambda case: 0, instead=bool)
    report = judged(rows.from_messages(), other)(gathers)
    assert report.score == 0.5
    assert [row.passed for row in report.rows] == [True, False, False]


def misbehaves(how, x):
    """It does what the word says, or returns zeros."""
    r, n, incoming = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    if how == "hangs late" and r < 2:  # one message comes through, then all wait
        (dist.recv if r else dist.send)(incoming if r else x, 1 - r)
    if how.startswith("hangs"):
        dist.recv(incoming, (r - 1) % n)
    while how in ("loops", "meets"):
        time.sleep(0.001) if how == "loops" else dist.barrier()
    if how == "polls":
        work = dist.irecv(incoming, (r - 1) % 2)
        while not work.is_completed():
            pass
    if how == "raises":
        return x[7]
    if how == "lacks":
        x.clone().requires_grad_().unique(dim=0).sum().backward()
    if how == "writes":
        raise PermissionError("an answer writes no files")
    if how == "gathers":
        return gathers(x) + 1
    if how == "leaves":
        sys.exit(0)
    if how == "swallows":
        try:
            misbehaves("hangs", x)
        except BaseException:
            return x
    if how == "returns None":
        return None
    kinds = {"meta": {"device": "meta"}, "sparse": {"layout": torch.sparse_coo}}
    return torch.zeros(5, dtype=torch.float64, **kinds.get(how, {}))


@pytest.mark.parametrize(
    "how, words",
    [
        ("returns zeros", "right in 0 of 3 calls"),
        ("meta", "right in 0 of 3 calls"),
        ("sparse", "right in 0 of 3 calls"),
        ("gathers", "Likely: It calls all_gather"),
        ("hangs", "deadlock"),
        ("loops", "no progress"),
        ("polls", "is_completed()"),
        ("meets", "not at an end"),
        ("raises", "IndexError"),
        ("lacks", "raised NotImplementedError: the derivative for"),
        ("leaves", "sys.exit(0)"),
        ("swallows", "deadlock"),
    ],
)
def test_whatever_it_does_a_report_comes(ring, monkeypatch, how, words):
    start = time.monotonic()
    with monkeypatch.context() as hurried:
        hurried.setattr(judging, "PATIENCE", 1.0)
        if how == "meets":  # for ever; the others end by themselves, however busy
            hurried.setattr(judging, "LONGEST", 2.0)
        report = ring(functools.partial(misbehaves, how))
    assert time.monotonic() - start < WATCHDOG
    assert (report.done, report.passed, report.score) == (True, False, 0.0)
    assert words in str(report)
    assert ring(pass_on).passed  # and nothing is left behind


def test_what_is_refused_gets_no_hint_about_the_exercise(ring):
    report = ring(functools.partial(misbehaves, "writes"))
    assert report.mistake == "raises" and "an answer writes no files" in report.sentence


def test_a_replaced_function_of_the_library_is_named(ring, monkeypatch):
    monkeypatch.setattr(equality, "same", lambda *_: True)
    report = ring(keeps_own)
    assert (report.score, report.mistake) == (0.0, "replaced")
    assert "d2lpar.checks.equality.same" in report.sentence


def test_a_function_that_is_replaced_by_the_answer_is_named(ring, monkeypatch):
    def cheats(x):
        sys.modules["d2lpar.checks.equality"].close = lambda *_: True
        return x.clone()

    monkeypatch.setattr(equality, "close", equality.close)  # to be put back
    report = ring(cheats)
    monkeypatch.undo()
    assert (report.score, report.mistake) == (0.0, "replaced")
    assert replaced() == []


def test_torchs_own_functions_and_properties_are_guarded(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "equal", lambda *_: True)
        assert replaced() == ["torch.equal"]
    cell = {}
    exec(compile("def passed(self): return True", "<ipython-input-1>", "exec"), cell)
    monkeypatch.setattr(Report, "passed", property(cell["passed"]))
    assert replaced() == ["d2lpar.checks.report.Report.passed"]


def through_threading(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def through_a_pool(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def through_a_thread_of_a_thread(work):
    through_threading(lambda: through_a_pool(work))


def through_a_bare_thread(work):
    done = threading.Event()
    _thread.start_new_thread(lambda: (work(), done.set()), ())
    done.wait(WATCHDOG)


WAYS = [through_threading, through_a_pool, through_a_bare_thread]


@pytest.mark.parametrize("way", [*WAYS, through_a_thread_of_a_thread])
def test_what_threads_of_a_rank_do_is_its_own(way):
    def answer():
        kept, x = [], torch.ones(10, 10, requires_grad=True)
        way(lambda: kept.append((x @ x).sum().backward() or torch.ones(1000)))
        return len(kept), x.grad.sum().item()

    run = d2lpar.run(answer, world_size=2, cluster="2xA100")
    assert run.results == [(1, 2000.0)] * 2
    assert all(8000 > peak >= 4000 for peak in run.peak_memory)
    products = [e for e in run.timeline.events if e.name == "mm"]
    assert sum(e.flops for e in products) == 2 * 3 * 2000
    assert all(run.aside)


def test_who_computes_in_a_thread_earns_nothing():
    """Half of the points is for right outcomes that hide nothing."""
    official = solutions.of("02.1").make()

    def gradients(*given):
        found = []
        through_threading(lambda: found.extend(official(*given)))
        return found

    report = d2lpar.check("02.1", gradients)
    assert (report.score, report.mistake) == (0, "threads")
    assert missed(report) == ["work in threads of its own"]
    words = "Score 0: work is hidden in threads, so nothing else counts."
    assert report.reckoning == words


def tells(value, wanted):
    """Are these bytes in it?"""
    if isinstance(value, bytes):
        return wanted in value
    if torch.is_tensor(value):
        return value.numpy().tobytes() == wanted
    return isinstance(value, list | tuple) and any(tells(x, wanted) for x in value)


def looks_below(x):
    """It looks in the frames below for what rank r-1 has."""
    incoming, frame = pass_on(x), sys._getframe(1)
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if tells(value, incoming.numpy().tobytes()):
                raise LookupError(name)
        frame = frame.f_back
    return incoming


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_rank_finds_no_arguments_of_others(backend):
    case = next(iter(cases(np.random.default_rng(0))))
    assert RING.attempt(looks_below, case, backend=backend).right


def test_another_seed_draws_other_numbers(judged):
    drawn = []

    def remember(rng):
        for case in cases(rng):
            drawn.append(case.inputs[0][0].tolist())
            yield case

    check = judged(draw=remember, processes=())
    for seed in (0, 1, 0):
        check(pass_on, seed=seed)
    assert drawn[:3] == drawn[6:] != drawn[3:6]


def test_real_processes_are_tried_where_the_exercise_says_so(judged):
    def knows_the_simulator(x):
        thread = sys.modules["threading"].current_thread().name
        return pass_on(x) if thread.startswith("rank") else x

    check = judged(MEMORY)  # simulated ranks' only
    assert check(pass_on).passed
    report = check(knows_the_simulator)
    assert "Score 0: the outcome is not right on real processes" in str(report)
    assert [row.passed for row in report.rows] == [True, True, False]
    assert report.rows[2].label == "on real processes" and report.score == 0.0


@pytest.mark.parametrize("stuck, passes", [({0}, True), ({0, 2}, False)])
def test_who_is_stuck_once_on_processes_has_to_be_right_twice(
    stuck, passes, judged, monkeypatch, tmp_path
):
    def sometimes(x):
        if not threading.current_thread().name.startswith("rank"):
            (tmp_path / str(os.getpid())).touch()
            dist.barrier()
            if len(list(tmp_path.iterdir())) // 3 - 1 in stuck:
                dist.recv(x, (dist.get_rank() + 1) % 3)  # nobody sends
        return pass_on(x)

    monkeypatch.setattr(judging, "PATIENCE", 1.0)
    assert judged()(sometimes).passed is passes
    assert len(list(tmp_path.iterdir())) == 3 * 3


def through_a_module(x):
    """Zeros travel; the numbers go through a module, which threads share."""
    n, r = dist.get_world_size(), dist.get_rank()
    board = vars(torch).setdefault("board", {})
    board[n, r] = x.clone()
    pass_on(torch.zeros_like(x))
    return board.get((n, (r - 1) % n), x)


def test_a_side_channel_of_threads_does_not_pass(judged):
    report = judged()(through_a_module)
    vars(torch).pop("board")
    assert [row.passed for row in report.rows] == [True, False]
    assert report.score == 0.0


def test_the_notebooks_own_defaults_do_not_matter(ring, monkeypatch):
    small = d2lpar.Cluster.of("2xA100")
    monkeypatch.setitem(d2lpar.launch.run._defaults, "cluster", small)
    assert ring(pass_on).passed  # on 4 ranks


def test_a_pattern_in_the_failing_cases_is_told(judged):
    def not_for_three(x):
        return pass_on(x) if dist.get_world_size() != 3 else x

    report = judged()(not_for_three)
    assert report.sentence == (
        "It fails exactly where the number of ranks is odd. Wherever the outcome is "
        "wrong, what came is an argument as it was before the call."
    )


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"no exercise '05.9': there are 05.1"):
        d2lpar.check("05.9", pass_on)
    with pytest.raises(ValueError, match=r"no exercise '77': there are in chapters 00"):
        d2lpar.check("77", pass_on)
    with pytest.raises(TypeError, match=r'check\("05.1", ...\) wants your function'):
        d2lpar.check("05.1", 3)


def test_bits_are_compared_and_not_only_numbers():
    one, holds = torch.ones(1, dtype=torch.float64), rows.same_bits().holds
    assert holds(Attempt(None, came=[one, one]))
    assert not holds(Attempt(None, came=[one, one * (1 + 2e-16 * 2)]))


def test_equality_is_strict_in_kind_and_shape():
    same = equality.same
    one = torch.ones(2, dtype=torch.float64)
    assert same(one, one.clone()) and not same(one, one.float())
    assert not same(one, one.reshape(2, 1)) and not same([1.0, 1.0], one)
    assert not same(one * math.nan, one) and not same(None, one)
    assert same([1, (2.0, one)], (1, [2.0, one])) and not same([1], [1, 1])
    assert same(2, 2.0) and not same(True, 1) and not same("1", 1)
    assert same({"a": 1}, {"a": 1}) and not same({"a": 1}, {"b": 1})


def test_equality_does_not_depend_on_the_order_of_a_sum():
    """1 - 1 + 1e-7 has lost nine digits, and another order loses others."""
    true = torch.tensor([1.0, 1e-7], dtype=torch.float64)
    moved = torch.tensor([0.0, 2e-15], dtype=torch.float64)
    assert equality.same(true + moved, true) and equality.same(true - moved, true)
    assert not equality.same(true + 1e5 * moved, true)
    assert not equality.same(true[1:] + moved[1:], true[1:])  # nothing cancels there
    assert equality.same(true / 0, true / 0)


# What is judged, and which call is shown


@pytest.fixture
def from_one(judged):
    """The exercise above, which begins with one rank alone, that needs no message."""
    draw = functools.partial(cases, sizes=(1, 2, 3, 4))
    return judged(*ASKED, processes=(), draw=draw)


def alone(then, *how):
    """Right on one rank; `then` is what it does on several."""
    return lambda x: x if dist.get_world_size() == 1 else then(*how, x)


@pytest.mark.parametrize("how", ["hangs", "hangs late", "raises", "returns None"])
def test_what_is_right_on_one_rank_only_meets_nothing(from_one, how):
    report = from_one(alone(misbehaves, how))
    assert (report.score, report.failing) == (0.0, "2 ranks")
    head = "99.1 Pass on: not passed, right in 0 of 3 calls on several ranks\n"
    assert str(report).startswith(head)
    assert True not in [row.passed for row in report.rows]
    assert "Score 0: the outcome is not right in every call" in str(report)


def test_a_deadlock_shows_what_happened_before_it_and_no_empty_timeline(from_one):
    report = from_one(alone(misbehaves, "hangs late"))
    assert report.timeline.world_size == 2 and report.timeline.messages()
    report.hint = True
    assert "The timeline of that call:\n2 ranks" in str(report)
    report = from_one(functools.partial(misbehaves, "raises"))
    assert report.failing == "2 ranks" and "timeline" not in str(report)


def test_the_failing_row_and_the_failing_call_are_one(from_one):
    def late(x):
        x = pass_on(x)
        return pass_on(pass_on(x)) if dist.get_world_size() == 3 else x

    report = from_one(alone(late))
    failed = [row for row in report.rows if row.passed is False]
    assert {report.failing, *(row.where for row in failed)} == {"3 ranks"}
    assert ("messages of all ranks", "9") in [(x.label, x.measured) for x in failed]
    assert "in the call" not in str(report)


def test_a_figure_of_another_call_says_so(from_one):
    def wrong_for_three(x):
        n = dist.get_world_size()
        return twice(x) if n == 4 else pass_on(x) + (n == 3)

    report = from_one(alone(wrong_for_three))
    assert report.failing == "3 ranks"
    [costs] = [row for row in report.rows if row.label == "rounds"]
    outcome, right = report.rows[0], "right in 3 of 4 calls"
    assert costs.cells("3 ranks")[2] == "2, in the call: 4 ranks"
    assert outcome.cells("3 ranks")[2] == right
    assert outcome.cells("4 ranks")[2] == f"{right}, wrong in the call: 3 ranks"


def test_costs_on_several_ranks_are_no_pattern(from_one):
    report = from_one(alone(twice))
    assert report.mistake == "costly" and "exactly where" not in report.sentence


def test_what_cannot_be_copied_to_a_rank_is_told():
    lock = threading.Lock()
    report = d2lpar.check("01.3", lambda given: lock)
    assert (report.mistake, report.score) == ("error", 0.0)
    words = "your function or an argument cannot be copied: cannot pickle"
    assert report.sentence.startswith(words) and words in "".join(report.details)


@pytest.mark.parametrize("name", ["01.1", "01.3", "10.1", "11.3"])
def test_an_integer_too_large_for_a_float_is_a_wrong_number(name):
    report = d2lpar.check(name, lambda *given: 10**400)
    assert (report.passed, report.score) == (False, 0.0)
    assert "100000" in str(report)


# What came and what was expected


@pytest.mark.parametrize(
    "came, wanted, place, words",
    [
        (torch.arange(99.0), torch.arange(99.0) + (torch.arange(99) == 70), "[70]",
         "70, expected 71"),
        ([1, [2, 3.0]], [1, [2, 3.0000001]], "[1][1]", "3, expected 3.0000001"),
        ({"dW": torch.zeros(2, 2)}, {"dW": torch.eye(2)}, "dW[0, 0]", "0, expected 1"),
        ([1.0 + 1e-12, 2.0], [1.0, 3.0], "[1]", "2, expected 3"),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)], "[0]",
         "[0, 0] (float32 [2]), expected [0, 0] (float64 [2])"),
        (0.1 + 0.2, 0.3, "", "expected 0.29999999999999999"),
        (torch.tensor([math.nan]), torch.ones(1), "[0]", "nan, expected 1"),
        (None, 3, "", "expected 3"),
    ],
)  # fmt: skip
def test_the_difference_is_seen(came, wanted, place, words):
    lines = compared(came, wanted)
    assert lines[-1] == (f"differs first at {place}: {words}" if place else words)
    assert all(len(line) < 80 for line in lines[:2])
    assert lines[0].split(" ", 1)[1] != lines[1].split(" ", 1)[1] or len(lines) == 3


def test_every_gradient_of_02_1_can_be_shown():
    bias = next(one for one in ex_02_1.ex.known if one.mistake == "bias")
    report = d2lpar.check("02.1", bias.make())
    assert "cannot be shown" not in str(report)
    assert "differs first at db" in str(report)


# The report on a page, on a terminal


def test_the_report_in_a_notebook():
    lines = [Row("outcome", "<b>", "all", False, "", "it is wrong")]
    lines += [Row("rounds", "1", "1", True), Row("time", "none", "", None)]
    html = Report("99.1", "Pass on", lines, sentence="So & so.")._repr_html_()
    assert "&lt;b&gt;" in html and "So &amp; so." in html
    assert '<th scope="row">outcome</th>' in html
    colours = {"FAIL": "#D55E00", "pass": "#009E73", "not judged": "#999"}
    for word, colour in colours.items():
        (badge,) = re.findall(rf'<span style="([^"]*)">{word}</span>', html)
        assert colour in badge
    filled = re.findall(r'style="[^"]*background:#D55E00;color:#000[^"]*">(\w+)<', html)
    assert filled == ["FAIL"]  # so that no word depends on the page's background


def test_the_table_is_no_wider_than_a_terminal(ring):
    report = ring(twice)
    report.rows[1].where = "a call with many words " * 9
    table = str(report).split("\n\n")[1].splitlines()
    assert max(map(len, table)) < 80 and len(table) > len(report.rows) + 1
    assert str(report).count("many") == 9  # and nothing of it is lost


def test_the_report_on_a_terminal_has_colours(ring):
    file = io.StringIO()
    options = {"width": 79, "force_terminal": True, "color_system": "truecolor"}
    rich.console.Console(file=file, **options).print(ring(twice))
    text = file.getvalue()
    assert "\x1b[1;38;2;0;0;0;48;2;213;94;0mFAIL" in text  # black on vermilion
    assert "\x1b[38;2;0;158;115mpass" in text
    assert "Score 0.62" in text and "The timeline of that call" in text


def test_a_failing_report_shows_the_picture(ring, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda x, **_: shown.append(x))
    ring(pass_on)._ipython_display_()
    assert len(shown) == 1 and set(shown[0]) == {"text/plain", "text/html"}
    ring(twice)._ipython_display_()
    assert len(shown) == 3


def test_no_output_of_a_check_but_its_report(capfd):
    official = solutions.of("05.1")
    d2lpar.check("05.1", official.make())
    d2lpar.check("05.1", official.make(official.edited(ex_05_1.native)))
    assert capfd.readouterr() == ("", "")  # nbgrader fails a cell that writes errors


def test_near_numbers_are_numbers():
    near = lambda came: equality.near(came, (2.0, 4.0), 0.01)
    assert near((2.01, 4)) and near(np.array([2, 4])) and near(torch.tensor([2, 4.03]))
    strange = (2.03, 4), (2, 4, 4), ("2", "4"), (True, 4), 2, None, (2, float("nan"))
    assert not any(map(near, strange))
    assert not equality.near(True, 1.0, 0.01)


def test_numbers_of_ranks_are_whole_numbers():
    for came in ([[0.0], [1.9]], [["0"], ["1"]], None):
        assert not ex_17_2.agrees(came, [[0], [1]], None)
    assert ex_17_2.agrees(([0], (1,)), [[0], [1]], None)
    for came in ([0.0, 1.0], "01", None):
        assert not ex_18_3.agrees(came, [0, 1], None)
    assert ex_18_3.agrees((0, 1), [0, 1], None)


def test_a_mistake_that_is_known_stands_without_the_advice_for_any_deadlock():
    [hangs] = [f for f, _ in checker.find("13.2").answers() if f.__name__ == "hangs"]
    report = d2lpar.check("13.2", hangs)
    assert report.mistake == "hangs"
    assert "wait for each other" in report.details[0]
    assert not [line for line in report.details if "Let one" in line]
