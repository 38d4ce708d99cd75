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
BOTH = (torch.int64, torch.float64)


def values(r, size, dtype):
    """What rank r holds: other numbers on every rank."""
    x = torch.arange(size) % 1000 + 1000 * r
    return x if dtype is torch.int64 else x.to(dtype) / 7


def room(tensors):
    """Tensors of these sizes, in which nothing has been written yet."""
    return [torch.full_like(x, -1) for x in tensors]


def copied(arguments):
    if isinstance(arguments, (list, tuple)):
        return [*map(copied, arguments)]
    return None if arguments is None else arguments.clone()


def same(came, wanted):
    """Lists of tensors are equal, floats up to rounding; None is not looked at."""
    if isinstance(wanted, (list, tuple)):
        for each, other in zip(came, wanted, strict=True):
            same(each, other)
    elif wanted is not None and not torch.equal(came, wanted):
        torch.testing.assert_close(came, wanted, rtol=1e-12, atol=1e-12)


def before_and_after(size, dtype, root, n, r):
    """(names, arguments before, the same after the call): the table of the module."""
    everyones = [values(i, size, dtype) for i in range(n)]
    pieces = [x.tensor_split(n) for x in everyones]  # [i][j] is piece j of rank i
    mine, own, column = everyones[r], pieces[r][r], [x[r] for x in pieces]
    whole, summed = [x[i] for i, x in enumerate(pieces)], sum(column)
    here, places = r == root, room(pieces[r])
    given, ring = (pieces[root] if here else None), [*places[:r], own, *places[r + 1 :]]
    only = [summed if i == r else None for i in range(n)]
    return [
        ("flat_broadcast tree_broadcast", [mine], [everyones[root]]),
        ("flat_reduce tree_reduce", [mine], [sum(everyones) if here else mine]),
        ("scatter", [places[r], given], [pieces[root][r], given]),
        ("gather", [own, places if here else None], [own, whole if here else None]),
        ("all_gather", [places, own], [whole, own]),
        ("reduce_scatter", [places[r], pieces[r]], [summed, pieces[r]]),
        ("all_to_all", [room(column), pieces[r]], [column, pieces[r]]),
        ("ring_all_gather", [ring], [whole]),
        ("ring_reduce_scatter", [pieces[r]], [only]),
    ]


ROOTED = "flat_broadcast tree_broadcast flat_reduce tree_reduce scatter gather".split()


def the_family(cases, members=None):
    """Every collective, ours and torch's, leaves what the table says."""
    group = dist.new_group(members) if members else None
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r < 0:
        return False
    for size, root, dtype in cases:
        for names, before, after in before_and_after(size, dtype, root, n, r):
            for name in names.split():
                given, roots = copied(before), [root] * (name in ROOTED)
                assert getattr(s, name)(*given, *roots, group=group) is None
                same(given, after)
            native = re.sub("^(flat|tree)_", "", names.split()[0])
            if not native.startswith("ring"):
                given = copied(before)
                roots = [members[root] if members else root for root in roots]
                getattr(dist, native)(*given, *roots, group=group)
                if native != "reduce" or r == root:  # torch leaves the rest undefined
                    same(given, after)
    return True


def edges(n):
    """Sizes at the edges with some root, and every root with some size."""
    sizes = sorted({0, 1, n - 1, n, n + 1})
    pairs = [(size, size % n) for size in sizes] + [(n + 1, root) for root in range(n)]
    return [(*pair, dtype) for pair in pairs for dtype in BOTH]


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_the_family_equals_torchs(n, world):
    cases = [*edges(n), (BIG, n - 1, BOTH[(n + (world == "gloo")) % 2])]
    run = d2lpar.run(the_family, cases, world_size=n, backend=world)
    assert run.results == [True] * n and run.warnings == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("members", [[2], [1, 2, 4]])
def test_the_family_counts_in_ranks_of_the_group(members, world):
    cases = edges(len(members))
    run = d2lpar.run(the_family, cases, members, world_size=5, backend=world)
    assert [r for r in range(5) if run.results[r]] == members
    assert all(run.bytes_sent[r] == 0 for r in range(5) if r not in members)


