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


def by_parts(sizes, owner, servers, alpha, beta, seconds, *, messages=3, note=16,
             ways=2, up=math.ceil, which=list.index, port=sum):  # fmt: skip
    """The rule, with one thing that may be otherwise."""
    parts = parts_of(sizes, owner, servers)
    busy = [messages * alpha + beta * (note + ways * part) for part in parts]
    most = max(busy)
    return which(busy, most), 1 / most, up((seconds + port(busy)) / most)


@wrong("one way")
def forgets_the_answer(*given):
    return by_parts(*given, messages=2, ways=1)


@wrong("no notes")
def two_messages(*given):
    return by_parts(*given, messages=2, note=0)


@wrong("no notes")
def a_note_has_no_bytes(*given):
    return by_parts(*given, note=0)


@wrong("no notes")
def a_note_has_no_alpha(*given):
    return by_parts(*given, messages=2)


@wrong("rounded down")
def rounds_down(*given):
    return by_parts(*given, up=int)


@wrong("exact")
def does_not_round(*given):
    return by_parts(*given, up=float)


@wrong("one too many")
def one_more_than_rounded_down(*given):
    return by_parts(*given, up=lambda workers: int(workers) + 1)


@wrong("last of equals")
def the_highest_of_equals(*given):
    last = lambda busy, most: len(busy) - 1 - busy[::-1].index(most)
    return by_parts(*given, which=last)


@wrong("one server")
def talks_to_the_busiest_alone(*given):
    return by_parts(*given, port=max)


@wrong("no empty messages")
def skips_servers_without_layers(sizes, owner, servers, *pace):
    place = {j: k for k, j in enumerate(sorted(set(owner)))}
    owner = [place[j] for j in owner]
    server, *more = by_parts(sizes, owner, len(place), *pace)
    return sorted(place)[server], *more


def layer_by_layer(sizes, owner, servers, alpha, beta, seconds, least):
    many = [max(least, owner.count(j)) for j in range(servers)]
    parts = parts_of(sizes, owner, servers)
    busy = [
        alpha + 16 * beta + 2 * (k * alpha + part * beta)
        for k, part in zip(many, parts, strict=True)
    ]
    most = max(busy)
    return busy.index(most), 1 / most, math.ceil((seconds + sum(busy)) / most)


@wrong("message a layer")
def each_layer_alone(*given):
    return layer_by_layer(*given, least=0)


@wrong("message a layer")
def each_layer_alone_and_empty_messages(*given):
    return layer_by_layer(*given, least=1)


@wrong("equal parts")
def divides_by_servers(sizes, owner, servers, alpha, beta, seconds):
    busy = 3 * alpha + beta * (16 + 2 * sum(sizes) / servers)
    return 0, 1 / busy, math.ceil((seconds + servers * busy) / busy)


@wrong("not three")
def the_server_only(sizes, owner, servers, alpha, beta, seconds):
    parts = parts_of(sizes, owner, servers)
    return parts.index(max(parts))
