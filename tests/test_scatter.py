"""`d2lpar.scatter`: the family equals torch's, at exactly its cost."""

import inspect
import math
import re

import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import EVERYWHERE, RANKS, WORLDS
from d2lpar import scatter as s

ALPHA, BETA = 7e-6, 3e-9
BIG = 200_003


def values(r, size, dtype):
    """What rank r holds: other numbers on every rank."""
    x = torch.arange(size) % 1000 + 1000 * r
    return x if dtype is torch.int64 else x.to(dtype) / 7


def same(ours, native, truth):
    """Equal to torch's result and to the truth: sums of floats up to rounding."""
    for a, b, c in zip(ours, native, truth, strict=True):
        exact = not a.is_floating_point()
        if not (torch.equal(a, b) and torch.equal(a, c)):
            assert not exact, f"{a} is not {b}"
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(a, c, rtol=1e-12, atol=1e-12)


class Case:
    """What this rank holds, in a group: a whole tensor, and its n unequal pieces."""

    def __init__(self, size, dtype, root, group):
        self.n, self.r = dist.get_world_size(group), dist.get_rank(group)
        self.root, self.group = root, group
        self.everyones = [values(i, size, dtype) for i in range(self.n)]
        self.mine = self.everyones[self.r]
        # pieces[i][j] is piece j of rank i
        self.pieces = [x.tensor_split(self.n) for x in self.everyones]

    def room(self):
        """A list with room for one piece of every rank."""
        return [torch.empty_like(x) for x in self.pieces[self.r]]


def broadcasts(case):
    for ours in (s.flat_broadcast, s.tree_broadcast):
        a, b = case.mine.clone(), case.mine.clone()
        assert ours(a, case.root, case.group) is None
        dist.broadcast(b, group=case.group, group_src=case.root)
        same([a], [b], [case.everyones[case.root]])


def scatters(case):
    shards = case.pieces[case.root]
    a, b = torch.empty_like(shards[case.r]), torch.empty_like(shards[case.r])
    given = [x.clone() for x in shards] if case.r == case.root else None
    assert s.scatter(a, given, case.root, case.group) is None
    dist.scatter(b, given, group=case.group, group_src=case.root)
    same([a], [b], [shards[case.r]])
    same(given or [], given or [], shards if given else [])


def gathers(case):
    mine = case.pieces[0][case.r].clone() + case.r
    truth = [x + i for i, x in enumerate(case.pieces[0])]
    a = case.room() if case.r == case.root else None
    b = case.room() if case.r == case.root else None
    assert s.gather(mine, a, case.root, case.group) is None
    dist.gather(mine, b, group=case.group, group_dst=case.root)
    if case.r == case.root:
        same(a, b, truth)
    assert torch.equal(mine, truth[case.r])


def reduces(case):
    for ours in (s.flat_reduce, s.tree_reduce):
        a, b = case.mine.clone(), case.mine.clone()
        assert ours(a, case.root, case.group) is None
        dist.reduce(b, group=case.group, group_dst=case.root)
        if case.r == case.root:
            same([a], [b], [sum(case.everyones)])
        else:
            assert torch.equal(a, case.mine)


def all_gathers(case):
    mine = case.pieces[case.r][case.r].clone()
    truth = [case.pieces[i][i] for i in range(case.n)]
    a, b, c = case.room(), case.room(), case.room()
    assert s.all_gather(a, mine, case.group) is None
    dist.all_gather(b, mine, group=case.group)
    c[case.r].copy_(mine)
    assert s.ring_all_gather(c, case.group) is None
    same(a, b, truth)
    same(c, b, truth)
    assert torch.equal(mine, truth[case.r])


def reduce_scatters(case):
    whole = case.mine.clone()
    chunks = list(whole.tensor_split(case.n))
    a, b = torch.empty_like(chunks[case.r]), torch.empty_like(chunks[case.r])
    assert s.reduce_scatter(a, chunks, case.group) is None
    dist.reduce_scatter(b, chunks, group=case.group)
    assert torch.equal(whole, case.mine)
    assert s.ring_reduce_scatter(chunks, case.group) is None
    truth = sum(x[case.r] for x in case.pieces)
    same([a, chunks[case.r]], [b, b], [truth, truth])