def call(name, x, pieces, root=0):
    """Run one of the family on a tensor and a list of n; only a root has the list."""
    if name.endswith(("broadcast", "_reduce")):
        given = x, root
    elif name in ("scatter", "gather"):
        given = x, pieces if dist.get_rank() == root else None, root
    elif name == "all_to_all":
        given = [torch.empty_like(piece) for piece in pieces], pieces
    elif name == "reduce_scatter":
        given = x, pieces
    elif name == "all_gather":
        given = pieces, x
    else:
        given = (pieces,)
    getattr(s, name)(*given)


# name: (messages that rank r sends, rounds); v is r's place right of the root.
FORMS = {
    "flat_broadcast": lambda n, v: (n - 1 if v == 0 else 0, n - 1),
    "tree_broadcast": lambda n, v: (tree_sends(n, v), ceil_log2(n)),
    "scatter": lambda n, v: (n - 1 if v == 0 else 0, n - 1),
    "gather": lambda n, v: (int(v > 0), n - 1),
    "flat_reduce": lambda n, v: (int(v > 0), n - 1),
    "tree_reduce": lambda n, v: (int(v > 0), ceil_log2(n)),
}
ROTATING = "ring_reduce_scatter", "ring_all_gather", "reduce_scatter", "all_gather"
FORMS |= dict.fromkeys((*ROTATING, "all_to_all"), lambda n, v: (n - 1, n - 1))


def ceil_log2(n):
    return math.ceil(math.log2(n))


def tree_sends(n, v):
    """How often place v sends in a tree broadcast: once per step that it has it."""
    return sum(1 for k in range(ceil_log2(n)) if v < 2**k and v + 2**k < n)


def strided(name):
    """One of the family on columns of matrices, which do not lie in one piece."""
    columns = torch.zeros(3, 2 * dist.get_world_size())[:, ::2].unbind(1)
    call(name, columns[0], columns)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "reduce_scatter"])
def test_columns_of_a_matrix_are_a_clear_error(name):
    for world in WORLDS if name == "all_to_all" else ("sim",):
        with pytest.raises(d2lpar.RankError, match="needs contiguous tensors"):
            d2lpar.run(strided, name, world_size=3, backend=world)


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
    return x.tolist()


def test_parameters_keep_their_gradients_out_of_it():
    run = d2lpar.run(parameters, world_size=2, backend="sim")
    # after the broadcast 1 1, after the reduces 3 2, after the ring 5 in chunk r
    assert run.results == [[5, 5, 5, 3, 3, 3], [2, 2, 2, 5, 5, 5]]


# The closed forms


def test_every_algorithm_has_its_closed_form():
    here = [f for f in vars(s).values() if inspect.isfunction(f)]
    ours = {f.__name__ for f in here if f.__module__ == s.__name__}
    helpers = {"members", "doublings", "check_list", "copy_own"}
    assert {name for name in ours if name[0] != "_"} - helpers == set(FORMS)


def on_ones(name, elements, root):
    n = dist.get_world_size()
    call(name, torch.ones(elements), [*torch.ones(n, elements)], root)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("name", FORMS)
def test_bytes_messages_rounds_and_time_are_the_closed_form(name, n):
    elements, root = 1000, n // 2
    at = {"backend": "sim", "cluster": d2lpar.Cluster.ideal(n, ALPHA, BETA)}
    run = d2lpar.run(on_ones, name, elements, root, world_size=n, **at)
    forms = [FORMS[name](n, (r - root) % n) for r in range(n)]
    assert run.messages == [messages for messages, _ in forms]
    assert run.bytes_sent == [4 * elements * messages for messages, _ in forms]
    rounds = forms[0][1]
    assert run.rounds == rounds
    expected = rounds * (ALPHA + BETA * 4 * elements)
    assert run.elapsed == pytest.approx(expected, rel=1e-9)


def all_of_them(elements, root):
    for name in FORMS:
        on_ones(name, elements, root)


def sent(run):
    """(to whom, bytes) of the messages of each rank, in order."""
    rows = [run.timeline.rows[r].get("send", []) for r in range(run.world_size)]
    return [[(event.peer, event.bytes) for event in row] for row in rows]


