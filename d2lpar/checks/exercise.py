"""What a file of an exercise, `solutions/ex_NN_K.py`, is written with."""

import copy
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from . import requirements, signs, solutions
from .equality import same
from .judging import Mistake, on_ranks, returned
from .varying import Roles

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


@dataclass(eq=False)
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
    recognised without a word here; `hints` has it.  Keywords of an Exercise:

    reference  the function of the notebook that `cases` gets, if not `NAME_reference`
    outcome    what is compared: `returned`, or `argument(k)`
    agrees     (came, expected, case) -> bool, for one rank
    perform    (fn, case, **options) -> Attempt
    processes  world sizes at which it must be right on real processes too, where ranks
               share nothing: no module, no file handle, no luck of order
    shows      (outcome, n) -> what the report shows of it

    The other fields are what the file adds.  A variation has the same ones, and others
    where it differs: `public` is the exercise that it varies.
    '''

    name: str
    reference: str | None = None
    outcome: Callable = returned
    agrees: Callable = lambda came, expected, case: same(came, expected)
    perform: Callable = on_ranks
    processes: tuple = (3,)
    shows: Callable = lambda outcome, n: outcome
    title: str = ""
    draw: Callable | None = None  # (rng) -> cases, from small to large
    requirements: list = field(default_factory=list)  # rows below the outcome's
    figures: dict = field(default_factory=dict)  # those of them that are in FIGURES
    mistakes: dict = field(default_factory=dict)  # {name: question of an attempt}
    words: dict = field(default_factory=dict)  # {name: its Mistake}
    known: list = field(default_factory=list)  # a Known for each answer
    edges: dict = field(default_factory=dict)  # {name: condition that some case meets}
    variations: dict = field(default_factory=dict)  # {name: Exercise}
    public: "Exercise | None" = None
    roles: Roles | None = None
    varied: str = ""
    differs: str = ""

    def __post_init__(self):
        self.title = self.title or solutions.of(self.name).title

    def cases(self, make):
        """(rng) or (rng, reference) -> cases, from small to large."""

        def drawn(rng):
            return make(rng, solutions.of(self.name).reference(self.reference))

        self.draw = drawn if len(inspect.signature(make).parameters) > 1 else make
        return make

    def require(self, *rows):
        """Add rows to the report, in this order."""
        self.requirements += rows

    def boundaries(self, *names, **conditions):
        """Name what some case must be: keys of BOUNDARIES, or conditions of a case."""
        self.edges |= {name: BOUNDARIES[name] for name in names} | conditions

    def at_most(self, exactly=False, **allowed):
        """Add rows of figures, keys of FIGURES: (case) -> the largest allowed."""
        made = {k: FIGURES[k](it, exactly=exactly) for k, it in allowed.items()}
        self.figures |= made
        self.require(*made.values())

    exactly = functools.partialmethod(at_most, exactly=True)  # and no less, either

    def costs(self, *names):
        """Return a question: just these rows fail, and in no call another."""
        figures = [self.figures[name] for name in names]

        def alone(attempt):
            others = [row for row in self.requirements if row not in figures]
            fail = not any(row.holds(attempt) for row in figures)
            return fail and all(each.meets(others) for each in attempt.attempts)

        return alone

    def slip(self, name, edits=None, **how):
        """Add a mistake that a wrong answer shows: by its outcome, others are told it.

        A second one of that name is one more form of it.  For keywords see `Slip`.
        """
        if name not in self.mistakes:
            self.mistakes[name] = Slip(self, **how)
        answer = self.wrong(name, edits)
        self.mistakes[name].forms.append(answer)
        return answer

    def mistake(self, name, question, edits=None):
        """Add a mistake: where `question(attempt)` says yes, the report says this."""
        if name in self.mistakes:
            raise ValueError(f"{self.name}: {name!r} is there already")
        self.mistakes[name] = question
        return self.wrong(name, edits)

    def wrong(self, mistake, edits=None):
        """Add an answer that must be told this mistake, and no other."""
        number = 1 + sum(answer.mistake == mistake for answer in self.known)
        name = f"{mistake or 'right'} {number}".removesuffix(" 1").replace(" ", "_")
        self.known.append(Known(self, mistake, edits, name))
        return self.known[-1]

    def right(self, edits=None):
        """Add an unusual right answer."""
        return self.wrong(None)(edits) if callable(edits) else self.wrong(None, edits)

    def variation(
        self, letter, *, varied, differs, says=(), reads=(), rows=(), cases=None, **how
    ):
        """Add a variation; other keywords are those of `Roles`.

        varied     what it varies, for the instructor
        differs    what the report says of an answer to the public exercise
        says       {mistake: its sentence, with its hint} where they are others
        reads      {word: word} that the other sentences and hints have instead
        rows       {label: label} of rows that have others
        cases      (rng) -> cases, where they are others
        """
        roles, labels, words = Roles.of(**how), dict(rows), {}
        for name, mine in self.words.items():
            _, sentence, hint = Mistake.of(name, dict(says).get(name, ""))
            sentence = sentence or _replaced(mine.sentence, dict(reads))
            words[name] = Mistake(
                name, sentence, hint or _replaced(mine.hint, dict(reads))
            )
        named = [
            replace(x, label=labels.get(x.label, x.label)) for x in self.requirements
        ]
        name = self.name + letter
        self.variations[name] = self.but(
            name=name,
            public=self,
            roles=roles,
            variations={},
            varied=varied,
            differs=differs,
            words=words,
            requirements=named,
            draw=functools.partial(roles.cases, cases or self.draw),
            perform=functools.partial(roles.perform, self.perform),
            shows=lambda outcome, n: roles.shown(self.shows(outcome, n), n),
        )

    def but(self, **fields):
        """Return a copy, in which these fields are others."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def complete(self):
        """Return this exercise; ValueError where a mistake has no words."""
        if silent := self.mistakes.keys() - self.words.keys():
            raise ValueError(f"{self.name}: nothing is said of {sorted(silent)}")
        return self

    def answers(self):
        """Return [(function, the mistake that it must be told, or None)]."""
        return [(each.make(), each.mistake) for each in self.known]

    def attempt(self, fn, case, **options):
        """Return the Attempt of `fn` at this case; it ends, whatever `fn` does."""
        attempt = self.perform(fn, case, **options)
        attempt.agrees = self.agrees
        attempt.recorded = attempt.recorded or attempt.run
        if attempt.error is None:
            attempt.came = [self.outcome(attempt, r) for r in range(case.n)]
            attempt.right = attempt.gives(case.expected)
        return attempt


def _replaced(text, reads):
    """The text with these whole words in place of others."""
    for old, new in reads.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


@dataclass(eq=False)
class Known:
    """An answer that is known, with the mistake that it must be told, or None."""

    exercise: Exercise
    mistake: str | None
    edits: dict | None
    name: str
    function: Callable | None = None

    def __call__(self, function):
        """Decorate the function that is this answer."""
        self.function = function
        if function.__doc__:
            self.says(function.__doc__)
        return function

    def says(self, text):
        """Give a mistake of this exercise its sentence, and behind "Hint:" its hint."""
        if self.mistake in self.exercise.mistakes.keys() - self.exercise.words.keys():
            self.exercise.words[self.mistake] = Mistake.of(self.mistake, text)
        return self

    def make(self, more=None):
        """Return it as a function, whose name says what it is; `more` edits come first.

        Those are a case's own, `facts["edits"]`: what differs in a variation.
        """
        official = solutions.of(self.exercise.name)
        if more and self.edits:
            return official.make(official.edited(more | self.edits))
        if self.function is None:
            self.function = official.make(official.edited(self.edits))
            self.function.__name__ = self.name
        return self.function


@dataclass(eq=False)
class Slip:
    """The question whether an outcome is what a slip makes of the right one.

    about        (outcome of a rank) -> the part of it that the slip changes, with `...`
                 in the place of the rest
    somewhere    the outcome of one call is enough, where a slip comes with others
    also         another question that must say yes
    """

    exercise: Exercise
    about: Callable = lambda outcome: outcome
    somewhere: bool = False
    also: Callable = lambda attempt: True
    forms: list = field(default_factory=list)

    def __call__(self, attempt):
        """Is it, in every call that ended, and does this one show it?

        Wrong outcomes come first: most slips are ruled out by one call.
        """
        if not (signs.wrong(attempt) and self.also(attempt)):
            return False
        ended = [a for a in attempt.attempts if a.error is None]
        calls = [attempt] if self.somewhere else sorted(ended, key=signs.right)
        right = replace(attempt, came=attempt.case.expected)
        return any(
            all(self._fits(form, each) for each in calls)
            and not self._fits(form, right)
            for form in self.forms
        )

    def _fits(self, form, attempt):
        known = attempt.case.fakes
        if form not in known:
            known[form] = self._outcomes(form, attempt.case)
        return known[form] is not None and attempt.gives(known[form])

    def _outcomes(self, form, case):
        """Per rank, the outcome of the slip at this case; None if it comes to none."""
        attempt = self.exercise.perform(form.make(case.facts.get("edits")), case)
        if attempt.error is not None:
            return None
        return [self.about(self.exercise.outcome(attempt, r)) for r in range(case.n)]
