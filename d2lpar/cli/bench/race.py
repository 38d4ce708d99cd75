"""Rivals that do the same work on the same ranks, side by side in one run.

They take turns, round by round, so that whatever else the machine does hits all of
them.  A time lasts from when the last rank has come until the last one is done, by the
clock that the processes share.  Of the rounds the median counts.
"""

import itertools
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ...launch import run as launch
from ...launch.rounds import LineUp, durations, take_turns
from ...report.units import show_seconds

TIMEOUT = 300.0  # seconds without a call: slow machines may take long
ON_CPU = {"backend": "gloo", "device": "cpu", "timeout": TIMEOUT}  # whatever is usual


@dataclass(frozen=True)
class Race:
    """Who is compared at what.

    name       of the race, as a title says it: "A pipeline"
    line_up    (*arguments) -> LineUp, called on each rank
    courses    {name: arguments}: a column of the table each
    quick      so many of them are enough in a hurry
    seconds    that a usual race lasts, and a quick one
    """

    name: str
    line_up: Callable
    courses: dict
    quick: int = 1
    seconds: tuple = (8.0, 1.0)

    def measure(self, ranks, course, seconds, **options):
        """Race on so many ranks, and return a row of figures per rival.

        `ratio` is how many times as fast it is as PyTorch's, the median of the rounds.
        The options are those of `d2lpar.run`.
        """
        arguments = self.courses.get(course, course)
        options = {**ON_CPU, **options}
        program, given = partial(_take_part, self.line_up), (arguments, seconds)
        run = launch.run(program, *given, world_size=ranks, **options)
        times = durations(run.results)
        theirs = next(iter(times.values()))
        about = {"race": self.name, "ranks": ranks, "course": str(course)}
        rows = [
            {"rival": name} | _figures(theirs, mine) for name, mine in times.items()
        ]
        return [about | row for row in rows]

    def plan(self, ranks, quick):
        """A list of (name, function that returns figures), a step per course."""
        steps, seconds = [], self.seconds[quick]
        courses = list(self.courses)[: self.quick if quick else None]
        for n, course in itertools.product(ranks, courses):
            measure = partial(self.measure, n, course, seconds)
            name = f"{self.name}, {n} ranks, {course}"
            steps.append((name, lambda measure=measure: {"races": measure()}))
        return steps


def _take_part(line_up, arguments, seconds):
    made = line_up(*arguments)
    times = take_turns(made, seconds)
    made.compare()
    return times


def _figures(theirs, ours):
    return {
        "seconds": statistics.median(ours),
        "fastest": min(ours),
        "ratio": ratio(theirs, ours),
        "rounds": len(ours),
    }


def ratio(theirs, ours):
    """How many times as fast ours is: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def numbers_of_ranks(text):
    """The numbers in a text such as "2,4"; ValueError for anything else."""
    numbers = sorted({int(n) for n in re.findall(r"\d+", text)})
    if not re.fullmatch(r"[\d\s,]+", text) or not numbers or not numbers[0] > 1:
        raise ValueError(f"Ranks are numbers from 2 on, such as 2,4, not {text!r}.")
    return numbers


# Training


def trained(models, steps):
    """The LineUp of models that train: {name: model}, {name: function of a step}.

    Raises at the end unless all have the weights and the gradients of the first.
    """

    def compare():
        first, *others = models
        theirs = sorted(models[first].named_parameters())
        for name in others:
            pairs = zip(sorted(models[name].named_parameters()), theirs, strict=True)
            alike = (near(a, b) and near(a.grad, b.grad) for (_, a), (_, b) in pairs)
            if not all(alike):
                raise AssertionError(f"{name} does not train as {first} does")

    return LineUp(steps, compare=compare)


def step_of(model, backward):
    """A function of a whole step: gradients cleared, `backward()`, update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        backward()
        optimizer.step()

    return step


def near(a, b):
    """Equal but for the order in which float32 terms were added; shard by shard."""
    a, b = (x.to_local() if hasattr(x, "to_local") else x for x in (a, b))
    return a.shape == b.shape and (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-9


# Tables for a terminal


def tables(rows):
    """A rich table per race and number of ranks: times, and how many times as fast."""
    for race, n in dict.fromkeys((row["race"], row["ranks"]) for row in rows):
        mine = [row for row in rows if (row["race"], row["ranks"]) == (race, n)]
        title = f"{race} on {n} Gloo ranks: time, and how many times as fast"
        courses = list(dict.fromkeys(row["course"] for row in mine))
        table = new_table(title, "", *courses)
        names = list(dict.fromkeys(row["rival"] for row in mine))
        for name in names:
            cells = {row["course"]: row for row in mine if row["rival"] == name}
            show = show_time if name == names[0] else show_ratio
            texts = [show(cells[course]) for course in courses]
            table.add_row(name, *texts, end_section=name == names[0])
        yield table


def new_table(title, first, *others):
    """A table with a title; all columns but the first hold numbers."""
    from rich import box, table

    made = table.Table(title=title, title_justify="left", box=box.SIMPLE)
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right")
    return made


def show_time(row):
    """`1.23 ms`: three digits, for narrow columns."""
    return show_seconds(float(f"{row['seconds']:.3g}"))


def show_ratio(row):
    """The ratio as text, green where it is 1 or more."""
    text = f"{row['ratio']:.2f}"
    return f"[green]{text}[/green]" if row["ratio"] >= 1 else text
