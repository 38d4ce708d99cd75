"""What the exercises of chapter 05 ask for."""

import re
from itertools import product

import torch

from ...world.cluster import Cluster
from ..judging import Case, Exercise, Mistake, ranks, same
from ..requirements import (
    all_waited,
    bytes_sent,
    extra_memory,
    from_messages,
    messages,
    rounds,
    seconds,
    untouched,
)
from ..signs import (
    both,
    gives,
    hangs,
    left_alone,
    mismatched,
    not_a_tensor,
    raises,
    returns_none,
    right,
    strided,
    to_itself,
    touches_what_leaves,
    wrong,
)

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11)
SPARE = 512  # bytes that nobody counts
ALPHA, BETA = 1e-5, 1e-8  # of the cluster of 05.2: 10 us, 100 MB/s


def _two_nodes(n):
    """Links of unequal speed: what is touched too early comes out wrong here."""
    return {"cluster": Cluster.of(f"{n // 2}x2xT4")}


def _each_tensor(case):
    return case.facts["tensors"]


def _totals(attempt):
    return sum(attempt.run.messages)


# 05.1 Deal a batch like cards


def deal_cases(rng):
    """Batches of B rows on the root only; B < n, B a multiple of n, and between."""
    for n, rows in product(SIZES, (0, 1, 5, 8, 11)):
        root = int(rng.integers(n))
        batch = torch.from_numpy(rng.normal(size=(rows, 3)))  # [B, 3]
        inputs = [(batch if r == root else None, root, rows, 3) for r in range(n)]
        text = f"{ranks(n)}, root {root}, B = {rows} rows of 3"
        yield Case(
            n,
            text,
            inputs,
            expected=[batch[r::n].clone() for r in range(n)],
            facts={"root": root, "S": rows, "batch": batch},
        )


def _deal_bytes(case):
    """The root sends all rows but its own, 8 bytes an element; nobody else sends."""
    root, batch = case.facts["root"], case.facts["batch"]
    others = [batch[r :: case.n].numel() for r in range(case.n) if r != root]
    return [8 * sum(others) if r == root else 0 for r in range(case.n)]


def _deal_messages(case):
    """One for each other rank that gets a row."""
    root, rows = case.facts["root"], case.facts["S"]
    return sum(r < rows for r in range(case.n) if r != root)


def _in_blocks(case):
    return [x.clone() for x in case.facts["batch"].tensor_split(case.n)]


def _sends_all(attempt):
    root = attempt.case.facts["root"]
    return attempt.run.bytes_sent[root] > _deal_bytes(attempt.case)[root]


def _waits_for_rank_0(attempt):
    """All who wait for a message wait for rank 0, which is not the root."""
    waits = set(re.findall(r"recv\(src=(\d+)\)", str(attempt.error)))
    return attempt.case.facts["root"] != 0 and waits == {"0"}


def _uses_none(attempt):
    return "NoneType" in str(attempt.cause)


def _few_rows(attempt):
    return attempt.case.facts["S"] < attempt.case.n


def _extra_messages(attempt):
    return _totals(attempt) > _deal_messages(attempt.case)


def _same_bytes(attempt):
    return attempt.run.bytes_sent == _deal_bytes(attempt.case)


