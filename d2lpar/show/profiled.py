"""What PyTorch's profiler saw of ranks on the CPU, as the events of a timeline.

Each rank has profiled itself with `torch.profiler.profile`.  Its outermost operations
are what it computed.  What its backend did, annotations such as `gloo:all_reduce`, are
its messages and collectives.  While those last and it computes nothing, it waits.
"""

import json
import os
import tempfile

from .events import Event, merged

ENDS = {"send": "send", "recv": "recv"}  # rows of messages; collectives have "comm"


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


def _load(source):
    """The trace of a profile, or of a file that one has written."""
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
    for event in trace["traceEvents"]:
        kind, name = event.get("cat"), event.get("name", "")
        if kind == "kernel":
            raise ValueError("from_profiler reads traces of the CPU; this has kernels")
        if event.get("ph") != "X":
            continue
        start = later + event["ts"]
        span = start, start + event["dur"]
        backend, _, call = name.partition(":")
        if kind == "user_annotation" and backend in ("gloo", "nccl") and call:
            found.append((ENDS.get(call, "comm"), call, *span))
        elif kind == "cpu_op" and not name.startswith("c10d"):
            threads.setdefault(event["tid"], []).append((*span, name))
    for operations in threads.values():
        found += [("compute", name, *span) for *span, name in _outermost(operations)]
    return found


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
