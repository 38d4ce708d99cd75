"""What all ranks' records say together: bytes, messages, rounds, and what did not fit.

Works on the entries of `engine.py`, so it is the same count in every world.
"""

from collections import defaultdict, deque
from functools import cached_property

import numpy as np

from .calls import Meta, disagreement, numel, size_of
from .engine import Status, Waiting


class Ledger:
    """The entries of n ranks; where it has fewer, these stand for all."""

    def __init__(self, entries, n=None):
        self.entries = entries
        self.n = n or len(entries)
        self._times = self.n // len(entries)

    @cached_property
    def _sent(self):
        """{(from, to): [bytes, messages]} of everything that was sent."""
        sent = defaultdict(lambda: [0, 0])
        for rank, entries in enumerate(self.entries):
            for entry in entries:
                if entry[0] == "send":
                    pair = sent[rank, entry[3]]
                    pair[0] += size_of(entry[5])
                    pair[1] += 1
                elif entry[0] == "join":
                    for peer, size, count in entry[6]:
                        pair = sent[rank, peer]
                        pair[0] += size
                        pair[1] += count
        return dict(sent)

    def bytes_sent(self):
        """Payload bytes that each rank sent."""
        return self._per_rank(0)

    def messages(self):
        """Messages that each rank sent."""
        return self._per_rank(1)

    def _per_rank(self, which):
        counts = [0] * len(self.entries)
        for (rank, _), pair in self._sent.items():
            counts[rank] += pair[which]
        return counts * self._times

    def by_call(self):
        """{(kind, (file, line)): [calls, bytes]} of sends and collectives.

        A collective of a group counts as one call, its bytes are those of all ranks.
        """
        found = defaultdict(lambda: [0, 0])
        for rank, entries in enumerate(self.entries):
            for entry in entries:
                if entry[0] == "send":
                    pair, first, size = found["send", entry[6]], True, size_of(entry[5])
                elif entry[0] == "join":
                    kind, n = entry[5].kind, len(entry[3])
                    pair, first = found[kind, entry[8]], rank == entry[3][0]
                    size = sum(size for _, size, _ in entry[6])
                    if self._times > 1:  # it stands for all groups of that size
                        first = self.n // n
                        size *= first * {"scatter": 1, "broadcast": n - 1}.get(kind, n)
                else:
                    continue
                pair[0] += first
                pair[1] += size
        return dict(found)

    def traffic(self):
        """Bytes from each rank (row) to each rank (column), [n, n]."""
        traffic = np.zeros((self.n, self.n), dtype=np.int64)
        for (rank, peer), (size, _) in self._sent.items():
            traffic[rank, peer] = size
        return traffic

    def rounds(self):
        """The longest chain of messages, one in and one out per rank at a time.

        The records are played again with every message taking one unit of time.
        """
        return _Replay(self.entries).rounds

    def has_native(self):
        """Are there native collectives that send anything?"""
        joins = (e for mine in self.entries for e in mine if e[0] == "join")
        return any(rounds for *_, rounds, _ in joins)

    def unwaited(self):
        """Sends and receives that were started and that nobody waited for."""
        ends = 0
        for entries in self.entries:
            started = {entry[1] for entry in entries if entry[0] in ("send", "recv")}
            ends += len(started - {entry[1] for entry in entries if entry[0] == "wait"})
        return ends

    def unmatched(self):
        """[(rank, "send" or "recv", the other rank or None, where)] of lone ends."""
        ends = {"send": defaultdict(list), "recv": defaultdict(list)}
        for rank, entries in enumerate(self.entries):
            for entry in _with_sources(entries):
                if entry[0] in ends:
                    kind, _, group, peer, tag, _, where = entry
                    pair = (rank, peer) if kind == "send" else (peer, rank)
                    ends[kind][group, tag, *pair].append(where)
        sends, receives = ends["send"], ends["recv"]
        _take_from_any(sends, receives)
        return [
            (source, "send", target, where)
            for (*_, source, target), where in _surplus(sends, receives)
        ] + [
            (target, "recv", source, where)
            for (*_, source, target), where in _surplus(receives, sends)
        ]

    def mismatch(self):
        """The statuses of two ranks whose calls do not fit together, or None."""
        return self._unlike_messages() or self._unlike_collectives()

    def _unlike_messages(self):
        sends = defaultdict(deque)
        for rank, entries in enumerate(self.entries):
            for entry in entries:
                if entry[0] == "send":
                    _, _, group, peer, tag, shape, where = entry
                    sends[group, rank, peer, tag].append((shape, where))
        for rank, entries in enumerate(self.entries):
            for entry in _with_sources(entries):
                if entry[0] != "recv" or entry[3] is None:
                    continue
                _, _, group, peer, tag, wanted, where = entry
                queue = sends[group, peer, rank, tag]
                if queue:
                    sent, sent_where = queue.popleft()
                    if (numel(sent[0]), sent[1]) != (numel(wanted[0]), wanted[1]):
                        asked = Meta("send", "", None, (sent,), ())
                        given = Meta("recv", "", None, (wanted,), ())
                        return (
                            _status(peer, asked, sent_where, f"send(dst={rank})"),
                            _status(rank, given, where, f"recv(src={peer})"),
                        )
        return None

    def _unlike_collectives(self):
        joined = defaultdict(dict)
        for rank, entries in enumerate(self.entries):
            for entry in entries:
                if entry[0] == "join":
                    _, _, group, ranks, seq, meta, _, _, where = entry
                    joined[group, ranks, seq][ranks.index(rank)] = (meta, where)
        for (_, ranks, _), members in joined.items():
            pair = disagreement({i: meta for i, (meta, _) in members.items()})
            if pair:
                return tuple(_status(ranks[i], *members[i], "", ranks) for i in pair)
        return None


