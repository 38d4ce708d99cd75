"""A timeline as a trace, such as ui.perfetto.dev shows."""

from .events import lanes
from .units import ns


def chrome_trace(timeline):
    """The trace as a dictionary: a process per rank, a thread per row."""
    trace, where = [], {}
    for rank, streams in timeline.rows.items():
        trace += _process(rank, timeline.devices[rank] if timeline.devices else None)
        thread = 1  # viewers take thread 0 for the idle task
        for stream, events in streams.items():
            chosen = lanes(events)
            count = max(chosen, default=0) + 1
            for lane in range(count):
                trace += _thread(rank, thread + lane, stream, lane)
            for event, lane in zip(events, chosen, strict=True):
                trace.append(_slice(event, thread + lane))
                where[id(event)] = thread + lane
            thread += count
    for send, recv in timeline.messages():
        trace += _flow(send, recv, where)
    other = {"clock": timeline.clock, "world_size": timeline.world_size}
    return {"traceEvents": trace, "displayTimeUnit": "ns", "otherData": other}


def _process(rank, label):
    yield _meta("process_name", rank, 0, {"name": f"rank {rank}"})
    yield _meta("process_sort_index", rank, 0, {"sort_index": rank})
    if label is not None:
        yield _meta("process_labels", rank, 0, {"labels": label})


def _thread(rank, thread, stream, lane):
    name = f"{stream} ({lane + 1})" if lane else stream
    yield _meta("thread_name", rank, thread, {"name": name})
    yield _meta("thread_sort_index", rank, thread, {"sort_index": thread})


def _meta(name, rank, thread, args):
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": args}


def _slice(event, thread):
    """A complete event; whole nanoseconds, so that neighbours never overlap."""
    start, stop = ns(event.start), ns(event.stop)
    args = {"bytes": event.bytes, "flops": event.flops}
    if event.peer is not None:
        args["peer"] = event.peer
    if event.id is not None:
        args["message"] = event.id
    what = {"name": event.name, "cat": event.kind, "ph": "X"}
    where = {"pid": event.rank, "tid": thread}
    when = {"ts": start / 1e3, "dur": (stop - start) / 1e3}
    return what | where | when | {"args": args}


def _flow(send, recv, where):
    """An arrow from the start of the send to the end of its receive."""
    begin = ns(send.start)
    end = max(begin, ns(recv.start), ns(recv.stop) - 1)  # inside the receive
    both = {"name": "message", "cat": "message", "id": send.id}
    start = both | {"ph": "s", "pid": send.rank, "tid": where[id(send)]}
    stop = both | {"ph": "f", "bp": "e", "pid": recv.rank, "tid": where[id(recv)]}
    return start | {"ts": begin / 1e3}, stop | {"ts": end / 1e3}
