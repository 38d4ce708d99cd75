"""Every check against the known answers: wrong ones are rejected with a hint that
names the mistake, and unusual right ones are accepted.

By day those wrong answers are tried that `by_day.toml` names, and of an exercise that
it does not name all answers."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

import d2lpar
from d2lpar.checks import checker, signs, solutions

EXERCISES = [*map(solutions.load, solutions.known())]
EACH = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
KNOWN = {exercise.name: exercise.answers() for exercise in EXERCISES}
OURS = str(Path(checker.__file__).parent)
WHOLE = os.environ.get("D2LPAR_ANSWERS") == "whole"  # every answer, in every case
FEW = 3  # one case in so many is enough for most wrong answers
BY_DAY = {
    f"{chapter}.{number}": functions.split()
    for chapter, text in tomllib.loads(
        Path(__file__).with_name("by_day.toml").read_text()
    ).items()
    for number, functions in (part.split(": ") for part in text.split("; "))
}
NIGHT = {True: (), False: pytest.mark.night}


ANSWERS = [
    pytest.param(
        *(name, function, mistake),
        id=f"{name}-{function.__name__}",
        marks=NIGHT[function.__name__ in BY_DAY.get(name, [function.__name__])],
    )
    for name in sorted(KNOWN)
    for function, mistake in KNOWN[name]
]


@pytest.mark.parametrize("name, function, mistake", ANSWERS)
def test_the_check_judges_rightly(name, function, mistake, monkeypatch, recwarn):
    """In all cases: right answers, and those of whom a few cases tell something else.

    Of each exercise one wrong answer is judged in all cases anyway.
    """
    monkeypatch.setattr(signs, "STRICT", True)  # no question of the check fails
    first = next(known for known, wrong in KNOWN[name] if wrong)
    report = None
    if mistake and not WHOLE and function is not first:
        with monkeypatch.context() as patch:
            patch.setattr(checker.find(name), "draw", few(checker.find(name).draw))
            report = d2lpar.check(name, function, hint=True)
    if report is None or report.passed or report.mistake != mistake:
        report = d2lpar.check(name, function, hint=True)
    own = [str(warning) for warning in recwarn if OURS in warning.filename]
    assert not own  # nor warns, as of a division by zero
    if report.passed != (mistake is None) or report.mistake != mistake:
        pytest.fail(f"{report}")  # an assert would cut it short
    if mistake is None:
        assert report.score == 1.0
    else:
        assert report.score < 1.0
        assert report.sentence in str(report)


@pytest.mark.night
@EACH
def test_by_day_every_requirement_is_failed(exercise, monkeypatch):
    """As many as any known answer fails, in the few cases that most are judged in."""
    monkeypatch.setattr(exercise, "draw", few(exercise.draw))
    monkeypatch.setattr(checker, "find", lambda name: exercise)
    failed = {
        function.__name__: {row.label for row in report.rows if row.passed is False}
        for function, mistake in KNOWN[exercise.name]
        if mistake and not (report := d2lpar.check(exercise.name, function)).passed
    }
    by_day = [failed[name] for name in BY_DAY.get(exercise.name, failed)]
    assert set().union(*by_day) == set().union(*failed.values())


def few(draw):
    """The first of some cases, the last, and one in FEW between them."""

    def fewer(rng):
        every = list(draw(rng))
        return every[:-1:FEW] + every[-1:]

    return fewer


@EACH
def test_there_are_enough_answers(exercise):
    mistakes = [mistake for _, mistake in KNOWN[exercise.name] if mistake]
    assert len(mistakes) >= 4
    assert None in [mistake for _, mistake in KNOWN[exercise.name]]


@EACH
def test_every_mistake_has_its_answer(exercise):
    found = {mistake for _, mistake in KNOWN[exercise.name]}
    assert set(exercise.mistakes) <= found


@EACH
def test_every_boundary_is_the_edge_of_some_case(exercise):
    cases = list(exercise.draw(np.random.default_rng(0)))
    missing = [e for e, met in exercise.edges.items() if not any(map(met, cases))]
    assert not missing


@EACH
def test_every_mistake_has_its_sentence_and_nothing_else_has(exercise):
    assert set(exercise.words) == set(exercise.mistakes)