def test_processes_send_the_same_messages():
    n, root = 5, 3
    sim, real = (
        sent(d2lpar.run(all_of_them, 10, root, world_size=n, backend=world))
        for world in WORLDS
    )
    forms = [[form(n, (r - root) % n)[0] for form in FORMS.values()] for r in range(n)]
    assert [len(row) for row in sim] == [sum(form) for form in forms]
    assert {size for row in sim for _, size in row} == {40}
    assert sim == real


@pytest.mark.parametrize("n", [16, 33, 100])
@pytest.mark.parametrize("name", ["tree_broadcast", "tree_reduce"])
def test_a_tree_of_many_ranks_has_log_n_rounds(name, n):
    run = d2lpar.run(on_ones, name, 1, 5, world_size=n, backend="sim")
    assert (run.rounds, sum(run.messages)) == (ceil_log2(n), n - 1)


def unequal(sizes, root):
    """One float32 tensor of each size; the root has all of them."""
    shards = [torch.full((size,), float(i)) for i, size in enumerate(sizes)]
    x, back = torch.zeros(sizes[dist.get_rank()]), room(shards)
    call("scatter", x, shards, root)
    call("gather", x, back, root)
    assert (x == dist.get_rank()).all()
    assert dist.get_rank() != root or all(map(torch.equal, back, shards))


def test_unequal_shards_cost_their_bytes_and_empty_ones_nothing():
    at = {"backend": "sim", "cluster": d2lpar.Cluster.ideal(5, ALPHA, BETA)}
    run = d2lpar.run(unequal, [3, 0, 5, 0, 1000], 2, world_size=5, **at)
    assert run.messages == [1, 0, 2, 0, 1]
    assert run.bytes_sent == [12, 0, 4012, 0, 4000]
    assert run.traffic[2].tolist() == [12, 0, 0, 0, 4000]
    assert run.elapsed == pytest.approx(2 * (2 * ALPHA + BETA * 4012), rel=1e-9)


@pytest.mark.parametrize(("name", "kept"), [("reduce_scatter", 0), ("all_gather", 1)])
def test_the_ring_sends_all_but_one_of_unequal_chunks(name, kept):
    sizes = [3, 0, 5, 1, 7]

    def ring():
        call(f"ring_{name}", None, [torch.ones(size) for size in sizes])

    run = d2lpar.run(ring, world_size=5, backend="sim")
    wanted = [4 * (sum(sizes) - sizes[(r + kept) % 5]) for r in range(5)]
    assert run.bytes_sent == wanted


# Elements of float64 that each of four ranks needs beside a tensor of 1002.
SPARE = {
    "ring_reduce_scatter": [251] * 4,
    "ring_all_gather": [0] * 4,
    "flat_broadcast": [0] * 4,
    "tree_broadcast": [0] * 4,
    "flat_reduce": [1002, 0, 0, 0],
    "tree_reduce": [2004, 1002, 0, 0],
}


@pytest.mark.parametrize("name", SPARE)
def test_spare_memory(name):
    def on_it(x):
        call(name, x, x.tensor_split(4))

    x = torch.ones(1002, dtype=torch.float64)
    run = d2lpar.run(on_it, x, world_size=4, backend="sim")
    assert run.peak_memory == [8 * count for count in SPARE[name]]


def arrows(name):
    """{(from, to, start, stop)} of all messages; times in units of a message."""
    run = d2lpar.run(on_ones, name, 10, 2, world_size=6, backend="sim")
    pairs = run.timeline.messages()
    unit = min(send.stop - send.start for send, _ in pairs)
    return {
        (send.rank, recv.rank, round(send.start / unit), round(send.stop / unit))
        for send, recv in pairs
    }


def test_the_reduce_is_the_broadcast_read_backwards():
    forth, end = arrows("tree_broadcast"), ceil_log2(6)
    back = {(dst, src, end - stop, end - start) for src, dst, start, stop in forth}
    assert arrows("tree_reduce") == back


# What goes wrong


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_name_two_roots_are_told_who_waits(world):
    def two_roots():
        s.tree_reduce(torch.ones(1), [0, 0, 2][dist.get_rank()])

    with pytest.raises(d2lpar.DeadlockError, match="wait") as caught:
        d2lpar.run(two_roots, world_size=3, backend=world, timeout=1)
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