def all_to_alls(case):
    given = [x.clone() for x in case.pieces[case.r]]
    truth = [x[case.r] for x in case.pieces]
    a, b = [torch.empty_like(x) for x in truth], [torch.empty_like(x) for x in truth]
    assert s.all_to_all(a, given, case.group) is None
    dist.all_to_all(b, given, group=case.group)
    same(a, b, truth)
    same(given, given, case.pieces[case.r])


ROOTED = (broadcasts, scatters, gathers, reduces)
ROOTLESS = (all_gathers, reduce_scatters, all_to_alls)


def the_family(pairs, dtypes, members=None):
    """Every collective for these (size, root); without a root once per size."""
    group = None if members is None else dist.new_group(members)
    if members is not None and dist.get_rank() not in members:
        return None
    sizes, count = set(), 0
    for size, root in pairs:
        cases = ROOTED if size in sizes else ROOTED + ROOTLESS
        sizes.add(size)
        for dtype in dtypes:
            case = Case(size, dtype, root, group)
            for each in cases:
                each(case)
            count += len(cases)
    return count


BOTH = (torch.int64, torch.float64)


def edges(n):
    """Sizes at the edges with some root, and every root with some size."""
    sizes = sorted({0, 1, n - 1, n, n + 1})
    return [(size, size % n) for size in sizes] + [(n + 1, root) for root in range(n)]


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_the_family_equals_torchs(n, world):
    pairs = edges(n)
    run = d2lpar.run(the_family, pairs, BOTH, world_size=n, backend=world)
    sizes = len({size for size, _ in pairs})
    assert run.results == [2 * (len(pairs) * 4 + sizes * 3)] * n
    assert run.warnings == []


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_the_family_equals_torchs_on_large_tensors(n, world):
    dtype = BOTH[n % 2 if world == "sim" else (n + 1) % 2]
    pairs = [(BIG, n - 1)]
    run = d2lpar.run(the_family, pairs, [dtype], world_size=n, backend=world)
    assert run.results == [7] * n


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("members", [[2], [1, 2, 4]])
def test_the_family_counts_in_ranks_of_the_group(members, world):
    pairs = edges(len(members))
    run = d2lpar.run(the_family, pairs, BOTH, members, world_size=5, backend=world)
    assert [r for r in range(5) if run.results[r]] == members
    assert all(run.bytes_sent[r] == 0 for r in range(5) if r not in members)


def strided(name):
    """One of the family on columns of matrices, which do not lie in one piece."""
    n, r = dist.get_world_size(), dist.get_rank()
    columns = torch.zeros(3, 2 * n)[:, ::2].unbind(1)
    only = lambda root: columns if r == root else None
    calls = {
        "flat_broadcast": lambda: s.flat_broadcast(columns[0]),
        "tree_broadcast": lambda: s.tree_broadcast(columns[0]),
        "scatter": lambda: s.scatter(columns[0], only(0)),
        "gather": lambda: s.gather(columns[0], only(0)),
        "flat_reduce": lambda: s.flat_reduce(columns[0]),
        "tree_reduce": lambda: s.tree_reduce(columns[0]),
        "ring_reduce_scatter": lambda: s.ring_reduce_scatter(columns),
        "ring_all_gather": lambda: s.ring_all_gather(columns),
        "all_gather": lambda: s.all_gather(columns, columns[r]),
        "all_to_all": lambda: s.all_to_all(columns, columns),
    }
    calls[name]()


NAMES = "flat_broadcast tree_broadcast scatter gather flat_reduce tree_reduce"
NAMES += " ring_reduce_scatter ring_all_gather all_gather all_to_all"


@pytest.mark.parametrize("name", NAMES.split())
def test_columns_of_a_matrix_are_a_clear_error(name):
    with pytest.raises(d2lpar.RankError, match="needs contiguous tensors"):
        d2lpar.run(strided, name, world_size=3, backend="sim")
    if name == "all_to_all":
        with pytest.raises(d2lpar.RankError, match="needs contiguous tensors"):
            d2lpar.run(strided, name, world_size=3, backend="gloo")