deal = Exercise(
    "05.1",
    "Deal a batch like cards",
    deal_cases,
    [
        bytes_sent(_deal_bytes),
        messages(_deal_messages, exactly=False),
        from_messages(),
        all_waited(),
        untouched(0),
    ],
    [
        Mistake(
            "strided",
            strided,
            "It sends every n-th row as a view, and a view with gaps cannot be sent.",
            "A message is one piece of memory: copy the rows together first.",
        ),
        Mistake(
            "to itself",
            to_itself,
            "The root sends to itself.",
            "Its own share does not travel: it is a slice of `x`.",
        ),
        Mistake(
            "dtype",
            both(mismatched, lambda a: "float32" in str(a.error)),
            "A rank receives into float32, and the rows are float64.",
            "`torch.empty` takes a dtype.",
        ),
        Mistake(
            "blocks",
            gives(_in_blocks),
            "Each rank gets a block of neighbouring rows, not every n-th row.",
            "Rank 1 of 4 gets rows 1, 5, 9: which slice of the batch is that?",
        ),
        Mistake(
            "root",
            lambda a: _uses_none(a) or _waits_for_rank_0(a),
            "Rank 0 acts as the root; here the batch is on another rank.",
            "Who sends, and from whom does everybody else receive?",
        ),
        Mistake(
            "rowless",
            both(hangs, _few_rows),
            "With fewer rows than ranks somebody waits for a message nobody sends.",
            "Sender and receiver both know B and n: both can tell who gets no row.",
        ),
        Mistake(
            "nothing returned",
            returns_none,
            "Some rank returns None instead of its rows.",
            "The root keeps a share too, and a rank without rows has 0 rows.",
        ),
        Mistake(
            "no tensor",
            not_a_tensor,
            "Some rank returns something else than a tensor.",
            "`torch.stack` makes one tensor of rows, but not of none.",
        ),
        Mistake(
            "whole batch",
            both(right, _sends_all),
            "The root sends more than the other ranks' rows.",
            "Send each rank its rows only, and nothing to yourself.",
        ),
        Mistake(
            "empty messages",
            both(right, _extra_messages, _same_bytes, _few_rows),
            "Ranks without rows are sent messages, and even an empty one costs time.",
            "Sender and receiver both know B and n: both can leave it out.",
        ),
        Mistake(
            "row by row",
            both(right, _extra_messages, _same_bytes),
            "The rows of one rank travel in several messages, and each costs alpha.",
            "Gather them first: `x[r::n]` has all of them.",
        ),
    ],
)


# 05.2 Broadcast something big


def broadcast_cases(rng):
    """Tensors of several types, from empty to 8 KB, other numbers on each rank."""
    kinds = {1: "int64", 3: "float64", 9: "float64", 250: "float32", 1003: "float64"}
    for n in SIZES:
        for size, kind in kinds.items():
            yield _broadcast_case(rng, n, size, kind, int(rng.integers(n)))
        if n == 2:
            yield _broadcast_case(rng, n, 0, "float64", 0)
        if n == 4:
            root = int(rng.integers(1, n))
            yield _broadcast_case(rng, n, 1003, "float64", root, two_nodes=True)
            yield _broadcast_case(rng, n, 30_011, "float64", root)


def _broadcast_case(rng, n, size, kind, root, two_nodes=False):
    values = torch.from_numpy(rng.uniform(1, 1e9, size=(n, size)))
    tensors = list(values.to(getattr(torch, kind)))
    nbytes = tensors[0].nbytes
    text = f"{ranks(n)}, root {root}, {size:,} elements of {kind}"
    return Case(
        n,
        text + ", on nodes of two T4" * two_nodes,
        [(x.clone(), root) for x in tensors],
        expected=[tensors[root]] * n,
        facts={
            "root": root,
            "S": size,
            "bytes": nbytes,
            "tensors": tensors,
            "two nodes": two_nodes,
        },
        options=_two_nodes(n) if two_nodes else {"cluster": _slow_network(n)},
        traced=size > 10_000,
    )


def _slow_network(n):
    return Cluster.ideal(n, ALPHA, BETA)


def _equal(came, wanted, case):
    """Copies are equal to the bit; large ones are compared quickly."""
    alike = torch.is_tensor(came) and came.dtype == wanted.dtype
    return alike and torch.equal(came, wanted)


