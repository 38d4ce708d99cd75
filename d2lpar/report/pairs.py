"""Which send belongs to which receive, from the records of all ranks."""

import itertools
from collections import defaultdict

from .calls import MESSAGES
from .events import Event

ID = Event._fields.index("id")


def number_messages(reports):
    """The two ends of a message have one id on the timeline; all else has none."""
    ids = _common_ids(reports)
    for report in reports:
        report.events = [
            event
            if event[ID] is None
            else (*event[:ID], ids.get((event[0], event[ID])), *event[ID + 1 :])
            for event in report.events
        ]


def _common_ids(reports):
    """(rank, id of its call) -> id of the message, where both ends are known.

    The k-th message from one rank to another, of one group and tag, is taken by the
    k-th receive for it.
    """
    ends = defaultdict(lambda: {"send": [], "recv": []})
    for report in reports:
        sources = {
            entry[1]: entry[2] for entry in report.entries if entry[0] == "source"
        }
        for entry in report.entries:
            if entry[0] in MESSAGES:
                kind, id, group, peer, tag = entry[:5]
                peer = sources.get(id) if peer is None else peer
                pair = (report.rank, peer) if kind == "send" else (peer, report.rank)
                ends[group, tag, *pair][kind].append((report.rank, id))
    numbers, ids = itertools.count(1), {}
    for both in ends.values():
        for send, receive in zip(both["send"], both["recv"], strict=False):
            ids[send] = ids[receive] = next(numbers)
    return ids
