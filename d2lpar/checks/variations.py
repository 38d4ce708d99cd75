"""Variations of exercises: the same work in other roles, so that a public answer fails.

A variation says how it becomes the public exercise: which part each rank plays there,
what the arguments are, what is returned.  So cases, requirements and mistakes stand
once, in the rubric of the exercise.  The words of a variation and its answer stand in
`solutions/variations.toml`, and `d2lpar assign` brings them into notebooks.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .judging import ranks
from .rubrics.allreduce import in_words
from .rubrics.parameter_server import softsync_cases
from .rubrics.sharding import stage_cases


@dataclass(frozen=True)
class Variation:
    """One variation of an exercise.

    name      that of the exercise and a letter: "05.3b"
    varied    what is varied, for the instructor
    differs   what a public answer does here and what it should do, for the learner
    part      (r, n) -> the part of the public exercise that rank r plays
    given     (n, *arguments of the public exercise) -> the arguments here
    back      (value, n) -> what it would be in the public exercise
    shows     (outcome, n) -> what it is here; the report shows it
    call      a case -> its call in words
    says      {mistake: (sentence, more), or the label of a row: its label here}
    change    fields of the Exercise that are others
    """

    name: str
    varied: str
    differs: str
    part: Callable | None = None
    given: Callable | None = None
    back: Callable | None = None
    shows: Callable | None = None
    call: Callable | None = None
    says: dict = field(default_factory=dict)
    change: dict = field(default_factory=dict)


def names(exercise):
    """Names of the variations of an exercise."""
    return [each.name for each in VARIATIONS if each.name[:-1] == exercise]


def find(name):
    """The Variation of that name."""
    return next(each for each in VARIATIONS if each.name == name)


def varied(exercise, name):
    """The Exercise that this variation of `exercise` is."""
    it = find(name)
    changed = replace(exercise, **it.change)
    return replace(
        changed,
        name=name,
        cases=functools.partial(_cases, changed.cases, it),
        requirements=[
            replace(row, label=it.says.get(row.label, row.label))
            for row in exercise.requirements
        ],
        mistakes=[_worded(mistake, it) for mistake in exercise.mistakes],
        perform=functools.partial(_perform, changed.perform, it),
        shows=functools.partial(_turned, it.shows) if it.shows else exercise.shows,
        public=exercise,
        differs=it.differs,
    )


def _worded(mistake, it):
    sentence, more = it.says.get(mistake.name, (mistake.sentence, mistake.more))
    return replace(mistake, sentence=sentence, more=more)


def _cases(cases, it, rng):
    """Those of the exercise; a report tells them as they are here."""
    for case in cases(rng):
        if it.part is not None:
            parts = [it.part(r, case.n) for r in range(case.n)]
            case.players = [parts.index(part) for part in range(case.n)]
        if it.call is not None:
            case.call = it.call(case)
        yield case


def _perform(perform, it, fn, case, **options):
    """The Attempt of `fn`, told as one at the public exercise."""
    order = case.players or range(case.n)  # the rank that plays part 0, 1, ...
    inputs = [case.inputs[list(order).index(r)] for r in range(case.n)]
    one = functools.partial(_call, fn, it.given, it.back, case.n)
    attempt = perform(one, replace(case, inputs=inputs), **options)
    attempt.case = case
    if attempt.run is not None:
        attempt.recorded, attempt.run = attempt.run, _by_parts(attempt.run, order)
    if attempt.error is None:
        attempt.values = [attempt.values[r] for r in order]
        attempt.args = [attempt.args[r] for r in order]
    return attempt


def _call(fn, given, back, n, *arguments):
    value = fn(*given(n, *arguments)) if given else fn(*arguments)
    return _turned(back, value, n) if back else value


def _turned(way, value, n):
    try:
        return way(value, n)
    except Exception:  # a value of a form that nobody has asked for
        return value


def _by_parts(run, order):
    """The Run with its figures in the order of parts."""
    run, order = copy.copy(run), list(order)
    for name in ("results", "bytes_sent", "messages", "peak_memory"):
        if getattr(run, name) is not None:
            setattr(run, name, [getattr(run, name)[r] for r in order])
    run.traffic = run.traffic[np.ix_(order, order)]
    return run


# The ways to vary


def mirror(r, n):
    """The last rank plays the part of rank 0, and so on."""
    return n - 1 - r


def next_one(r, n):
    """Rank r plays the part of rank r+1."""
    return (r + 1) % n


def _root_mirrored(n, x, root, *more):
    return x, n - 1 - root, *more


def _called_with_root(case):
    root = case.facts["root"]
    return case.text.replace(f"root {root}", f"root {case.n - 1 - root}")


def _two_off(answer, n=0):
    """The pairs of all programs, with rank r in the place of r^2."""
    return {letter: _pairs_two_off(pairs) for letter, pairs in answer.items()}


def _pairs_two_off(pairs, n=0):
    return pairs and [(int(a) ^ 2, int(b) ^ 2) for a, b in pairs]


def _rank_mirrored(pair, n):
    value, rank = pair
    return value, n - 1 - rank


def _negated(pair, n):
    value, rank = pair
    return ~value, rank


def _values_of(turn):
    def call(case):
        values = turn([value for (value,) in case.inputs])
        return f"{ranks(case.n)} with {in_words(values)}"

    return call


def _padded(n, model, micro_batches):
    return model, [(x, y.masked_fill(y == -100, -1)) for x, y in micro_batches]


def _last_stage_first(value, n):
    """The rows of a schedule, from the last to the first."""
    rows = str(value).strip().split("\n") if hasattr(value, "home") else value
    rows = rows.strip().split("\n") if isinstance(rows, str) else list(rows)
    return "\n".join(rows[::-1]) if isinstance(rows[0], str) else rows[::-1]


def _last_has_none(case):
    return case.text.replace("rank 0 has", f"rank {case.n - 1} has")


def _frozen_mirrored(case):
    frozen = list(case.facts["frozen"])
    there = [case.n - 1 - r for r in reversed(frozen)]
    return case.text.replace(f"ranks {frozen}", f"ranks {there}")


VARIATIONS = [
    Variation(
        "04.1b",
        "direction: to rank r-k",
        "It shifts towards rank r+k, as the public exercise; this one asks for r-k.",
        part=mirror,
        says={
            "direction": (
                "It shifts the other way: rank r gets what rank r-k had.",
                "Rank r sends to r-k. From whom does it receive?",
            ),
            "step by step": (
                "It goes to rank r-k in several steps, each a message of its own.",
                "A rank can send to any other, not only to its neighbour.",
            ),
        },
    ),
    Variation(
        "04.3b",
        "numbers: the ranks of programs B and C",
        "These are the circles of the public programs; these here have other ranks.",
        back=_two_off,
        shows=_pairs_two_off,
    ),
    Variation(
        "05.1b",
        "who holds what: the last rank is dealt first",
        "It deals to rank 0 first; this exercise asks for the last rank first.",
        part=mirror,
        given=_root_mirrored,
        call=_called_with_root,
        says={
            "blocks": (
                "Each rank gets a block of neighbouring rows, not every n-th row.",
                "Rank 1 of 4 gets rows 2, 6, 10: which slice of the batch is that?",
            ),
        },
    ),
    Variation(
        "05.3b",
        "direction: the sum of ranks r to n-1",
        "It sums from rank 0 up to r; this exercise asks for ranks r to n-1.",
        part=mirror,
        says={
            "to itself": (
                "A rank sends to itself.",
                "Only ranks from d on have somebody d places to the left.",
            ),
            "exclusive": (
                "Rank r has the sum of ranks r+1 to n-1: its own tensor is missing.",
                "Add what comes to `x`; do not put it in its place.",
            ),
            "wraps": (
                "The circle is closed: the last rank receives from the first ones.",
                "Who is d places to the right of rank r, if r + d is n or more?",
            ),
            "total": (
                "Every rank has the sum of all; rank r is to have that of r to n-1.",
                "What must the last rank have at the end? So what may it receive?",
            ),
            "mirrored": (
                "Rank r has the sum of ranks 0 to r: messages go the wrong way.",
                "The last rank is done from the start. To whom does it send?",
            ),
            "too few steps": (
                "A step is missing: the first ranks have not heard of the last ones.",
                "n ranks that are no power of two need as many steps as the next one.",
            ),
            "chain": (
                "Each rank waits for the one behind it: n-1 rounds, one by one.",
                "After one round rank r can know two terms, after two rounds four.",
            ),
            "idle messages": (
                "Some messages bring nothing that their receiver needs.",
                "Does the last rank need anything? Any rank terms of lower ranks?",
            ),
        },
    ),
    Variation(
        "05.4b",
        "who holds what: rank r has shard n-1-r",
        "Rank r has shard r, as in the public exercise; here it is shard n-1-r.",
        part=mirror,
        says={
            "sizes": (
                "Two ranks disagree about the size of a shard that travels.",
                "What comes to rank r is a term of shard n-1-r.",
            ),
            "owner": (
                "The sums are right, but each rank has the shard of a neighbour.",
                "In a ring of n-1 steps, where must a shard start to end there?",
            ),
        },
    ),
    Variation(
        "05.4c",
        "who holds what: rank r has shard r+1, round the circle",
        "Rank r has shard r, as in the public exercise; here it is shard r+1.",
        part=next_one,
        says={
            "sizes": (
                "Two ranks disagree about the size of a shard that travels.",
                "What comes to rank r is a term of shard r+1.",
            ),
            "owner": (
                "The sums are right, but each rank has the shard of a neighbour.",
                "In a ring of n-1 steps, where must a shard start to end there?",
            ),
        },
    ),
    Variation(
        "06.1b",
        "direction and chunk owner: to the right, chunk n-1-r complete on rank r",
        "Chunks travel to the left, as in the public exercise; here to the right.",
        part=mirror,
        says={
            "bytes to others than the left": "bytes to others than the right",
            "hub": (
                "One rank receives everything and sends everything: that is no ring.",
                "Every rank sends to its right neighbour only, one chunk in each step.",
            ),
            "direction": (
                "Each rank sends to its left; this ring goes to the right.",
                "Rank r sends to r+1 and receives from r-1. Which chunk is it then?",
            ),
            "second half": (
                "Chunk n-1-r of rank r is right, the others are not: the first half "
                "is good, the second is not.",
                "At half time rank r sends chunk n-1-r. What has it one step later?",
            ),
            "owner": (
                "All ranks together send the right amount, but not each its share.",
                "Chunk n-1-r, as tensor_split cuts it, is complete on rank r at half "
                "time. So rank r never sends it on the first way.",
            ),
        },
    ),
    Variation(
        "06.1c",
        "chunk owner: chunk r+1 complete on rank r",
        "Chunk r is complete on rank r at half time; this exercise asks for r+1.",
        part=next_one,
        says={
            "second half": (
                "Chunk r+1 of rank r is right, the others are not: the first half is "
                "good, the second is not.",
                "At half time rank r sends chunk r+1. What has it one step later?",
            ),
            "owner": (
                "All ranks together send the right amount, but not each its share.",
                "Chunk r+1, as tensor_split cuts it, is complete on rank r at half "
                "time. So rank r never sends it on the first way.",
            ),
        },
    ),
    Variation(
        "06.2b",
        "operation: of equal values that of the highest rank",
        "Of equal values it takes the lowest rank; this exercise asks for the highest.",
        part=mirror,
        back=_rank_mirrored,
        shows=_rank_mirrored,
        call=_values_of(lambda values: values[::-1]),
        says={
            "ties": (
                "Where several ranks have the maximum, it is not always the highest.",
                "Compare the ranks too where the values are equal, on both sides "
                "alike.",
            ),
        },
    ),
    Variation(
        "06.2c",
        "operation: the minimum",
        "It finds the largest value; this exercise asks for the smallest.",
        given=lambda n, value: (~value,),
        back=_negated,
        shows=_negated,
        call=_values_of(lambda values: [~value for value in values]),
        says={
            "ties": (
                "Where several ranks have the minimum, it is not always the lowest.",
                "Compare the ranks too where the values are equal, on both sides "
                "alike.",
            ),
        },
    ),
    Variation(
        "07.1b",
        "numbers: padding is -1",
        "It takes -100 for padding, as the public exercise; here padding is -1.",
        given=_padded,
        says={
            "padding": (
                "It divides by all places, also by those without a token.",
                "Count the targets that are not -1.",
            ),
        },
    ),
    Variation(
        "08.1b",
        "direction: gradients come in the order of the backward pass",
        "It fills buckets from the end of the list; here they begin at its front.",
        given=lambda n, grads, *more: (grads[::-1], *more),
        says={
            "from the front": (
                "The buckets are filled from the end of the list.",
                "Backward makes the gradients in the order of the list.",
            ),
        },
    ),
    Variation(
        "08.3b",
        "root: the last rank's model",
        "All train rank 0's model; this exercise asks for that of the last rank.",
        part=mirror,
        says={
            "averaged": (
                "The buffers are means over the ranks; here the last rank's count.",
                "A mean of counters is no counter. Copy them from the last rank.",
            ),
        },
    ),
    Variation(
        "09.1b",
        "operation: an age of a weighs 1 / (a+1)^2",
        "A gradient of age a weighs 1 / (a + 1) here; asked for is 1 / (a + 1)^2.",
        change={"cases": functools.partial(softsync_cases, power=2)},
        says={
            "no weights": (
                "All gradients weigh the same, however old they are.",
                "`take` returns the age; one of age a weighs 1 / (a + 1)^2.",
            ),
        },
    ),
    Variation(
        "10.2b",
        "who holds what: rank r has shard n-1-r",
        "Rank r has shard r, as in the public exercise; here it is shard n-1-r.",
        part=mirror,
        call=_last_has_none,
    ),
    Variation(
        "10.3b",
        "numbers: an optimizer of 8 bytes an element",
        "It counts 12 bytes an element for the optimizer; here it holds 8.",
        change={"cases": functools.partial(stage_cases, state=8)},
    ),
    Variation(
        "11.2b",
        "direction: the first part is on the last rank",
        "It sends from rank 0 on; here the last rank has the first part.",
        part=mirror,
        call=_frozen_mirrored,
        says={
            "only the last": (
                "All ranks but rank 0 have the weights that they began with.",
                "A received tensor does not know where it came from. Its gradient must "
                "be sent back, and `backward` must be called with it.",
            ),
        },
    ),
    Variation(
        "12.3b",
        "who holds what: the first words are on the last rank",
        "It takes rank 0 to have the first words; here the last rank has them.",
        part=mirror,
        says={
            "no offset": (
                "It is the place among the words of one rank, not among all words.",
                "Rank r has the words from (n-1-r) V/n on.",
            ),
            "last rank": (
                "Of equal scores on several ranks it takes the one with larger number.",
                "The smaller numbers are on the higher ranks.",
            ),
        },
    ),
    Variation(
        "13.1b",
        "who holds what: stage s on rank p-1-s",
        "Stage s is on rank s, as in the public exercise; here it is on rank p-1-s.",
        back=_last_stage_first,
    ),
]