def _pieces(case, count):
    """Bytes of so many pieces of S / n, rounded up to whole elements."""
    elements = -(-case.facts["S"] // case.n)
    return count * elements * case.facts["tensors"][0].element_size()


def _broadcast_bytes(case):
    return _pieces(case, 2 * (case.n - 1))


def _broadcast_rounds(case):
    return len(_distances(case.n)) + case.n - 1


def _broadcast_seconds(case):
    if case.facts["two nodes"]:
        return float("inf")
    return _broadcast_rounds(case) * ALPHA + _broadcast_bytes(case) * BETA


def _unrotated(case):
    """The ranks left of the root get nothing."""
    tensors, root = case.facts["tensors"], case.facts["root"]
    if not 0 < root < case.n - 1:
        return [None] * case.n
    return tensors[:root] + [tensors[root]] * (case.n - root)


def _tail_lost(attempt):
    """Each rank has the root's elements up to some point, and its own after it."""
    if not wrong(attempt):
        return False
    arrived = []
    for own, came, wanted in zip(
        _each_tensor(attempt.case), attempt.came, attempt.case.expected, strict=True
    ):
        if not torch.is_tensor(came) or came.shape != wanted.shape:
            return False
        if not torch.equal(came, wanted):
            k = int((came != wanted).nonzero()[0])
            arrived.append(k)
            if not torch.equal(came[k:], own[k:]):
                return False
    return min(arrived) > 0


def _busiest(attempt):
    """Most bytes that a rank sends, in tensors."""
    return max(attempt.run.bytes_sent) / attempt.case.facts["bytes"]


def _sends(tensors, n=4):
    """Right, on at least n ranks, and the busiest sends so many: `tensors(n)`."""

    def so_many(attempt):
        case = attempt.case
        if case.n < n or case.facts["S"] < 1000 or not attempt.right:
            return False
        return abs(_busiest(attempt) - tensors(case.n)) < 0.01

    return so_many


def _all_send(attempt):
    """Every rank sends as much as the root may."""
    case = attempt.case
    if not right(attempt) or case.n < 4 or case.facts["S"] < 1000:
        return False
    return min(attempt.run.bytes_sent) > 0.95 * _broadcast_bytes(case)


def _many_bytes(attempt):
    sent = max(attempt.run.bytes_sent)
    return right(attempt) and sent > _broadcast_bytes(attempt.case)


def _slow(attempt):
    """Right, yet not in time, with a tensor that is worth a look."""
    allowed = _broadcast_seconds(attempt.case) * (1 + 1e-9)
    large = attempt.case.facts["S"] >= 1000
    return right(attempt) and large and attempt.run.elapsed > allowed


def _many_rounds(attempt):
    case = attempt.case
    return right(attempt) and attempt.run.rounds > _broadcast_rounds(case)


def _root_serves_all(attempt):
    root = attempt.case.facts["root"]
    return (attempt.run.traffic[root] > 0).sum() == attempt.case.n - 1


def _in_a_chain(attempt):
    """Each rank sends to one other, and no more than the tensor once."""
    traffic, case = attempt.run.traffic, attempt.case
    one_way = (
        case.n > 2 and case.facts["S"] > 999 and (traffic > 0).sum(axis=1).max() == 1
    )
    return bool(one_way) and traffic.max() <= case.facts["bytes"]


def _sends_too_early(attempt):
    """A rank that receives begins to send before its first receive is over."""
    rows = attempt.run.timeline.rows.values()
    between = [row for row in rows if {"recv", "send"} <= {*row}]
    return any(row["send"][0].start < row["recv"][0].stop for row in between)


def _broadcast_memory(case):
    return SPARE + case.noise


_allocates = both(right, lambda a: max(a.run.peak_memory) > _broadcast_memory(a.case))


broadcast_big = Exercise(
    "05.2",
    "Broadcast something big",
    broadcast_cases,
    [
        bytes_sent(_broadcast_bytes, exactly=False),
        rounds(_broadcast_rounds, exactly=False),
        seconds(_broadcast_seconds, exactly=False),
        extra_memory(_broadcast_memory),
        from_messages(),
        all_waited(),
    ],
    [
        Mistake(
            "to itself",
            to_itself,
            "A rank sends to itself.",
            "The root's neighbours are counted round the circle, modulo n.",
        ),
        Mistake(
            "not in place",
            both(left_alone(), lambda a: any(map(torch.is_tensor, a.values))),
            "It returns a tensor, but `x` itself is what it was.",
            "Receive into `x`, or into views of it.",
        ),
        Mistake(
            "root",
            gives(lambda case: [case.facts["tensors"][0]] * case.n),
            "All have rank 0's tensor; the one to spread is that of rank `root`.",
            "How many places to the right of the root is rank r?",
        ),
        Mistake(
            "no way round",
            gives(_unrotated),
            "Ranks to the left of the root, in the order 0, 1, 2, ..., get nothing.",
            "Who is to the right of rank n-1?",
        ),
        Mistake(
            "tail",
            _tail_lost,
            "The last elements do not arrive: the pieces are not the whole tensor.",
            "S // n elements each, n times, is less than S where n does not divide S.",
        ),
        Mistake(
            "nothing moves",
            left_alone(),
            "Every `x` is what it was before.",
            "A slice is a view; an index list, `clone` and `cat` make copies.",
        ),
        Mistake(
            "too early",
            both(wrong, _sends_too_early),
            "A rank passes a piece on before it has come.",
            "A piece may leave when its own receive is over, and not before.",
        ),
        Mistake(
            "flat",
            _sends(lambda n: n - 1),
            "One rank sends the tensor to all others, so it sends (n-1) S bytes.",
            "Who else could pass it on?",
        ),
        Mistake(
            "tree",
            _sends(lambda n: (n - 1).bit_length(), n=5),
            "It is a tree: the root sends the whole tensor ceil(log2 n) times.",
            "Few rounds are good for small tensors. A big one is better cut.",
        ),
        Mistake(
            "all-reduce",
            _all_send,
            "Every rank sends nearly 2 S, as in an all-reduce.",
            "Only the root has something to say; the others pass it on.",
        ),
        Mistake(
            "bytes",
            _many_bytes,
            "Some rank sends more than twice what a scatter of the tensor sends.",
            "Who needs which piece when? Nobody needs the whole from one rank.",
        ),
        Mistake(
            "line",
            both(_slow, _in_a_chain, lambda a: max(a.run.messages) == 1),
            "The tensor goes down a line in one piece: while it moves, others wait.",
            "Cut it. How does each rank get a piece of its own in few rounds?",
        ),
        Mistake(
            "chain",
            both(_many_rounds, _in_a_chain),
            "It is a chain: its far end hears of the first piece after n-1 rounds.",
            "Spread the pieces first. In a tree that takes ceil(log2 n) rounds.",
        ),
        Mistake(
            "few pieces",
            both(_slow, _in_a_chain),
            "It is a chain of few rounds, so its pieces are large and take long.",
            "With more pieces a chain has too many rounds. Leave the chain.",
        ),
        Mistake(
            "one by one",
            both(_many_rounds, _root_serves_all),
            "The root serves all ranks itself, and that alone takes n-1 rounds.",
            "Give half of the tensor to one rank, which then shares the work.",
        ),
        Mistake(
            "buffer",
            _allocates,
            "Some rank allocates memory for what it has room for already, in `x`.",
            "A slice of `x` is a view, and one can receive into it.",
        ),
    ],
    outcome=lambda attempt, rank: attempt.args[rank][0],
    agrees=_equal,
)


# 05.3 Running sum


def running_cases(rng):
    """A tensor per rank, empty ones, and a cluster with links of unequal speed."""
    plain = [(n, size, False) for n, size in product(SIZES, (1, 7, 1000))]
    more = [(2, 0, False), (8, 0, False), (4, 1000, True), (4, 30_011, False)]
    for n, size, two_nodes in sorted(plain + more, key=lambda which: which[0]):
        tensors = list(torch.from_numpy(rng.uniform(1, 9, size=(n, size))))
        whole = torch.stack(tensors)  # [n, size]
        yield Case(
            n,
            f"{ranks(n)}, {size:,} elements" + ", on nodes of two T4" * two_nodes,
            [(x.clone(),) for x in tensors],
            expected=list(whole.cumsum(0)),
            facts={"S": size, "tensors": tensors},
            options=_two_nodes(n) if two_nodes else {},
            traced=size > 10_000,
        )


def _distances(n):
    """1, 2, 4, ... below n."""
    return [2**k for k in range((n - 1).bit_length())]


def _fewest_messages(case):
    return sum(case.n - d for d in _distances(case.n))


def _running_bytes(case):
    return len(_distances(case.n)) * 8 * case.facts["S"]


def _windows(case):
    """Each rank has the sum of 2, 4, 8, ... neighbours, counted round the circle."""
    n, tensors = case.n, case.facts["tensors"]
    window = range(2 ** len(_distances(n)))
    return [sum(tensors[(r - i) % n] for i in window) for r in range(n)]


def _everything(case):
    return [sum(case.facts["tensors"])] * case.n


def _mirrored(case):
    return list(torch.stack(case.facts["tensors"]).flip(0).cumsum(0).flip(0))


def _added_first(case):
    """Within a step, rank r-d has added before it sends to rank r."""
    sums = [x.clone() for x in case.facts["tensors"]]
    for d in _distances(case.n):
        for r in range(d, case.n):
            sums[r] += sums[r - d]
    return sums


def _one_step_less(case):
    """The steps are those of the power of two below n: 1, 2, 4, ..."""
    sums = torch.stack(case.facts["tensors"])
    for d in _distances(case.n)[:-1]:
        sums[d:] += sums[:-d].clone()
    return list(sums)


def _without_own(attempt):
    case = attempt.case
    sums = torch.stack(case.facts["tensors"]).cumsum(0)
    return wrong(attempt) and case.n > 1 and all(map(same, attempt.came[1:], sums[:-1]))


def _running_slow(attempt):
    n = attempt.case.n
    return right(attempt) and n > 3 and attempt.run.rounds > len(_distances(n))


def _more_messages(attempt):
    return right(attempt) and _totals(attempt) > _fewest_messages(attempt.case)


def _more_bytes(attempt):
    allowed = _running_bytes(attempt.case)
    return right(attempt) and max(attempt.run.bytes_sent) > allowed


def _three_tensors(case):
    return 3 * 8 * case.facts["S"] + SPARE + case.noise


def _running_buffers(attempt):
    allowed = _three_tensors(attempt.case)
    return right(attempt) and max(attempt.run.peak_memory) > allowed


running_sum = Exercise(
    "05.3",
    "Running sum",
    running_cases,
    [
        rounds(lambda case: len(_distances(case.n)), exactly=False),
        messages(_fewest_messages, exactly=False),
        bytes_sent(_running_bytes, exactly=False),
        extra_memory(_three_tensors),
        from_messages(),
        all_waited(),
    ],
    [
        Mistake(
            "to itself",
            to_itself,
            "A rank sends to itself.",
            "Only ranks below n - d have somebody d places to the right.",
        ),
        Mistake(
            "not in place",
            both(left_alone(), lambda a: any(map(torch.is_tensor, a.values))),
            "It returns a tensor, but `x` itself is what it was.",
            "`x = x + y` makes a new tensor; which line adds into the old one?",
        ),
        Mistake(
            "exclusive",
            _without_own,
            "Rank r has the sum of ranks 0 to r-1: its own tensor is missing.",
            "Add what comes to `x`; do not put it in its place.",
        ),
        Mistake(
            "wraps",
            both(lambda a: a.case.n in (3, 5), gives(_windows)),
            "The circle is closed: rank 0 receives from the last ranks, and adds.",
            "Who is d places to the left of rank r, if r < d?",
        ),
        Mistake(
            "total",
            both(lambda a: a.case.n > 1, gives(_everything)),
            "Every rank has the sum of all; rank r is to have that of ranks 0 to r.",
            "What must rank 0 have at the end? So what may it receive?",
        ),
        Mistake(
            "mirrored",
            both(lambda a: a.case.n > 1, gives(_mirrored)),
            "Rank r has the sum of ranks r to n-1: messages go the wrong way.",
            "Rank 0 is done from the start. To whom does it send?",
        ),
        Mistake(
            "adds before sending",
            both(lambda a: a.case.n > 2, gives(_added_first)),
            "Ranks add what comes before they send, so terms are counted twice.",
            "In every step each rank sends what it had when the step began.",
        ),
        Mistake(
            "too few steps",
            both(lambda a: a.case.n in (3, 5), gives(_one_step_less)),
            "A step is missing: the last ranks have not heard of the first ones.",
            "n ranks that are no power of two need as many steps as the next one.",
        ),
        Mistake(
            "touches what leaves",
            touches_what_leaves,
            "A rank adds to `x` while the message with `x` is still leaving.",
            "Until `wait`, do not touch what leaves.",
        ),
        Mistake(
            "chain",
            both(_running_slow, lambda a: _totals(a) == a.case.n - 1),
            "Each rank waits for the one before it: n-1 rounds, one after the other.",
            "After one round rank r can know two terms, after two rounds four.",
        ),
        Mistake(
            "one after the other",
            both(_running_slow, lambda a: _totals(a) == _fewest_messages(a.case)),
            "The messages of one step wait for each other.",
            "Send and receive at once, or begin with `isend` and wait afterwards.",
        ),
        Mistake(
            "single terms",
            both(_running_slow, lambda a: _totals(a) >= a.case.n * (a.case.n - 1) // 2),
            "Ranks collect the terms one by one, and every message brings one term.",
            "A message can carry the sum of several terms.",
        ),
        Mistake(
            "idle messages",
            both(_more_messages, lambda a: not _running_slow(a)),
            "Some messages bring nothing that their receiver needs.",
            "Does rank 0 need anything? Does any rank need terms of higher ranks?",
        ),
        Mistake(
            "lists",
            _more_bytes,
            "Messages grow: they carry the terms, where their sum would do.",
            "The sum of four tensors is as large as one.",
        ),
        Mistake(
            "buffer",
            _running_buffers,
            "Some rank holds more than three tensors like `x` besides `x`.",
            "One tensor for what comes is enough, and `x += ...` adds in place.",
        ),
    ],
    outcome=lambda attempt, rank: attempt.args[rank][0],
)


# 05.4 Reduce-scatter, unequal shards


def shard_cases(rng):
    """Shards of equal and unequal sizes, some of them empty."""
    for n in SIZES:
        one = [7 * (r == n // 2) for r in range(n)]  # one rank has everything
        small = [int(size) for size in rng.integers(1, 6, n)]
        gaps = [size * (r % 3 != 1) for r, size in enumerate(small)]
        large = [int(size) for size in rng.permutation(n) * 40 + 110]
        for sizes in ([3] * n, one, gaps, small, large):
            yield _shard_case(rng, sizes)
        if n == 2:
            yield _shard_case(rng, [0, 0])
        if n == 4:
            yield _shard_case(rng, [120, 90, 140, 100], two_nodes=True)
            yield _shard_case(rng, [10_007, 10_000, 9_000, 10_001])


def _shard_case(rng, sizes, two_nodes=False):
    n, S = len(sizes), sum(sizes)
    tensors = list(torch.from_numpy(rng.uniform(1, 9, size=(n, S))))
    total = torch.stack(tensors).sum(0)  # [S]
    return Case(
        n,
        f"{ranks(n)}, sizes {sizes}" + ", on nodes of two T4" * two_nodes,
        [(x.clone(), list(sizes)) for x in tensors],
        expected=[shard.clone() for shard in total.split(sizes)],
        facts={"S": S, "sizes": sizes, "total": total, "tensors": tensors},
        options=_two_nodes(n) if two_nodes else {},
        traced=S > 10_000,
    )


def _shard_bytes(case):
    return [8 * (case.facts["S"] - size) for size in case.facts["sizes"]]


def _three_shards(case):
    return 3 * 8 * max(case.facts["sizes"]) + SPARE + case.noise


def _of_neighbour(k):
    """Rank r has the shard of rank r+k."""

    def shards(case):
        shards = case.facts["total"].split(case.facts["sizes"])
        return [shards[(r + k) % case.n] for r in range(case.n)]

    return both(lambda a: a.case.n > 1, gives(shards))


def _equal_shards(attempt):
    """Cut in n equal parts, by tensor_split, by chunk, or by a view that fails."""
    case, total = attempt.case, attempt.case.facts["total"]
    if len(set(case.facts["sizes"])) == 1:
        return False
    if raises(RuntimeError)(attempt):
        return "invalid for input of size" in str(attempt.cause)
    cuts = [total.tensor_split(case.n), total.chunk(case.n)]
    cuts.append(total[: len(total) // case.n * case.n].chunk(case.n))
    return any(
        len(cut) == case.n and gives(lambda _, c=cut: c)(attempt) for cut in cuts
    )


def _input_changed(attempt):
    if attempt.error is not None:
        return False
    before = [arguments[0] for arguments in attempt.case.inputs]
    after = [arguments[0] for arguments in attempt.args]
    return not all(map(same, after, before))


def _own_only(case):
    """Nothing was added: each rank has its own term."""
    sizes, tensors = case.facts["sizes"], case.facts["tensors"]
    return [tensors[r].split(sizes)[r] for r in range(case.n)]


reduce_shards = Exercise(
    "05.4",
    "Reduce-scatter with unequal shards",
    shard_cases,
    [
        bytes_sent(_shard_bytes),
        rounds(lambda case: case.n - 1, exactly=False),
        extra_memory(_three_shards),
        from_messages(),
        all_waited(),
        untouched(0),
    ],
    [
        Mistake(
            "to itself",
            to_itself,
            "A rank sends to itself.",
            "Its own term of its own shard is there already.",
        ),
        Mistake(
            "equal shards",
            _equal_shards,
            "The tensor is cut into equal parts, not as `sizes` says.",
            "`x.split(sizes)` cuts it as wanted.",
        ),
        Mistake(
            "sizes",
            mismatched,
            "Two ranks disagree about the size of a shard that travels.",
            "What comes to rank r is a term of shard r: it has sizes[r] elements.",
        ),
        Mistake(
            "empty shard",
            both(hangs, lambda a: 0 in a.case.facts["sizes"]),
            "A message of an empty shard is left out at one of its two ends only.",
            "Both ends know `sizes`: both leave it out, or none.",
        ),
        Mistake(
            "owner",
            lambda a: any(_of_neighbour(k)(a) for k in (1, -1)),
            "The sums are right, but rank r has the shard of its neighbour.",
            "In a ring of n-1 steps, where must shard r start to end at rank r?",
        ),
        Mistake(
            "nothing added",
            both(lambda a: a.case.n > 1, gives(_own_only)),
            "Each rank returns its own term of its shard; the others are not added.",
            "Every other rank has a term for you.",
        ),
        Mistake(
            "touches what leaves",
            touches_what_leaves,
            "A rank changes a tensor while the message with it is still leaving.",
            "Until `wait`, do not touch what leaves.",
        ),
        Mistake(
            "input changed",
            _input_changed,
            "`x` has other numbers afterwards: sums were added into it.",
            "A slice of `x` is a view. Where else could the sum grow?",
        ),
        Mistake(
            "bytes",
            both(
                right,
                lambda a: any(map(int.__gt__, a.run.bytes_sent, _shard_bytes(a.case))),
            ),
            "Some rank sends more than its terms of the others' shards.",
            "No rank needs to know the sum of another rank's shard.",
        ),
        Mistake(
            "memory",
            both(right, lambda a: max(a.run.peak_memory) > _three_shards(a.case)),
            "Some rank holds more than three shards at once.",
            "Add each term as it comes. What leaves need not be copied.",
        ),
        Mistake(
            "in turn",
            both(right, lambda a: a.run.rounds > a.case.n - 1),
            "It takes more than n-1 rounds: ranks wait while others are served.",
            "In each round every rank can send one shard and receive one.",
        ),
    ],
)


# 05.5 Transpose what no rank can hold


def transpose_cases(rng):
    """Square matrices cut by rows, also with fewer rows than ranks."""
    plain = [(n, N, False) for n, N in product(SIZES, (1, 5, 8, 64, 67))]
    more = [(4, 67, True), (4, 203, False)]
    for n, N, two_nodes in sorted(plain + more, key=lambda which: which[0]):
        whole = torch.from_numpy(rng.uniform(1, 9, size=(N, N)))
        yield Case(
            n,
            f"{ranks(n)}, N = {N}" + ", on nodes of two T4" * two_nodes,
            [(rows.clone(),) for rows in whole.tensor_split(n)],
            expected=[rows.clone() for rows in whole.t().tensor_split(n)],
            facts={"S": N, "rows": _rows(N, n), "whole": whole},
            options=_two_nodes(n) if two_nodes else {},
            traced=N > 100,
        )


def _rows(N, n):
    """Rows of each rank, as `torch.tensor_split` cuts."""
    return [N // n + (r < N % n) for r in range(n)]


def _transpose_bytes(case):
    N = case.facts["S"]
    return [8 * rows * (N - rows) for rows in case.facts["rows"]]


def _transpose_memory(case):
    """The result, and four blocks of the largest size."""
    N, rows = case.facts["S"], case.facts["rows"]
    return [8 * (own * N + 4 * rows[0] ** 2) + SPARE + case.noise for own in rows]


def _swapped_only(case):
    """Blocks have changed places, but none is transposed."""
    N, n, rows = case.facts["S"], case.n, case.facts["rows"]
    if N % n:
        return [None] * n
    whole = case.facts["whole"]
    shards = [whole[:, cols] for cols in torch.arange(N).split(rows)]  # [N, N/n]
    return [torch.cat(shard.split(rows), dim=1) for shard in shards]


def _turned_only(attempt):
    """Each block is transposed where it was, and none has moved."""
    case = attempt.case
    if case.facts["S"] % case.n or case.n == 1:
        return False
    rows = case.facts["rows"]
    shards = case.facts["whole"].split(rows)
    turned = [
        torch.cat([block.t() for block in shard.split(rows, dim=1)], dim=1)
        for shard in shards
    ]
    return gives(lambda _: turned)(attempt)


def _columns(attempt):
    """The right numbers, in a tensor of [N, rows] instead of [rows, N]."""
    if not wrong(attempt) or attempt.case.n == 1:
        return False
    flat = [x.t() if torch.is_tensor(x) and x.dim() == 2 else x for x in attempt.came]
    return all(map(same, flat, attempt.case.expected))


def _whole_somewhere(attempt):
    n, N = attempt.case.n, attempt.case.facts["S"]
    if not right(attempt) or n < 5 or N < 60:
        return False  # a few shards may be as large
    return max(attempt.run.peak_memory) >= 8 * N * N


def _transpose_crowded(attempt):
    pairs = zip(attempt.run.peak_memory, _transpose_memory(attempt.case), strict=True)
    return right(attempt) and any(peak > limit for peak, limit in pairs)


transpose = Exercise(
    "05.5",
    "Transpose what no rank can hold",
    transpose_cases,
    [
        bytes_sent(_transpose_bytes),
        messages(lambda case: case.n * (case.n - 1), exactly=False),
        rounds(lambda case: case.n - 1, exactly=False),
        extra_memory(_transpose_memory),
        from_messages(),
        all_waited(),
        untouched(0),
    ],
    [
        Mistake(
            "strided",
            strided,
            "A block of columns has gaps in memory, and such a view cannot be sent.",
            "`contiguous()` copies one block together. To receive, it is no help.",
        ),
        Mistake(
            "to itself",
            to_itself,
            "A rank sends its own block to itself.",
            "That block stays: copy it, transposed, to its place.",
        ),
        Mistake(
            "block sizes",
            mismatched,
            "A block has another size than its receiver expects.",
            "The block from rank i to rank j has rows(i) times rows(j) elements.",
        ),
        Mistake(
            "not transposed",
            both(lambda a: a.case.n > 1, gives(_swapped_only)),
            "The blocks have changed places, but inside they are as they were.",
            "An element of row i and column j: where is it inside its block?",
        ),
        Mistake(
            "not moved",
            _turned_only,
            "The blocks are transposed, each in its place, but none has moved.",
            "Rank r needs columns of everybody's rows.",
        ),
        Mistake(
            "columns",
            _columns,
            "The numbers are right, but rows and columns of the shard are exchanged.",
            "Rank r returns a tensor of [its rows, N].",
        ),
        Mistake(
            "shapes",
            both(
                raises(RuntimeError),
                lambda a: a.case.facts["S"] % a.case.n and "shape" in str(a.cause),
            ),
            "Blocks are not squares here: their shapes do not fit each other.",
            "Rank i's block for rank j has rows(i) rows; after `t()`, rows(j).",
        ),
        Mistake(
            "touches what leaves",
            touches_what_leaves,
            "A rank changes a tensor while the message with it is still leaving.",
            "Until `wait`, do not touch what leaves.",
        ),
        Mistake(
            "whole matrix",
            _whole_somewhere,
            "Some rank holds the whole matrix, and that is what no rank can do.",
            "Rank i needs one block of each other rank's rows, no more.",
        ),
        Mistake(
            "too much sent",
            both(
                right,
                lambda a: any(
                    map(int.__gt__, a.run.bytes_sent, _transpose_bytes(a.case))
                ),
            ),
            "Some rank sends more than the blocks that others need of it.",
            "Rank j needs of rank i's rows the columns that are rank j's rows.",
        ),
        Mistake(
            "row by row",
            both(right, lambda a: _totals(a) > a.case.n * (a.case.n - 1)),
            "A block travels in several messages, and each costs alpha.",
            "`contiguous()` makes a block one piece of memory.",
        ),
        Mistake(
            "many blocks",
            _transpose_crowded,
            "More than four blocks besides the result are held at the same time.",
            "One block leaves, one comes; the result can take each at once.",
        ),
        Mistake(
            "in turn",
            both(right, lambda a: a.run.rounds > a.case.n - 1),
            "It takes more than n-1 rounds: some ranks wait while others exchange.",
            "In step k, rank r can send to r+k and receive from r-k, for all r.",
        ),
    ],
)


EXERCISES = [deal, broadcast_big, running_sum, reduce_shards, transpose]