def parameters():
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.nn.Parameter(torch.full((6,), float(r)))
    s.tree_broadcast(x, 1)
    s.tree_reduce(x, 1)
    s.flat_reduce(x)
    with torch.no_grad():
        chunks = x.chunk(n)
    s.ring_reduce_scatter(chunks)
    s.reduce_scatter(torch.nn.Parameter(torch.zeros(3)), x.chunk(n))
    return x


def test_parameters_keep_their_gradients_out_of_it():
    run = d2lpar.run(parameters, world_size=2, backend="sim")
    # after the broadcast 1 1, after the reduces 3 2, after the ring 5 in chunk r
    assert run.results[0].tolist() == [5, 5, 5, 3, 3, 3]
    assert run.results[1].tolist() == [2, 2, 2, 5, 5, 5]


# The closed forms


def ceil_log2(n):
    return math.ceil(math.log2(n))


def tree_sends(n, v):
    """How often place v sends in a tree broadcast: once per step that it has it."""
    return sum(1 for k in range(ceil_log2(n)) if v < 2**k and v + 2**k < n)


def family_of(name, elements, root):
    """A rank function that runs one algorithm; `elements` per rank and piece."""
    algorithm = getattr(s, name)

    def run():
        n, r = dist.get_world_size(), dist.get_rank()
        x = torch.ones(elements)
        pieces = [torch.ones(elements) for _ in range(n)]
        if name.endswith(("broadcast", "_reduce")):
            algorithm(x, root)
        elif name in ("scatter", "gather"):
            algorithm(x, pieces if r == root else None, root)
        elif name.startswith("ring"):
            algorithm(pieces)
        elif name == "reduce_scatter":
            algorithm(x, pieces)
        elif name == "all_gather":
            algorithm(pieces, x)
        else:
            algorithm(pieces, [torch.ones(elements) for _ in range(n)])

    return run


# name: (messages that rank r sends, rounds); v is r's place right of the root.
FORMS = {
    "flat_broadcast": lambda n, v: (n - 1 if v == 0 else 0, n - 1),
    "tree_broadcast": lambda n, v: (tree_sends(n, v), ceil_log2(n)),
    "scatter": lambda n, v: (n - 1 if v == 0 else 0, n - 1),
    "gather": lambda n, v: (int(v > 0), n - 1),
    "flat_reduce": lambda n, v: (int(v > 0), n - 1),
    "tree_reduce": lambda n, v: (int(v > 0), ceil_log2(n)),
    "ring_reduce_scatter": lambda n, v: (n - 1, n - 1),
    "ring_all_gather": lambda n, v: (n - 1, n - 1),
    "reduce_scatter": lambda n, v: (n - 1, n - 1),
    "all_gather": lambda n, v: (n - 1, n - 1),
    "all_to_all": lambda n, v: (n - 1, n - 1),
}


def test_every_algorithm_has_its_closed_form():
    here = [f for f in vars(s).values() if inspect.isfunction(f)]
    ours = {f.__name__ for f in here if f.__module__ == s.__name__}
    helpers = {"members", "doublings", "check_list", "copy_own"}
    assert {name for name in ours if name[0] != "_"} - helpers == set(FORMS)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", FORMS)
def test_bytes_messages_rounds_and_time_are_the_closed_form(name, n):
    elements, root = 1000, n // 2
    cluster = d2lpar.Cluster.ideal(n, ALPHA, BETA)
    function = family_of(name, elements, root)
    run = d2lpar.run(function, world_size=n, backend="sim", cluster=cluster)
    forms = [FORMS[name](n, (r - root) % n) for r in range(n)]
    assert run.messages == [messages for messages, _ in forms]
    assert run.bytes_sent == [4 * elements * messages for messages, _ in forms]
    rounds = forms[0][1]
    assert run.rounds == rounds
    expected = rounds * (ALPHA + BETA * 4 * elements)
    assert run.elapsed == pytest.approx(expected, rel=1e-9)


