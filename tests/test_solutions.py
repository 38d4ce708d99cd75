"""Exercises in one file: how they are written, opened, and sent to a judge."""

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from conftest import ROOT, completed
from d2lpar.checks import checker, solutions
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Mistake
from d2lpar.grade import exchange

EACH = pytest.mark.parametrize("name", solutions.known())


def python(source, given=b""):
    """What a new Python says to this source; it gets `given` by its input."""
    done = subprocess.run(
        [sys.executable, "-c", source], input=given, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def test_to_open_an_exercise_imports_no_other():
    told = python(
        "import sys; from d2lpar.checks import checker; checker.find('06.2')\n"
        "print(*[m for m in sys.modules if '.ex_' in m])"
    )
    assert told == ["d2lpar.checks.solutions.ex_06_2"]


def test_a_judge_that_sees_no_folder_takes_the_texts_that_it_is_given():
    told = python(
        "import json, sys; from d2lpar.checks import checker, solutions\n"
        "solutions.FOLDER /= 'none'\n"
        "solutions.__path__ = []\n"
        "solutions.given(json.load(sys.stdin))\n"
        "print(checker.find('06.2b').name, solutions.of('06.2').function)",
        json.dumps(solutions.texts(["06.2"])).encode(),
    )
    assert told == ["06.2b", "where_max"]


HIDDEN = """
import pickle, sys
from d2lpar.checks import solutions
solutions.__path__ = []
pickle.load(sys.stdin.buffer)
assert not [name for name in sys.modules if ".ex_" in name]
"""


@EACH
def test_a_runner_needs_no_file_of_an_exercise(name):
    """What a judge asks of it brings its own code along, and no truth."""
    exercise = checker.find(name)
    case = list(exercise.draw(np.random.default_rng(0)))[-1]
    told = dataclasses.replace(case, expected=None)
    data = exchange.entrust((exercise.perform, told))
    assert b"Hint: " not in data and pickle.loads(data)
    if exercise.perform.__module__.startswith(f"{solutions.__name__}."):
        python(HIDDEN, data)


def test_an_edit_is_of_a_text_that_is_there_once():
    official = solutions.of("06.2")
    assert "bit_count" in official.edited({"bit_length": "bit_count"})
    with pytest.raises(ValueError, match="06.2: 0 times in it: 'bit_width'"):
        official.edited({"bit_width": "bit_count"})


def test_a_mistake_says_something_and_stands_once():
    ex = Exercise("06.2")
    ex.mistake("quiet", bool, {"a": "b"})
    with pytest.raises(ValueError, match=r"nothing is said of \['quiet'\]"):
        ex.complete()
    with pytest.raises(ValueError, match="'quiet' is there already"):
        ex.mistake("quiet", bool)


def test_words_have_a_sentence_and_a_hint():
    ex = Exercise("06.2")
    ex.mistake("short", bool, {"a": "b"}).says("It is\n    short.")

    @ex.mistake("long", bool)
    def answer(value):
        """It is long.
        Hint: Cut it.
        """

    long = Mistake("long", "It is long.", "Cut it.")
    assert ex.words == {"short": Mistake("short", "It is short."), "long": long}


LAID_OUT = """
import d2lpar
from d2lpar.checks import checker, solutions
official = solutions.of("13.6").make(), None
for answer, mistake in [official, *checker.find("13.6").answers()]:
    print(d2lpar.check("13.6", answer).mistake == mistake)
"""


def test_a_new_exercise_is_laid_out_and_works(tmp_path):
    for folder in ("authoring", "chapters", "d2lpar", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def said(*arguments):
        done = completed([sys.executable, *arguments], env=environ, cwd=tmp_path)
        return done.stdout + done.stderr

    command = ["-m", "d2lpar", "new-exercise"]
    assert "solutions/ex_13_6.py" in said(*command, "13.6", "Left", "left_of")
    assert said("-c", LAID_OUT) == "True\n" * 4
    refused = said(*command, "13.6", "Left", "left_of")
    assert refused == "d2lpar: Exercise 13.6 is there already.\n"
    for none in ("left of", "lambda"):
        assert "is no name of a function" in said(*command, "13.6", "Left", none)
