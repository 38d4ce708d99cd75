"""Starts the judge of a submission, watches it, and ends all that it has started."""

import contextlib
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from . import sandbox

STOPPED = threading.Event()  # nothing more is to be graded
LOOK = 0.1  # seconds between two looks at a submission's memory
KEY = 32  # bytes
FORGED = "something else than the grader wrote into the grader's file"
ENDED = "the process ended early ({})"


def run(job, timeout, memory):
    """(the judge's lines, what went wrong or None); all that it started has ended."""
    with (
        tempfile.TemporaryDirectory(
            prefix="grading-", ignore_cleanup_errors=True
        ) as work,
        tempfile.TemporaryFile() as told,
    ):
        command = [sys.executable, "-m", "d2lpar.grade.judge"]
        if not sandbox.problem():
            command = [*sandbox.wrapped(work, job["secret"]), *command]
        key, family = os.urandom(KEY), {}
        with subprocess.Popen(
            command, cwd=work, env=sandbox.environ(work),
            start_new_session=True, stdin=subprocess.PIPE, stdout=told,
            stderr=subprocess.DEVNULL,
        ) as worker:  # fmt: skip
            try:
                _tell(worker.stdin, key, job)
                problem = _watch(psutil.Process(worker.pid), timeout, memory, family)
            finally:
                _kill(worker, family, work)
        told.seek(0)
        lines, whole = _opened(told.read().decode("utf-8", "replace"), key)
    return lines, _problem(lines, whole, problem, worker.returncode)


def _problem(lines, whole, problem, code):
    said = [line["problem"] for line in lines if "problem" in line]
    if not whole:
        return FORGED
    if said or problem:
        return said[0] if said else problem
    return None if {"end": True} in lines else ENDED.format(ending(code))


def _tell(stdin, key, job):
    """The judge gets key and job; stdin stays open: it ends when that closes."""
    data = json.dumps(job).encode()
    data = key + len(data).to_bytes(8, "big") + data

    def write():
        with contextlib.suppress(OSError, ValueError):
            stdin.write(data)
            stdin.flush()

    threading.Thread(target=write, daemon=True).start()


def sealed(text, key):
    """The text behind its seal, which only who has the key can make."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() + " " + text


def _opened(text, key):
    """(the lines that the judge wrote, whether there are no others)."""
    lines = []
    for line in text.split("\n")[:-1]:  # behind the last line break: one half written
        _, _, body = line.partition(" ")
        if not hmac.compare_digest(sealed(body, key).encode(), line.encode()):
            return lines, False
        number, told = json.loads(body)
        if number != len(lines):
            return lines, False
        lines.append(told)
    return lines, True


def _watch(process, timeout, memory, family):
    """Return when the process has ended, or with a remark when it must be.

    `family` is {process id: process} of all that it is seen to have started.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end and not STOPPED.is_set():
        try:
            now = [process, *process.children(recursive=True)]
            family.update((each.pid, each) for each in now[1:])
            used = sum(_memory(each) for each in now)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        if used > memory:
            return f"more than {memory / 1e9:g} GB of memory"
        time.sleep(LOOK)
    return "the notebook's time was over"


def _memory(process):
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _kill(worker, family, work):
    """The worker, its session and all that it has started have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(worker.pid).children(recursive=True)
        family.update((each.pid, each) for each in children)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    for _ in range(2):  # one that was just being started shows its environment now
        family.update((each.pid, each) for each in _marked(work))
        for process in family.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(list(family.values()), timeout=5)


def _marked(work):
    """Processes that have this grading in their environment, wherever they went."""
    for pid in psutil.pids():  # `process_iter` remembers who had this number before
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.environ().get("D2LPAR_GRADED") == str(Path(work)):
                yield process


def ending(code):
    """How a process ended, by its exit code: `SIGKILL`, `exit 1`."""
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit {code}"
