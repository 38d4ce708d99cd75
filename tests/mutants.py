"""Mutants of the official answers: each is an answer with one small fault in it.

    python tests/mutants.py                           # all of them, in half an hour
    python tests/mutants.py 05.3 --json rows.json     # those of one exercise

A mutant that `d2lpar.check` accepts computes the same in another way, or does what the
exercise leaves free, or shows what the check does not ask.  `mutants.toml` says which.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import tomllib
from multiprocessing.connection import wait
from pathlib import Path

import torch

import d2lpar
import mutating
from d2lpar.checks import answers as official
from d2lpar.checks import checker, signs

ROOT = Path(__file__).resolve().parent.parent
MOST = 90  # mutants of an exercise that are tried
SECONDS = 90.0  # for one; `check` gives up sooner, if it still can
MEMORY = 12 << 30  # bytes of addresses, most of which are torch's libraries
WORKERS = 2


class Answer(official.Answer):
    """The official answer to an exercise, and its mutants."""

    def mutants(self):
        """{id: source}; the id names the exercise, line and column, and the change."""
        made = mutating.mutants(self.source, set(self._solution()))
        return {
            f"{self.exercise} {line}:{column} {words}": source
            for ((line, column), words), source in made.items()
        }

    def _solution(self):
        """Numbers of the lines that the learner writes."""
        inside = False
        for number, line in enumerate(self.source.splitlines(), start=1):
            if "### BEGIN SOLUTION" in line or "### END SOLUTION" in line:
                inside = "BEGIN" in line
            elif inside:
                yield number


def answers():
    """{exercise: its Answer}, in the order of the course."""
    every = map(official.read, sorted(ROOT.glob("solutions/*.ipynb")))
    return {n: Answer(*each) for found in every for n, each in found.items()}


def sample(some, most=MOST):
    """So many of the mutants at most, spread evenly over the answer."""
    count = min(len(some), most)
    chosen = [list(some)[i * len(some) // count] for i in range(count)]
    return {name: some[name] for name in chosen}


# How they are judged


def verdict(answer, source):
    """What `check` says about the answer with this source."""
    torch.manual_seed(0)
    report = d2lpar.check(answer.exercise, answer.make(source))
    words = {"mistake": report.mistake, "sentence": report.sentence}
    return {"passed": report.passed} | words


def judged(answer, some):
    """A row for each of {id: source}: what `check` says, each in its own process."""
    waiting, running = list(some.items())[::-1], {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            name, source = waiting.pop()
            worker = _start(answer, source)
            running[worker] = name, time.monotonic() + SECONDS
        wait([worker.pipe for worker in running], timeout=1.0)
        for worker, (name, end) in list(running.items()):
            late = time.monotonic() > end
            if worker.pipe.poll() or late:
                del running[worker]
                yield {"exercise": answer.exercise, "id": name} | _ended(worker)


def _start(answer, source):
    context = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(theirs, answer, source))
    worker.pipe = pipe
    worker.start()
    theirs.close()
    return worker


def _ended(worker):
    """What the worker has said, or "timeout"; neither it nor its ranks remain."""
    said = {"passed": False, "mistake": "timeout", "sentence": "It was killed."}
    try:
        if worker.pipe.poll():
            said = worker.pipe.recv()
    except EOFError:
        said["mistake"] = "died"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.join()
    worker.pipe.close()
    return said


def _work(pipe, answer, source):
    import resource  # not on Windows

    os.setpgrp()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    signs.STRICT = True
    try:
        said = verdict(answer, source)
    except Exception as error:  # a question of the check has failed
        signs.STRICT = False
        said = verdict(answer, source) | {"crash": repr(error)}
    pipe.send(said)


def main():
    """Try the mutants of the exercises, and print and write what the checks say."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("exercises", nargs="*", help="such as 05.3; all where none is")
    parser.add_argument("--json", type=Path, help="the file for a row of each mutant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # loads what each worker would have to load
    rows, known = [], answers()
    for name in options.exercises or known:
        rows += _tried(known[name])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return any(map(_surprising, rows))


def _tried(answer):
    began, found = time.monotonic(), answer.mutants()
    own = set(checker.find(answer.exercise).mistakes)
    chosen = sample(found)
    order = list(chosen).index
    rows = sorted(judged(answer, chosen), key=lambda row: order(row["id"]))
    killed = [row for row in rows if not row["passed"]]
    named = sum(row["mistake"] in own for row in killed)
    print(
        f"{answer.exercise}: {len(found)} made, {len(rows)} tried, "
        f"{len(killed)} killed, {named} by a mistake of the exercise, "
        f"{len(rows) - len(killed)} survived, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    for row in rows:
        if remark := row.get("crash") or _surprising(row):
            print(f"    {row['id']}: {remark}", flush=True)
    return rows


def listed(kind):
    """{exercise: ids} from `mutants.toml`; kind is "survive" or "killed"."""
    return tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))[kind]


def _surprising(row):
    """What is not as the list says."""
    known = row["id"] in listed("survive").get(row["exercise"], {})
    if row["passed"] != known:
        return "not in the list" if row["passed"] else "killed, and in the list"


if __name__ == "__main__":
    sys.exit(main())