def all_of_them(elements, root):
    for name in FORMS:
        family_of(name, elements, root)()


def sent(run):
    """(to whom, bytes) of the messages of each rank, in order."""
    lines = [[] for _ in range(run.world_size)]
    for event in run.timeline:
        if event.stream == "send":
            lines[event.rank].append((event.peer, event.bytes))
    return lines


def test_processes_send_the_same_messages():
    n, root = 5, 3
    runs = [
        d2lpar.run(all_of_them, 10, root, world_size=n, backend=world)
        for world in WORLDS
    ]
    forms = [[form(n, (r - root) % n)[0] for form in FORMS.values()] for r in range(n)]
    for run in runs:
        assert [len(line) for line in sent(run)] == [sum(form) for form in forms]
        assert run.bytes_sent == [40 * sum(form) for form in forms]
    assert sent(runs[0]) == sent(runs[1])


@pytest.mark.parametrize("n", [16, 33, 100])
@pytest.mark.parametrize("name", ["tree_broadcast", "tree_reduce"])
def test_a_tree_of_many_ranks_has_log_n_rounds(name, n):
    run = d2lpar.run(family_of(name, 1, 5), world_size=n, backend="sim")
    assert run.rounds == ceil_log2(n)
    assert sum(run.messages) == n - 1


def unequal(sizes, root):
    """One float32 tensor of each size; the root has all of them."""
    n, r = dist.get_world_size(), dist.get_rank()
    shards = [torch.full((size,), float(i)) for i, size in enumerate(sizes)]
    x = torch.zeros(sizes[r])
    s.scatter(x, shards if r == root else None, root)
    assert (x == r).all()
    back = [torch.empty_like(shard) for shard in shards]
    s.gather(x, back if r == root else None, root)
    if r == root:
        assert all(map(torch.equal, back, shards))
    return n


def test_unequal_shards_cost_their_bytes_and_empty_ones_nothing():
    sizes, root = [3, 0, 5, 0, 1000], 2
    cluster = d2lpar.Cluster.ideal(5, ALPHA, BETA)
    run = d2lpar.run(unequal, sizes, root, world_size=5, backend="sim", cluster=cluster)
    assert run.messages == [1, 0, 2, 0, 1]
    assert run.bytes_sent == [12, 0, 4012, 0, 4000]
    assert run.traffic[2].tolist() == [12, 0, 0, 0, 4000]
    assert run.elapsed == pytest.approx(2 * (2 * ALPHA + BETA * 4012), rel=1e-9)


def test_the_ring_sends_all_but_one_of_unequal_chunks():
    sizes = [3, 0, 5, 1, 7]

    def ring(algorithm):
        algorithm([torch.ones(size, dtype=torch.float64) for size in sizes])

    whole = sum(sizes)
    run = d2lpar.run(ring, s.ring_reduce_scatter, world_size=5, backend="sim")
    assert run.bytes_sent == [8 * (whole - sizes[r]) for r in range(5)]
    run = d2lpar.run(ring, s.ring_all_gather, world_size=5, backend="sim")
    assert run.bytes_sent == [8 * (whole - sizes[(r + 1) % 5]) for r in range(5)]


def on_chunks(x, algorithm):
    algorithm(x.tensor_split(dist.get_world_size()))


def on_a_tensor(x, algorithm):
    algorithm(x)


# Elements of float64 that each of four ranks needs beside a tensor of 1002.
SPARE = {
    "ring_reduce_scatter": (on_chunks, [251] * 4),
    "ring_all_gather": (on_chunks, [0] * 4),
    "flat_broadcast": (on_a_tensor, [0] * 4),
    "tree_broadcast": (on_a_tensor, [0] * 4),
    "flat_reduce": (on_a_tensor, [1002, 0, 0, 0]),
    "tree_reduce": (on_a_tensor, [2004, 1002, 0, 0]),
}


