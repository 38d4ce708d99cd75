"""What Python itself refuses to code that is graded, in the runner and in its ranks.

Python tells a hook of files, programs and frames that code asks for, in every thread.
It does not tell of what C code does by itself: `torch.save` to a path is asked here,
and where `bubblewrap` works, the system refuses the rest.  This is no sandbox.
"""

import functools
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from ..checks.guard import written_elsewhere
from ..sim.torch_private import replace_file_writer

PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.spawn", "os.posix_spawn"}
PROGRAMS |= {"os.fork", "os.forkpty", "pty.spawn"}
# events that change a file, and which of their arguments are paths
CHANGES = {"os.remove": (0,), "os.rename": (0, 1), "os.link": (0, 1)}
CHANGES |= {"os.symlink": (1,), "os.truncate": (0,), "os.mkdir": (0,), "os.rmdir": (0,)}
CHANGES |= {"os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "shutil.rmtree": (0,)}
LOOKS = {"sys._getframe", "sys._current_frames", "sys._current_exceptions"}
LOOKS |= {"gc.get_objects", "gc.get_referrers", "gc.get_referents"}
LOOKS |= {"sys.settrace", "sys.setprofile", "sys.addaudithook", "ctypes.PyObj_FromPtr"}
# Attributes that are frames; where Python says that somebody asks for them.
FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
ATTRIBUTE = "object.__getattr__"
# What may look gives frames to whoever calls it.
GIVERS = ("/inspect.py", "/traceback.py", "/logging/__init__.py", "/threading.py")
SOCKETS = {"socket.connect", "socket.bind"}
ENDS = {"os.kill", "os.killpg"}
# Code that says itself which file it is of; where the name is among the arguments.
DISGUISES = {"compile": 1, "code.__new__": 1, "marshal.loads": None}
WATCHED = PROGRAMS | set(CHANGES) | LOOKS | SOCKETS | ENDS | set(DISGUISES) | {"open"}
WATCHED |= {ATTRIBUTE}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Where nothing remains; memory and pipes of ranks are in /proc.
OPEN_TO_ALL = ("/dev/null", "/dev/tty", "/proc/", "/memfd:")
COMMON = ("/dev/shm/",)  # for cells; while an answer is checked it would be a message
PACKAGE = Path(__file__).resolve().parents[1]
PEERS = (str(PACKAGE) + os.sep, os.path.dirname(torch.__file__) + os.sep)
IMPORTS = "<frozen importlib"


class Watch:
    """Refuses what code that is graded asks for; `checking` is stricter.

    work      the folder that it may write into
    secret    folders that it may not read from
    judge     the process that nobody here may look at, or end
    refused   what an answer was told when it looked for a way around the check
    """

    def __init__(self, work, secret, judge, checking=False):
        self.work, self.checking = os.path.realpath(work), checking
        self.judge, self.refused = judge, []
        self.secret = tuple(os.path.realpath(folder) + os.sep for folder in secret)
        self.asking = threading.local()  # its own questions are audited, too
        sys.addaudithook(self)
        _ask_for_files(self)

    def for_a_rank(self):
        """(what to call, its arguments): a rank's process has the same guard."""
        return Watch, (self.work, self.secret, self.judge, self.checking)

    def __call__(self, event, args):
        if event not in WATCHED or getattr(self.asking, "now", False):
            return
        if event == ATTRIBUTE and args[1] not in FRAMES:
            return
        self.asking.now = True
        try:
            self._judge(event, args)
        except PermissionError as error:
            if self.checking and event in LOOKS | {ATTRIBUTE} | set(DISGUISES):
                self.refused.append(str(error))
            raise
        finally:
            self.asking.now = False

    def _judge(self, event, args):
        if event == "open":
            self._file(args[0], args[2])
        elif event in CHANGES:
            for index in CHANGES[event]:
                self._file(args[index], os.O_WRONLY)
        elif event in PROGRAMS:
            raise PermissionError("a submission starts no programs")
        elif event in ENDS and args[0] in (self.judge, os.getppid(), 0, -1):
            raise PermissionError("a submission ends no other process")
        elif event in DISGUISES:
            self._disguise(args, DISGUISES[event])
        elif event in LOOKS or event == ATTRIBUTE:
            if not self._may_look(event):
                raise PermissionError("a submission does not look at its callers")
        elif self.checking and _of_submission():
            raise PermissionError("an answer opens no connections")

    def _disguise(self, args, index):
        """Code of the course's and torch's files is trusted: nobody else writes it."""
        name = args[index] if index is not None else torch.__file__
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, str) or name.startswith("<") or written_elsewhere(name):
            return
        if not _asking().startswith((*PEERS, IMPORTS)) and _of_submission():
            raise PermissionError("a submission's code is under its own name")

    def _file(self, path, flags):
        if not isinstance(path, str | bytes | os.PathLike):
            return
        named = os.path.abspath(os.fsdecode(path))
        path = os.path.realpath(named)
        if path.startswith(self.secret):
            raise PermissionError("a submission does not read solutions")
        if self._of_a_stranger(named) or self._of_a_stranger(path):
            raise PermissionError("a submission looks at no other process")
        if flags & WRITING and not path.startswith(OPEN_TO_ALL):
            if self.checking and _of_submission():
                raise PermissionError(
                    f"an answer writes no files, and this one would write {named}: "
                    "keep it in variables, and send messages with torch.distributed"
                )
            if not (path + os.sep).startswith((self.work + os.sep, *COMMON)):
                raise PermissionError("a submission writes into its own folder only")

    def _of_a_stranger(self, path):
        """Is it in /proc, of a process that is no rank of this submission?"""
        parts = path.split("/")[1:3]
        if len(parts) < 2 or parts[0] != "proc" or not parts[1].isdigit():
            return False
        if int(parts[1]) == os.getpid():
            return False
        try:
            with open(f"/proc/{parts[1]}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            return True
        work = [word[14:] for word in words if word.startswith(b"D2LPAR_GRADED=")]
        mine = [os.path.realpath(os.fsdecode(folder)) == self.work for folder in work]
        return int(parts[1]) == self.judge or not any(mine)

    def _may_look(self, event):
        """Libraries look at who calls them; torch and the course at all there is."""
        if event in ("sys._getframe", "sys.settrace", "sys.setprofile", ATTRIBUTE):
            return not written_elsewhere(_asking(past=GIVERS))
        return _asking().startswith(PEERS) or not _of_submission()


def _ask_for_files(watch):
    """What writes files in C asks `watch` before."""

    def asking(cls):
        class Asking(cls):
            def __init__(self, path, *arguments, **keywords):
                watch("open", (path, "w", os.O_WRONLY | os.O_CREAT))
                super().__init__(path, *arguments, **keywords)

        Asking.__name__, Asking.__qualname__ = cls.__name__, cls.__qualname__
        Asking.__module__ = cls.__module__
        return Asking

    def mapping(usual):
        @functools.wraps(usual)
        def from_file(path, *arguments, **keywords):
            watch("open", (path, "r+", os.O_RDWR))
            return usual(path, *arguments, **keywords)

        return from_file

    torch.from_file = mapping(torch.from_file)
    torch.UntypedStorage.from_file = mapping(torch.UntypedStorage.from_file)
    replace_file_writer(asking)
    dist.FileStore = asking(dist.FileStore)


def _frames():
    """Who has asked, from the inside, without this module's own frames."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame.f_code.co_filename
        frame = frame.f_back


def _asking(past=()):
    """The file of the code that asks; of generated code, which has none, its caller.

    One file of `past` does not count: what it does, it does for its caller.
    """
    for file in _frames():
        generated = file.startswith("<") and not file.startswith(("<ipython", IMPORTS))
        if not generated and not file.endswith(past):
            return file
        past = () if not generated else past
    return "<ipython"  # generated code alone: nobody of ours calls it


def _of_submission():
    """Is the submission's code among the callers?  Or nobody: a thread of its own."""
    files = list(_frames())
    if any(map(written_elsewhere, files)):
        return True
    return not any(file.startswith(PEERS[0]) for file in files)
