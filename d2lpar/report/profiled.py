"""What PyTorch's profiler saw of ranks, as the events of a timeline.

Each rank has profiled itself with `torch.profiler.profile`.  Without a GPU its
outermost operations are what it computed, and annotations of its backend such as
`gloo:all_reduce` its messages and collectives.  With a GPU, kernels are what it
computed, and those of NCCL and copies to or from the host are its communication.  While
that lasts and the rank computes nothing, it waits.
"""

import json
import os
import re
import tempfile

from .events import Event, merged

ENDS = {"send": "send", "recv": "recv"}  # rows of messages; collectives have "comm"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_READ = ("cpu_op", "user_annotation", *_ON_GPU)  # categories of events
_NCCL = re.compile(r"nccl\w*Kernel_([A-Za-z]+)")
_COPY = re.compile(r"Memcpy (HtoD|DtoH)")
_COPIES = {"HtoD": "copy to the GPU", "DtoH": "copy to the host"}


def events_of(sources):
    """(events, number of ranks) of profiles, or of the traces that they exported.

    Time begins with the first event of any rank: the clocks of one machine agree.
    Raises ValueError where a source is no such trace or two are of the same rank.
    """
    traces = [_load(source) for source in sources]
    ranks = [_rank(trace, len(traces)) for trace in traces]
    if not ranks or len(set(ranks)) < len(ranks):
        raise ValueError(f"from_profiler needs one trace per rank, not of {ranks}")
    base = traces[0]["baseTimeNanoseconds"]
    spans = {r: _spans(trace, base) for r, trace in zip(ranks, traces, strict=True)}
    zero = min((start for mine in spans.values() for *_, start, _ in mine), default=0)
    events = []
    for rank, mine in spans.items():
        moved = [
            Event(rank, stream, name, (start - zero) / 1e6, (stop - zero) / 1e6)
            for stream, name, start, stop in mine
        ]
        events += moved + list(_waits(rank, moved))
    return events, max(ranks) + 1


def kept(source):
    """What `events_of` reads of a profile's trace; small enough to be sent."""
    trace = _load(source)
    about = {name: trace[name] for name in _ABOUT if name in trace}
    return about | {"traceEvents": [e for e in trace["traceEvents"] if _is_read(e)]}


_ABOUT = "distributedInfo", "baseTimeNanoseconds"


class Profiled:
    """Call a function in a rank; give (what it returned, what the profiler saw)."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        import torch

        with torch.profiler.profile() as prof:
            value = self.function(*args, **kwargs)
        return value, kept(prof)


def _is_read(event):
    return event.get("ph") == "X" and event.get("cat") in _READ


def _load(source):
    """The trace of a profile, of a file that one has written, or the trace itself."""
    if isinstance(source, dict):
        return source
    if hasattr(source, "export_chrome_trace"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            source.export_chrome_trace(path)
            return _load(path)
    try:
        with open(source, encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"], trace["baseTimeNanoseconds"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{source} is not a trace of torch.profiler") from None
    return trace


def _rank(trace, count):
    """The rank that wrote the trace; alone it may have been in no process group."""
    if "distributedInfo" not in trace and count > 1:
        raise ValueError("a trace does not say its rank: profile inside of the ranks")
    return trace.get("distributedInfo", {}).get("rank", 0)


def _spans(trace, base):
    """[(stream, name, start, stop)] of what a rank did, in us after `base`, in ns."""
    later, found, threads = (trace["baseTimeNanoseconds"] - base) / 1e3, [], {}
    read = [event for event in trace["traceEvents"] if _is_read(event)]
    on_gpu = [event for event in read if event["cat"] in _ON_GPU]
    for event in read:
        name, start = event["name"], later + event["ts"]
        span = start, start + event["dur"]
        backend, _, call = name.partition(":")
        if event["cat"] == "user_annotation" and backend in ("gloo", "nccl") and call:
            if backend == "gloo" or not on_gpu:  # NCCL's work is a kernel
                found.append((ENDS.get(call, "comm"), call, *span))
        elif event["cat"] == "cpu_op" and not name.startswith("c10d") and not on_gpu:
            threads.setdefault(event["tid"], []).append((*span, _short(name)))
        elif event["cat"] in _ON_GPU:
            found.append((*_of_a_kernel(name), *span))
    for operations in threads.values():
        found += [("compute", name, *span) for *span, name in _outermost(operations)]
    return found


def _short(name):
    """The name of an operation; one of the backward pass is `B Addmm`."""
    node = name.partition("evaluate_function: ")[2].rpartition("::")[2]
    return "B " + re.sub(r"Backward\d*$", "", node) if node else name


def _of_a_kernel(name):
    """(row, short name) of what a GPU has executed."""
    nccl, copy = _NCCL.match(name), _COPY.match(name)
    if nccl:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", nccl[1]).lower()
        return "comm", words  # all_reduce; send_recv has no side of its own
    if copy:
        return "comm copies", _COPIES[copy[1]]
    bare = re.sub(r"^void ", "", name).partition("<")[0].partition("(")[0]
    return "compute", bare.rpartition("::")[2].strip()


def _outermost(operations):
    """The (start, stop, name) of one thread that are in no other."""
    end = float("-inf")
    for start, stop, name in sorted(operations, key=lambda op: (op[0], -op[1])):
        if start >= end:
            yield start, stop, name
            end = stop


def _waits(rank, events):
    """What is left of the communication where nothing is computed."""
    busy = merged(e for e in events if e.stream == "compute")
    for start, stop in merged(e for e in events if e.stream != "compute"):
        for begin, end in busy:
            if end > start and begin < stop:
                if begin > start:
                    yield Event(rank, "compute", "wait", start, begin)
                start = end
        if start < stop:
            yield Event(rank, "compute", "wait", start, stop)
