"""09.2 Which server is the bottleneck: bottleneck(sizes, owner, servers, ...)."""

import math
from collections import Counter

import numpy as np

from zoo import right, wrong


def parts_of(sizes, owner, servers):
    parts = Counter()
    for size, j in zip(sizes, owner, strict=True):
        parts[j] += size
    return [parts[j] for j in range(servers)]


@right
def with_numpy(sizes, owner, servers, alpha, beta, seconds):
    parts = np.bincount(owner, weights=sizes, minlength=servers)
    busy = 3 * alpha + beta * (16 + 2 * parts)
    server = int(busy.argmax())
    workers = int(np.ceil((seconds + busy.sum()) / busy[server]))
    return [server, float(1 / busy[server]), workers]


@right
def counts_workers_up(sizes, owner, servers, alpha, beta, seconds):
    parts = parts_of(sizes, owner, servers)
    server = max(range(servers), key=lambda j: (parts[j], -j))
    rate = 1 / (3 * alpha + beta * (16 + 2 * parts[server]))
    each = 1 / (seconds + 3 * alpha * servers + beta * (16 * servers + 2 * sum(parts)))
    workers = 1
    while workers * each < rate:
        workers += 1
    return server, rate, workers


@wrong("one way")
def forgets_the_answer(sizes, owner, servers, alpha, beta, seconds):
    busy = [2 * alpha + beta * (16 + part) for part in parts_of(sizes, owner, servers)]
    workers = math.ceil((seconds + sum(busy)) / max(busy))
    return busy.index(max(busy)), 1 / max(busy), workers


@wrong("no notes")
def two_messages(sizes, owner, servers, alpha, beta, seconds):
    busy = [2 * (alpha + beta * part) for part in parts_of(sizes, owner, servers)]
    workers = math.ceil((seconds + sum(busy)) / max(busy))
    return busy.index(max(busy)), 1 / max(busy), workers


@wrong("rounded down")
def rounds_down(sizes, owner, servers, alpha, beta, seconds):
    parts = parts_of(sizes, owner, servers)
    busy = [3 * alpha + beta * (16 + 2 * part) for part in parts]
    workers = int((seconds + sum(busy)) / max(busy))
    return busy.index(max(busy)), 1 / max(busy), workers


@wrong("equal parts")
def divides_by_servers(sizes, owner, servers, alpha, beta, seconds):
    busy = 3 * alpha + beta * (16 + 2 * sum(sizes) / servers)
    return 0, 1 / busy, math.ceil((seconds + servers * busy) / busy)


@wrong("not three")
def the_server_only(sizes, owner, servers, alpha, beta, seconds):
    parts = parts_of(sizes, owner, servers)
    return parts.index(max(parts))