@pytest.mark.parametrize("name", SPARE)
def test_spare_memory(name):
    function, elements = SPARE[name]
    x = torch.ones(1002, dtype=torch.float64)
    run = d2lpar.run(function, x, getattr(s, name), world_size=4, backend="sim")
    assert run.peak_memory == [8 * count for count in elements]


def arrows(run):
    """(from, to, start, stop) of every message; times in units of a message."""
    pairs = run.timeline.messages()
    unit = min(send.stop - send.start for send, _ in pairs)
    return {
        (send.rank, recv.rank, round(send.start / unit), round(send.stop / unit))
        for send, recv in pairs
    }


def test_the_reduce_is_the_broadcast_read_backwards():
    names = ("tree_broadcast", "tree_reduce")
    runs = [
        d2lpar.run(family_of(name, 10, 2), world_size=6, backend="sim")
        for name in names
    ]
    end = ceil_log2(6)
    mirrored = {
        (b, a, end - stop, end - start) for a, b, start, stop in arrows(runs[0])
    }
    assert arrows(runs[1]) == mirrored


# What goes wrong


def from_another(rank_of_root, algorithm):
    algorithm(torch.ones(1), rank_of_root[dist.get_rank()])


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_name_two_roots_are_told_who_waits(world):
    with pytest.raises(d2lpar.DeadlockError, match="wait") as caught:
        given = from_another, [0, 0, 2], s.tree_reduce
        d2lpar.run(*given, world_size=3, backend=world, timeout=1)
    assert "d2lpar/scatter.py" not in str(caught.value)


def test_sizes_that_do_not_fit_are_named():
    def too_long():
        r = dist.get_rank()
        s.gather(torch.ones(4 + r), [torch.ones(4)] * 3 if r == 0 else None)

    with pytest.raises(d2lpar.MismatchError, match=r"float32\[4\]"):
        d2lpar.run(too_long, world_size=3, backend="sim")


def lists(count):
    return [torch.ones(1) for _ in range(count)]


WRONG = {
    "0 to 2, not 3": lambda: s.flat_broadcast(torch.ones(1), 3),
    "0 to 2, not -1": lambda: s.tree_broadcast(torch.ones(1), -1),
    "0 to 2, not 0.5": lambda: s.flat_reduce(torch.ones(1), 0.5),
    "0 to 2, not None": lambda: s.tree_reduce(torch.ones(1), None),
    "list of 3 tensors, not 0": lambda: s.scatter(torch.ones(1)),
    "list of 3 tensors, not 2": lambda: s.gather(
        torch.ones(1), lists(2) if dist.get_rank() == 0 else None
    ),
    "Only the root": lambda: s.scatter(torch.ones(1), lists(3), 1),
    "list of 3 tensors, not 4": lambda: s.ring_reduce_scatter(lists(4)),
    "list of 3 tensors, not 1": lambda: s.ring_all_gather(lists(1)),
    "rank 2 .*list of 3 tensors, not 1": lambda: s.all_gather(
        lists(1 if dist.get_rank() == 2 else 3), torch.ones(1)
    ),
    r"3 tensors, not 2\. at": lambda: s.reduce_scatter(torch.ones(1), lists(2)),
    "has 1 elements, but": lambda: s.reduce_scatter(torch.ones(5), lists(3)),
    "has 5 elements, but": lambda: s.all_gather(lists(3), torch.ones(5)),
    "3 tensors, not 5": lambda: s.all_to_all(lists(5), lists(3)),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_get_one_clear_sentence(text):
    with pytest.raises(d2lpar.RankError) as caught:
        d2lpar.run(WRONG[text], world_size=3, backend="sim")
    said, _, _ = str(caught.value).partition(".py:")  # the line shown has the text, too
    assert re.search(text, said) and "ValueError" in said


def test_a_rank_outside_the_group_is_told():
    def outside():
        group = dist.new_group([0, 1])
        s.tree_broadcast(torch.ones(1), group=group)

    with pytest.raises(d2lpar.RankError, match="rank 2 .*Only members"):
        d2lpar.run(outside, world_size=3, backend="sim")