def _status(rank, meta, where, text, ranks=()):
    call = Waiting(text or meta.kind, where, meta.kind, "", ranks, meta=str(meta))
    return Status(rank, "running", call)


def _surplus(some, others):
    """(key, where) of what goes beyond the others of that key."""
    for key, places in some.items():
        yield from ((key, where) for where in places[len(others.get(key, ())) :])


def _with_sources(entries):
    """The entries, with the sender filled in where a receive took any."""
    sources = {entry[1]: entry[2] for entry in entries if entry[0] == "source"}
    for entry in entries:
        if entry[0] == "recv" and entry[3] is None:
            entry = (*entry[:3], sources.get(entry[1]), *entry[4:])
        yield entry


def _take_from_any(sends, receives):
    """Receives from any source that nobody waited for take what is left for them."""
    for (group, tag, source, rank), waiting in receives.items():
        if source is None:
            for key, sent in sends.items():
                if (key[:2], key[3]) == ((group, tag), rank):
                    while waiting and len(sent) > len(receives.get(key, ())):
                        sent.pop(), waiting.pop(0)


class _Replay:
    """Plays the records with unit time per message; `rounds` is the last moment."""

    def __init__(self, entries):
        n = len(entries)
        self.entries = [list(_with_sources(mine)) for mine in entries]
        self.known = [0] * n  # last round that the rank knows to be over
        self.out, self.into = [0] * n, [0] * n  # last round of its ports
        self.sends, self.receives = defaultdict(deque), defaultdict(deque)
        self.ends = {}  # (rank, id) -> round in which the call is over
        self.joined = defaultdict(dict)
        self.at = [0] * n
        self.sleeping = defaultdict(list)  # (rank, id) -> ranks that wait for it
        self.ready = deque(range(n))
        while self.ready:
            self._advance(self.ready.popleft())
        self.rounds = max([0, *self.out, *self.into, *self.known])

    def _advance(self, rank):
        entries = self.entries[rank]
        while self.at[rank] < len(entries):
            entry = entries[self.at[rank]]
            if entry[0] == "wait":
                end = self.ends.get((rank, entry[1]))
                if end is None:
                    self.sleeping[rank, entry[1]].append(rank)
                    return
                self.known[rank] = max(self.known[rank], end)
            elif entry[0] == "join":
                self._join(rank, entry)
            elif entry[0] in ("send", "recv"):
                self._post(rank, entry)
            self.at[rank] += 1

    def _post(self, rank, entry):
        kind, id, group, peer, tag, *_ = entry
        mine, theirs = self.sends, self.receives
        key = (group, rank, peer, tag)
        if kind == "recv":
            mine, theirs, key = theirs, mine, (group, peer, rank, tag)
        if not theirs[key]:
            mine[key].append((id, self.known[rank]))
            return
        other, stamp = theirs[key].popleft()
        src, dst = (rank, peer) if kind == "send" else (peer, rank)
        end = 1 + max(self.known[rank], stamp, self.out[src], self.into[dst])
        self.out[src] = self.into[dst] = end
        self._end(rank, id, end)
        self._end(peer, other, end)

    def _join(self, rank, entry):
        _, id, group, ranks, seq, _, _, rounds, _ = entry
        members = self.joined[group, ranks, seq]
        members[rank] = (id, self.known[rank])
        if len(members) < len(ranks):
            return
        ports = [max(self.out[r], self.into[r]) if rounds else 0 for r in ranks]
        end = rounds + max([stamp for _, stamp in members.values()] + ports)
        for r, (member, _) in members.items():
            if rounds:
                self.out[r] = self.into[r] = end
            self._end(r, member, end)

    def _end(self, rank, id, end):
        self.ends[rank, id] = end
        self.ready.extend(self.sleeping.pop((rank, id), []))
