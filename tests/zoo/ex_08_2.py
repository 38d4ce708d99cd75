"""08.2 What is exposed: exposed(layers, bucket_bytes, seconds)."""

from itertools import accumulate

from zoo import right, wrong


def buckets(layers, bucket_bytes):
    """(index of the layer that completes it, bytes) in the order of backward."""
    found, size = [], 0
    for i in reversed(range(len(layers))):
        size += layers[i][2]
        if layers[i][2] and size >= bucket_bytes:
            found.append((i, size))
            size = 0
    if size:
        found.append((min(i for i, layer in enumerate(layers) if layer[2]), size))
    return found


def moments(layers):
    """When the backward pass of each layer is over."""
    ends = list(accumulate([sum(x[0] for x in layers), *(x[1] for x in layers[::-1])]))
    return ends[:0:-1]


def timed(layers, bucket_bytes, seconds, begin=max):
    ends, free = moments(layers), 0.0
    for i, size in buckets(layers, bucket_bytes):
        free = begin(ends[i], free) + seconds(size)
    return max(free, ends[0]), max(0.0, free - ends[0])


@right
def one_after_the_other(layers, bucket_bytes, seconds):
    return timed(layers, bucket_bytes, seconds)


@right
def by_the_longest_path(layers, bucket_bytes, seconds):
    """The end is the latest of: bucket k is ready, then all from k on travel."""
    ends, plan = moments(layers), buckets(layers, bucket_bytes)
    costs = [seconds(size) for _, size in plan]
    paths = [ends[i] + sum(costs[k:]) for k, (i, _) in enumerate(plan)]
    step = max([ends[0], *paths])
    return [step, step - ends[0]]


@wrong("no pair")
def only_the_exposed_part(layers, bucket_bytes, seconds):
    return timed(layers, bucket_bytes, seconds)[1]


@wrong("swapped")
def the_other_way_round(layers, bucket_bytes, seconds):
    return timed(layers, bucket_bytes, seconds)[::-1]


@wrong("rest")
def loses_the_rest(layers, bucket_bytes, seconds):
    ends, free, size = moments(layers), 0.0, 0
    for i in reversed(range(len(layers))):
        size += layers[i][2]
        if layers[i][2] and size >= bucket_bytes:
            free, size = max(free, ends[i]) + seconds(size), 0
    return max(free, ends[0]), max(0.0, free - ends[0])


@wrong("queue")
def a_network_for_each(layers, bucket_bytes, seconds):
    ends, free = moments(layers), 0.0
    for i, size in buckets(layers, bucket_bytes):
        free = max(free, ends[i] + seconds(size))
    return max(free, ends[0]), max(0.0, free - ends[0])


@wrong("first gradient")
def too_early(layers, bucket_bytes, seconds):
    ends, free, size, first = moments(layers), 0.0, 0, None
    for i in reversed(range(len(layers))):
        size += layers[i][2]
        if layers[i][2] and first is None:
            first = ends[i]
        if size and (size >= bucket_bytes or i == 0) and (layers[i][2] or i == 0):
            free, size = max(free, first) + seconds(size), 0
            first = None
    return max(free, ends[0]), max(0.0, free - ends[0])


@wrong("no overlap")
def after_backward(layers, bucket_bytes, seconds):
    done = sum(forward + backward for forward, backward, _ in layers)
    sent = sum(seconds(size) for _, size in buckets(layers, bucket_bytes))
    return done + sent, sent


@wrong("front")
def from_the_first_layer(layers, bucket_bytes, seconds):
    turned = layers[::-1]
    clock, free, size = sum(layer[0] for layer in layers), 0.0, 0
    for _, backward, more in turned[::-1]:
        clock += backward
        size += more
        if more and size >= bucket_bytes:
            free, size = max(free, clock) + seconds(size), 0
    if size:
        free = max(free, clock) + seconds(size)
    return max(free, clock), max(0.0, free - clock)


@wrong("last bucket")
def only_the_last(layers, bucket_bytes, seconds):
    done = sum(forward + backward for forward, backward, _ in layers)
    last = seconds(buckets(layers, bucket_bytes)[-1][1])
    return done + last, last


@wrong("late rest")
def the_rest_leaves_at_the_end(layers, bucket_bytes, seconds):
    ends, free = moments(layers), 0.0
    plan = buckets(layers, bucket_bytes)
    full = [size >= bucket_bytes for _, size in plan]
    for (i, size), complete in zip(plan, full, strict=True):
        free = max(free, ends[i if complete else 0]) + seconds(size)
    return max(free, ends[0]), max(0.0, free - ends[0])


@wrong("negative")
def until_the_network_is_done(layers, bucket_bytes, seconds):
    ends, free = moments(layers), 0.0
    for i, size in buckets(layers, bucket_bytes):
        free = max(free, ends[i]) + seconds(size)
    return free or ends[0], (free or ends[0]) - ends[0]


@wrong("front")
def from_the_first_layer_on(layers, bucket_bytes, seconds):
    forwards = sum(layer[0] for layer in layers)
    turned = [(0.0, *layer[1:]) for layer in layers[::-1]]
    step, late = timed([(forwards, *turned[0][1:]), *turned[1:]], bucket_bytes, seconds)
    return step, late


@wrong("empty bucket")
def full_with_nothing(layers, bucket_bytes, seconds):
    """Without a limit each layer makes a bucket, one without parameters, too."""
    if bucket_bytes:
        return timed(layers, bucket_bytes, seconds)
    ends, free = moments(layers), 0.0
    for end, (_, _, size) in zip(ends[::-1], layers[::-1], strict=True):
        free = max(free, end) + seconds(size)
    return max(free, ends[0]), max(0.0, free - ends[0])


@wrong("negative")
def a_difference(layers, bucket_bytes, seconds):
    ends, free = moments(layers), 0.0
    for i, size in buckets(layers, bucket_bytes):
        free = max(free, ends[i]) + seconds(size)
    return max(free, ends[0]), free - ends[0]


@wrong("wrong")
def a_constant(layers, bucket_bytes, seconds):
    return 0.0, 0.0


@wrong("overfull")
def wants_more_than_full(layers, bucket_bytes, seconds):
    return timed(layers, bucket_bytes + 1, seconds)


@wrong("empty bucket")
def sends_nothing_too(layers, bucket_bytes, seconds):
    ends, free, size = moments(layers), 0.0, 0
    for i in reversed(range(len(layers))):
        size += layers[i][2]
        if size >= bucket_bytes or (i == 0 and size):
            free, size = max(free, ends[i]) + seconds(size), 0
    return max(free, ends[0]), max(0.0, free - ends[0])
