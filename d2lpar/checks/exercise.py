"""What a file of an exercise, `solutions/ex_NN_K.py`, is written with."""

import functools

from . import answers, judging, signs
from .varying import Variation


class Exercise:
    '''An exercise in one file: what its check asks for, what it says, and its tests.

        ex = Exercise("06.2", "Where is the maximum?")

        @ex.cases
        def cases(rng):                # Case(n, text, inputs, expected, facts), ...
        ROUNDS = rows.rounds(levels, exactly=False)
        ex.require(rows.from_messages(), ROUNDS)       # rows of the report

        ex.mistake("ring", breaks(ROUNDS), {"old": "new"}).says("""
            The sentence of the report.
            Hint: What `hint=True` adds.
        """)
        ex.slip("rounded", {"old": "new"}).says(...)
        ex.wrong("ring", {"old": "new"})               # one more such answer
        ex.right({"old": "new"})                       # an unusual right answer

    {"old": "new"} edits the official answer, which is in the notebook beside this file;
    each old text stands in it exactly once.  Without edits each of these four decorates
    a function, which is the answer then; its docstring is what a mistake says.

    slip       an answer with this outcome in every call has made this mistake, unless
               `about`, `somewhere` or `fake` says otherwise
    mistake    a question to an attempt tells it; most questions are in `signs`
    wrong      an answer that must be told this mistake, the exercise's or a usual one

    A report tells the first mistake, in the order of the file, that fits.  Each has at
    least one wrong answer, and the tests try all answers.  Keywords of an Exercise are
    fields of `judging.Exercise`, such as `outcome=argument(0)`.
    '''

    def __init__(self, name, title, **fields):
        self.name, self.words, self.known = name, {"title": title}, []
        self._fields, self._rows, self._questions = fields, [], {}
        self._variations = {}

    def cases(self, make):
        """(rng) -> cases, from small to large."""
        self._cases = make
        return make

    def require(self, *rows):
        """Add rows to the report, in this order."""
        self._rows += rows

    def slip(self, name, edits=None, **how):
        """Add a mistake that a wrong answer shows: by its outcome, others are told it.

        A second one of that name is one more form of it.  For keywords see `Slip`.
        """
        if name not in self._questions:
            self._questions[name] = Slip(self, **how)
        answer = self.wrong(name, edits)
        self._questions[name].forms.append(answer)
        return answer

    def mistake(self, name, question, edits=None):
        """Add a mistake: where `question(attempt)` says yes, the report says this."""
        if name in self._questions:
            raise ValueError(f"{self.name}: {name!r} is there already")
        self._questions[name] = question
        return self.wrong(name, edits)

    def wrong(self, mistake, edits=None):
        """Add an answer that must be told this mistake, and no other."""
        number = 1 + sum(answer.mistake == mistake for answer in self.known)
        self.known.append(Known(self, mistake, edits, number))
        return self.known[-1]

    def right(self, edits=None):
        """Add an unusual right answer."""
        if callable(edits):  # a decorator without parentheses
            return self.wrong(None)(edits)
        return self.wrong(None, edits)

    def variation(self, letter, *, varied, differs, says=None, rows=None, **how):
        """Add a variation; the keywords are fields of `Variation`.

        varied     what it varies, for the instructor
        differs    what the report says of an answer to the public exercise
        says       {mistake: its sentence, with its hint} where they are others
        rows       {label: label} of rows that have others
        """
        words = {name: _words(text) for name, text in (says or {}).items()}
        for name in words.keys() & self.words.keys():  # a hint that is no other
            words[name] = self.words[name] | words[name]
        words |= {"varied": varied, "differs": differs, "rows": rows or {}}
        self._variations[self.name + letter] = Variation(**how, words=words)

    @functools.cached_property
    def judged(self):
        """The `judging.Exercise` that all this describes."""
        if silent := self._questions.keys() - self.words.keys():
            raise ValueError(f"{self.name}: nothing is said of {sorted(silent)}")
        return judging.Exercise(
            self.name,
            self._cases,
            self._rows,
            self._questions,
            self.words,
            variations=self._variations,
            answers=self._answers,
            **self._fields,
        )

    def _answers(self):
        """[(function, mistake or None)]: every answer that is known."""
        return [(answer.make(), answer.mistake) for answer in self.known]

    def _about(self, mistake, text):
        """The words of a mistake, and none of what is no mistake of this exercise."""
        if mistake in self._questions and mistake not in self.words:
            self.words[mistake] = _words(text)


def _words(text):
    """{"sentence": ..., "hint": ...} of a text, if it has a hint."""
    parts = " ".join(text.split()).split(" Hint: ")
    return dict(zip(("sentence", "hint"), parts, strict=False))


class Known:
    """An answer that is known, with the mistake that it must be told, or None."""

    def __init__(self, exercise, mistake, edits, number):
        self.exercise, self.mistake, self.edits = exercise, mistake, edits
        self.function, self.number = None, number

    def __call__(self, function):
        """Decorate the function that is this answer."""
        self.function = function
        if function.__doc__:
            self.exercise._about(self.mistake, function.__doc__)
        return function

    def says(self, text):
        """Give the mistake its sentence, and behind "Hint:" its hint."""
        self.exercise._about(self.mistake, text)
        return self

    def make(self):
        """Return it as a function, whose name says what it is."""
        if self.function is None:
            official = answers.of(self.exercise.name)
            self.function = official.make(official.edited(self.edits))
            name = f"{self.mistake or 'right'} {self.number}".removesuffix(" 1")
            self.function.__name__ = name.replace(" ", "_")
        return self.function


class Slip:
    """The question whether an outcome is what a slip makes of the right one.

    about        (outcome of a rank) -> the part of it that the slip changes, with `...`
                 in the place of the rest
    somewhere    the outcome of one call is enough, where a slip comes with others
    fake         (case) -> the outcomes, where no answer tells them by running
    also         another question that must say yes
    """

    def __init__(self, exercise, about=None, somewhere=False, fake=None, also=None):
        self.exercise, self.about, self.forms = exercise, about, []
        self.somewhere, self.fake, self.also = somewhere, fake, also

    def __call__(self, attempt):
        """Is it, in every call that ended, and does this one show it?"""
        if not signs.wrong(attempt) or (self.also and not self.also(attempt)):
            return False
        return any(self._shows(form, attempt) for form in self.forms)

    def _shows(self, form, attempt):
        if not self.somewhere and not self._explains(form, attempt.attempts):
            return False
        wanted = attempt.case.expected
        right = judging.Attempt(attempt.case, came=wanted, agrees=attempt.agrees)
        return self._fits(form, attempt) and not self._fits(form, right)

    def _explains(self, form, attempts):
        """Wrong outcomes come first: most slips are ruled out by one call."""
        known = attempts[0].case.fakes
        if (form, "explains") not in known:
            ended = sorted((a for a in attempts if a.error is None), key=_is_right)
            known[form, "explains"] = all(self._fits(form, each) for each in ended)
        return known[form, "explains"]

    def _fits(self, form, attempt):
        known = attempt.case.fakes
        if form not in known:
            known[form] = self._outcomes(form, attempt.case)
        return known[form] is not None and attempt.gives(known[form])

    def _outcomes(self, form, case):
        """Per rank, the outcome of the slip at this case; None if it comes to none."""
        if self.fake:
            return self.fake(case)
        judged = self.exercise.judged
        attempt = judged.perform(form.make(), case)
        if attempt.error is not None:
            return None
        came = [judged.outcome(attempt, r) for r in range(case.n)]
        return [self.about(each) for each in came] if self.about else came


def _is_right(attempt):
    return attempt.right
