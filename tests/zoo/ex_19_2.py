"""19.2 From n ranks to m: moves(size, n, m)."""

import torch

from zoo import right, wrong


def ends(size, n, cut=torch.Tensor.tensor_split):
    parts = [part.tolist() for part in cut(torch.arange(size), n)]
    parts += [[]] * (n - len(parts))
    return [(part[0], part[-1] + 1) if part else (0, 0) for part in parts]


def overlaps(size, n, m, cut=torch.Tensor.tensor_split):
    for src, (a, b) in enumerate(ends(size, n, cut)):
        for dst, (c, d) in enumerate(ends(size, m, cut)):
            yield src, dst, max(a, c), min(b, d)


@right
def by_overlaps(size, n, m):
    return [x for x in overlaps(size, n, m) if x[0] != x[1] and x[2] < x[3]]


@right
def number_by_number(size, n, m):
    """Every number says where it was and where it goes; equal ones are joined."""
    where = [[r for r, (a, b) in enumerate(ends(size, k)) if a <= i < b]
             for k in (n, m) for i in range(size)]  # fmt: skip
    found = {}
    for i in range(size):
        (src,), (dst,) = where[i], where[size + i]
        if src != dst:
            found.setdefault((src, dst), []).append(i)
    pairs = reversed(found.items())
    return [[src, dst, each[0], each[-1] + 1] for (src, dst), each in pairs]


@wrong("chunk")
def by_chunks(size, n, m):
    each = overlaps(size, n, m, torch.Tensor.chunk)
    return [x for x in each if x[0] != x[1] and x[2] < x[3]]


@wrong("stays")
def to_itself(size, n, m):
    return [x for x in overlaps(size, n, m) if x[2] < x[3]]


@wrong("empty")
def to_everybody(size, n, m):
    starts = lambda k: [r * (size // k) + min(r, size % k) for r in range(k + 1)]
    found = []
    for src in range(n):
        for dst in range(m):
            low = max(starts(n)[src], starts(m)[dst])
            high = min(starts(n)[src + 1], starts(m)[dst + 1])
            if src != dst:
                found.append((src, dst, low, max(low, high)))
    return found


@wrong("local")
def from_its_own_beginning(size, n, m):
    begin = [a for a, _ in ends(size, n)]
    return [
        (s, d, a - begin[s], b - begin[s]) for s, d, a, b in by_overlaps(size, n, m)
    ]


@wrong("back")
def the_other_way(size, n, m):
    return [(dst, src, a, b) for src, dst, a, b in by_overlaps(size, n, m)]


@wrong("wrong")
def nothing_moves(size, n, m):
    return []
