"""What Python itself refuses to code that is graded, in the runner and in its ranks.

Python tells a hook of files, programs and frames that code asks for, in every thread.
It does not tell of what C code does by itself, such as `torch.save` to a path: where
`bubblewrap` works, the system refuses that.  This is no sandbox of its own.
"""

import os
import sys
import threading

PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.spawn", "os.posix_spawn"}
PROGRAMS |= {"os.fork", "os.forkpty", "pty.spawn"}
# events that change a file, and which of their arguments are paths
CHANGES = {"os.remove": (0,), "os.rename": (0, 1), "os.link": (0, 1)}
CHANGES |= {"os.symlink": (1,), "os.truncate": (0,), "os.mkdir": (0,), "os.rmdir": (0,)}
CHANGES |= {"os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "shutil.rmtree": (0,)}
LOOKS = {"sys._getframe", "sys._current_frames"}
LOOKS |= {"gc.get_objects", "gc.get_referrers", "gc.get_referents"}
SOCKETS = {"socket.connect", "socket.bind"}
ENDS = {"os.kill", "os.killpg"}
WATCHED = PROGRAMS | set(CHANGES) | LOOKS | SOCKETS | ENDS | {"open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Where nothing remains; memory and pipes of ranks are in /proc.
OPEN_TO_ALL = ("/dev/null", "/dev/shm/", "/dev/tty", "/proc/", "/memfd:")


class Watch:
    """Refuses what code that is graded asks for; `checking` is stricter.

    work      the folder that it may write into
    secret    folders that it may not read from
    judge     the process that nobody here may look at, or end
    """

    def __init__(self, work, secret, judge, checking=False):
        self.work, self.checking = os.path.realpath(work), checking
        self.judge = judge
        self.secret = tuple(os.path.realpath(folder) + os.sep for folder in secret)
        self.asking = threading.local()  # its own questions are audited, too
        sys.addaudithook(self)

    def for_a_rank(self):
        """(what to call, its arguments): a rank's process has the same guard."""
        return Watch, (self.work, self.secret, self.judge, self.checking)

    def __call__(self, event, args):
        if event not in WATCHED or getattr(self.asking, "now", False):
            return
        self.asking.now = True
        try:
            self._judge(event, args)
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
        elif self.checking:
            self._while_checking(event)

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
                raise PermissionError("an answer writes no files")
            if not (path + os.sep).startswith(self.work + os.sep):
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

    def _while_checking(self, event):
        if event in SOCKETS and _of_submission():
            raise PermissionError("an answer opens no connections")
        if event in LOOKS and _is_cell(sys._getframe(3)):
            raise PermissionError("an answer does not look at its callers")


def _of_submission():
    """Is a cell of the submission among the callers?"""
    frame = sys._getframe(2)
    while frame is not None:
        if _is_cell(frame):
            return True
        frame = frame.f_back
    return False


def _is_cell(frame):
    return frame.f_code.co_filename.startswith("<ipython")
