"""What a file of an exercise, `solutions/ex_NN_K.py`, is written with."""

import functools
import inspect
import re

from . import answers, judging, requirements, signs
from .varying import Variation

FIGURES = {
    "bytes": requirements.bytes_sent,
    "messages": requirements.messages,
    "rounds": requirements.rounds,
    "memory": requirements.extra_memory,
    "seconds": requirements.seconds,
}
# What a case can be at the edge of: `boundaries` names those that matter.
BOUNDARIES = {
    "one rank": lambda case: case.n == 1,
    "two ranks": lambda case: case.n == 2,
    "no power of two": lambda case: case.n & (case.n - 1),
    "does not divide": lambda case: case.facts["S"] % case.n,
    "empty share": lambda case: 0 < case.facts["S"] < case.n,
    "empty": lambda case: case.facts["S"] == 0,
    "another root": lambda case: case.facts["root"] != 0,
}


class Exercise:
    '''An exercise in one file: what its check asks for, what it says, and its tests.

        ex = Exercise("06.2")          # the notebook beside it has the title

        @ex.cases
        def cases(rng, reference):     # Case.of(n, inputs, expected, root=...), ...
        ex.require(rows.from_messages())               # rows of the report
        ex.at_most(rounds=levels)                      # (case) -> a figure

        ex.mistake("ring", ex.costs("rounds"), {"old": "new"}).says("""
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
    least one wrong answer, and the tests try all answers.  What many exercises share is
    recognised without a word here; `hints` has it.  Keywords of an Exercise are fields
    of `judging.Exercise`, such as `outcome=argument(0)`.  `reference` names the
    function of the notebook that `cases` gets, where it is not `NAME_reference`.
    '''

    def __init__(self, name, reference=None, **fields):
        self.name, self.words, self.known = name, {}, []
        self._fields, self._rows, self._questions = fields, [], {}
        self._variations, self._figures, self._reference = {}, {}, reference
        self.edges = {}

    def cases(self, make):
        """(rng) or (rng, reference) -> cases, from small to large."""

        def drawn(rng):
            official = answers.of(self.name)
            return make(rng, official.reference(self._reference))

        self._cases = drawn if len(inspect.signature(make).parameters) > 1 else make
        return make

    def require(self, *rows):
        """Add rows to the report, in this order."""
        self._rows += rows

    def boundaries(self, *names, **conditions):
        """Name what some case must be: keys of BOUNDARIES, or conditions of a case."""
        self.edges |= {name: BOUNDARIES[name] for name in names} | conditions

    def at_most(self, exactly=False, **allowed):
        """Add rows of figures, keys of FIGURES: (case) -> the largest allowed."""
        made = {k: FIGURES[k](it, exactly=exactly) for k, it in allowed.items()}
        self._figures |= made
        self.require(*made.values())

    exactly = functools.partialmethod(at_most, exactly=True)  # and no less, either

    def costs(self, *names):
        """Return a question: just these rows fail, and in no call another."""
        figures = [self._figures[name] for name in names]

        def alone(attempt):
            others = [row for row in self._rows if row not in figures]
            return not any(row.holds(attempt) for row in figures) and all(
                each.right and all(row.holds(each) for row in others)
                for each in attempt.attempts
            )

        return alone

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
        return self.wrong(None)(edits) if callable(edits) else self.wrong(None, edits)

    def variation(
        self, letter, *, varied, differs, says=(), reads=(), rows=(), turned=None, **how
    ):
        """Add a variation; other keywords are fields of `Variation`.

        varied     what it varies, for the instructor
        differs    what the report says of an answer to the public exercise
        says       {mistake: its sentence, with its hint} where they are others
        reads      {word: word} that the other sentences and hints have instead
        rows       {label: label} of rows that have others
        turned     `back` and `shows` in one, where it is its own inverse
        """
        if turned:
            how |= {"back": turned, "shows": turned}
        reads, words = dict(reads), {}
        for name in self._questions:
            told = _words(dict(says).get(name, ""))
            mine = self.words.get(name, {})
            others = {k: _replaced(text, reads) for k, text in mine.items()}
            words[name] = others | {k: text for k, text in told.items() if text}
        words |= {"varied": varied, "differs": differs, "rows": dict(rows)}
        self._variations[self.name + letter] = Variation(**how, words=words)

    @functools.cached_property
    def judged(self):
        """The `judging.Exercise` that all this describes."""
        if silent := self._questions.keys() - self.words.keys():
            raise ValueError(f"{self.name}: nothing is said of {sorted(silent)}")
        self.words.setdefault("title", answers.of(self.name).title)
        more = {"variations": self._variations, "edges": self.edges, **self._fields}
        more["answers"] = lambda: [(each.make(), each.mistake) for each in self.known]
        parts = self.name, self._cases, self._rows, self._questions, self.words
        return judging.Exercise(*parts, **more)

    def _about(self, mistake, text):
        """The words of a mistake, and none of what is no mistake of this exercise."""
        if mistake in self._questions and mistake not in self.words:
            self.words[mistake] = _words(text)


def _replaced(text, reads):
    """The text with these whole words in place of others."""
    for old, new in reads.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


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

    def make(self, more=None):
        """Return it as a function, whose name says what it is; `more` edits come first.

        Those are a case's own, `facts["edits"]`: what differs in a variation.
        """
        official = answers.of(self.exercise.name)
        if more and self.edits:
            return official.make(official.edited(more | self.edits))
        if self.function is None:
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
            ended = [a for a in attempts if a.error is None]
            ended.sort(key=signs.right)
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
        attempt = judged.perform(form.make(case.facts.get("edits")), case)
        if attempt.error is not None:
            return None
        came = [judged.outcome(attempt, r) for r in range(case.n)]
        return [self.about(each) for each in came] if self.about else came
