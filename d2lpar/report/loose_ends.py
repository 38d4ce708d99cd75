"""Sentences about messages without their other end, and work that nobody awaits."""

from collections import Counter

from .explain import names
from .places import place

LISTED = 8  # sentences about messages without their other end


def unmatched(ends):
    """Sentences about sends that were never received, and receives of nothing.

    `ends`: [(rank, "send" or "recv", the other rank or None, where)].
    """
    sentences = []
    for (rank, kind, peer, where), count in Counter(ends).items():
        other = "any rank" if peer is None else f"rank {peer}"
        nobody = "no rank" if peer is None else f"rank {peer} never"
        did, never = _ENDS[kind]
        times = f" ({count:,} times)" if count > 1 else ""
        sentences.append(
            f"Rank {rank} {did} {other} at {place(where)}{times}, but {nobody} {never}."
        )
    more = len(sentences) - LISTED
    rest = [f"There are {more:,} more such calls."] if more > 0 else []
    return sentences[:LISTED] + rest


def never_waited(calls):
    """Sentences about calls that ranks began, returned, and never waited for.

    `calls`: {rank: [(kind, where)]}.
    """
    ranks = {}
    for rank, mine in calls.items():
        for call in dict.fromkeys(mine):
            ranks.setdefault(call, []).append(rank)
    return [
        f"R{names(who)[1:]} never waited for the {_ASYNC.get(kind, kind)} at "
        f"{place(where)}. Call wait() on what it returns; before that, its tensor may "
        "not be read or changed."
        for (kind, where), who in list(ranks.items())[:LISTED]
    ]


_ASYNC = {"send": "isend", "recv": "irecv"}


_ENDS = {
    "send": ("sends to", "receives the message"),
    "recv": ("receives from", "sends a message for it"),
}
