"""Mutants of the official answers: `make mutants` tries all, these are quick ones."""

import os

import pytest
import torch

import mutants

SURVIVE, KILLED = map(mutants.listed, ("survive", "killed"))
ANSWERS = mutants.answers()
EACH = pytest.mark.parametrize("exercise", ANSWERS)
# survivors of several kinds of exercises, which are judged fast
QUICK = ["01.1", "01.3", "03.2", "04.4", "11.3"]
TRIED = 2 if os.environ.get("D2LPAR_ZOO") == "whole" else 1  # of each exercise


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other make small tensors slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sources(exercise, ids):
    """The sources of these mutants; KeyError where the answer has no such mutant."""
    made = ANSWERS[exercise].mutants()
    return [made[name] for name in ids]


@EACH
def test_listed_mutants_can_be_made_and_have_a_reason(exercise):
    made = ANSWERS[exercise].mutants()
    assert made
    survive, killed = SURVIVE.get(exercise, {}), KILLED[exercise]
    assert {*survive, *killed} <= made.keys(), "make mutants, and mend mutants.toml"
    assert all(survive.values())
    assert not set(survive) & set(killed)


@EACH
def test_mutants_are_killed(exercise):
    killed = KILLED[exercise]
    assert len(killed) == min(2, len(ANSWERS[exercise].mutants()))
    for source in sources(exercise, killed[:TRIED]):
        assert not mutants.verdict(ANSWERS[exercise], source)["passed"]


@pytest.mark.parametrize("exercise", QUICK)
def test_mutants_that_compute_the_same_survive(exercise):
    first = list(SURVIVE[exercise])[:1]
    for source in sources(exercise, first):
        assert mutants.verdict(ANSWERS[exercise], source)["passed"]


def test_a_mutant_is_the_answer_with_one_change():
    answer = ANSWERS["05.3"]
    made = answer.mutants()
    assert "05.3 6:11 `d < n` -> `d <= n`" in made
    text = made["05.3 15:13 `x += incoming` -> nothing"]
    assert "pass" in text and "x += incoming" not in text
    assert len(mutants.sample(made, most=7)) == 7
