"""`d2lpar.allreduce`: all equal `dist.all_reduce`, each at exactly its cost."""

import functools
import zlib

import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import EVERYWHERE, WORLDS
from d2lpar import allreduce as a
from d2lpar.allreduce import channels, costs, fastest

ALPHA, BETA = 7e-6, 3e-9
BIG = 200_003
TINY = functools.partial(a.segmented_ring_allreduce, segment=3)
FORMS = {
    a.naive_allreduce: costs.naive_cost,
    a.tree_allreduce: costs.tree_cost,
    a.direct_allreduce: costs.direct_cost,
    a.ring_allreduce: costs.ring_cost,
    a.segmented_ring_allreduce: costs.segmented_ring_cost,
    TINY: functools.partial(costs.segmented_ring_cost, segment=3),
    a.recursive_doubling_allreduce: costs.recursive_doubling_cost,
    a.halving_doubling_allreduce: costs.halving_doubling_cost,
}


def two_rings(tensor, group=None):
    """Half of the tensor round the ring, the other half the other way."""
    ranks = list(range(dist.get_world_size(group)))
    channels.multi_ring_allreduce(tensor, [ranks, ranks[::-1]], group)


ALL = (*FORMS, two_rings, fastest.allreduce)


def name(algorithm):
    return getattr(algorithm, "__name__", "tiny_segments")


def names(algorithms):
    return [name(algorithm) for algorithm in algorithms]


def values(r, size, dtype):
    """What rank r holds: other numbers on every rank, of other magnitudes."""
    x = (7 * torch.arange(size) + 130 * r) % 1000
    return (x / 7 * 10**r).to(dtype) if dtype.is_floating_point else x.to(dtype)


def digest(tensors):
    """A fingerprint of the bits of some tensors."""
    crc = 0
    for x in tensors:
        crc = zlib.crc32(x.contiguous().view(-1).view(torch.uint8).numpy(), crc)
    return crc


def equals(y, native, truth):
    """Equal to torch's sum and to the serial one; of floats up to rounding."""
    if not y.is_floating_point():
        assert torch.equal(y, native) and torch.equal(y, truth)
        return
    # terms go up to 143 * 10**7, and 8 are added
    atol = 1e10 * {torch.float64: 2e-15, torch.float32: 1e-6}[y.dtype]
    assert torch.allclose(y, native, rtol=0, atol=atol)
    assert torch.allclose(y.double(), truth, rtol=0, atol=atol)


def sums(sizes, dtypes, algorithms, members=None, per_node=None):
    """Every algorithm on tensors of these sizes and types; a digest of all sums."""
    group = None if members is None else dist.new_group(members)
    pair = None if per_node is None else a.node_groups(per_node)
    if members is not None and dist.get_rank() not in members:
        return None
    n, r = dist.get_world_size(group), dist.get_rank(group)
    ends = []
    for size in sizes:
        for dtype in dtypes:
            terms = [values(i, size, dtype) for i in range(n)]
            wide = torch.float64 if dtype.is_floating_point else dtype
            truth = sum(term.to(wide) for term in terms)
            native = terms[r].clone()
            dist.all_reduce(native, group=group)
            for algorithm in algorithms:
                y = terms[r].clone()
                place = y.data_ptr()
                assert algorithm(y, pair or group) is None
                assert y.data_ptr() == place
                equals(y, native, truth)
                ends.append(y)
    return digest(ends)


def small(n):
    """Sizes at the edges: nothing, one, and around the number of ranks."""
    return sorted({0, 1, n - 1, n, n + 1})


DTYPES = (torch.int64, torch.float64)


@pytest.mark.parametrize(("world", "n"), [*EVERYWHERE, ("gloo", 8)])
def test_all_equal_torchs_with_the_same_bits_on_all_ranks(n, world):
    run = d2lpar.run(sums, small(n), DTYPES, ALL, world_size=n, backend=world)
    assert len(set(run.results)) == 1
    assert run.results[0] != 0 and run.warnings == []


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_all_equal_torchs_on_large_tensors(n, world):
    usual = [algorithm for algorithm in ALL if algorithm is not TINY]
    given = sums, [BIG], DTYPES[n % 2 :][:1], usual
    run = d2lpar.run(*given, world_size=n, backend=world)
    assert len(set(run.results)) == 1


def in_trees(sizes, segment=2**16):
    """The digest of `sums`, with two trees."""
    groups = channels.tree_groups()

    def trees(tensor, group):
        channels.double_tree_allreduce(tensor, groups, segment)

    return sums(sizes, DTYPES, [trees])


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_two_trees_equal_torchs(n, world):
    run = d2lpar.run(in_trees, [*small(n), 1003], 50, world_size=n, backend=world)
    assert len(set(run.results)) == 1 and run.warnings == []


@pytest.mark.parametrize("world", WORLDS)
def test_all_add_other_types(world):
    types = (torch.float32, torch.int32, torch.uint8)
    run = d2lpar.run(sums, [67], types, ALL, world_size=3, backend=world)
    assert len(set(run.results)) == 1


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("members", [[2], [3, 1], [1, 2, 4]], ids=str)
def test_all_count_in_ranks_of_the_group(members, world):
    run = d2lpar.run(sums, [1, 7], DTYPES, ALL, members, world_size=5, backend=world)
    inside = {run.results[r] for r in members}
    assert len(inside) == 1
    for r in set(range(5)) - set(members):
        assert (run.results[r], run.bytes_sent[r]) == (None, 0)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("n", "per_node"), [(1, 1), (2, 1), (3, 3), (4, 2), (6, 3), (8, 2), (8, 4)]
)
def test_hierarchies_equal_torchs(n, per_node, world):
    both = (a.hierarchical_allreduce, fastest.allreduce)
    arguments = (DTYPES, both, None, per_node)
    run = d2lpar.run(sums, small(n), *arguments, world_size=n, backend=world)
    assert len(set(run.results)) == 1


def test_direct_adds_in_the_order_of_the_ranks():
    def added():
        x = values(dist.get_rank(), 1000, torch.float32)
        a.direct_allreduce(x)
        return x

    run = d2lpar.run(added, world_size=5, backend="sim")
    truth = sum(values(r, 1000, torch.float32) for r in range(5))
    assert all(torch.equal(x, truth) for x in run.results)


def strided(algorithms, per_node=None):
    """Columns, every other row and transposes; what lies between stays as it was."""
    r, n = dist.get_rank(), dist.get_world_size()
    pair = None if per_node is None else a.node_groups(per_node)
    count = 0
    cuts = (lambda x: x[:, 1], lambda x: x[::2], lambda x: x.t(), lambda x: x[1:3, 2:])
    for algorithm in algorithms:
        for cut in cuts:
            x = torch.full((5, 6), -1.0)
            view = cut(x)
            assert not view.is_contiguous()
            view += torch.arange(view.numel()).view(view.shape) + 10 * r + 1
            truth = n * (torch.arange(view.numel()) + 10 * (n - 1) / 2).view(view.shape)
            algorithm(view, pair)
            assert torch.equal(view, truth)
            view.fill_(-1)
            assert (x == -1).all()
            count += 1
    return count


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("n", "per_node"), [(1, None), (3, None), (4, 2)])
def test_tensors_in_several_pieces_are_as_good_as_others(n, per_node, world):
    algorithms = ALL if per_node is None else (a.hierarchical_allreduce,)
    run = d2lpar.run(strided, algorithms, per_node, world_size=n, backend=world)
    assert run.results == [4 * len(algorithms)] * n


def shapes():
    """Sums of a number, of a matrix and of a parameter that wants a gradient."""
    r = dist.get_rank()
    ends = []
    for algorithm in ALL:
        number, matrix = torch.tensor(r + 1.0), torch.full((3, 5), r, dtype=torch.int16)
        weight = torch.nn.Parameter(torch.full((2, 2), r + 0.5))
        for x in (number, matrix, weight):
            algorithm(x)
        assert weight.requires_grad and weight.grad is None and weight.is_leaf
        ends.append([number.item(), *matrix.unique().tolist(), weight[1, 1].item()])
    return ends


@pytest.mark.parametrize("world", WORLDS)
def test_any_shape_and_parameters_in_place(world):
    run = d2lpar.run(shapes, world_size=3, backend=world)
    assert run.results == [[[6.0, 3, 4.5]] * len(ALL)] * 3


# The closed forms


def on_ideal(algorithm, elements, n):
    """The run of one all-reduce on an ideal cluster."""

    def once():
        algorithm(torch.ones(elements))

    cluster = d2lpar.Cluster.ideal(n, ALPHA, BETA)
    return d2lpar.run(once, world_size=n, backend="sim", cluster=cluster)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("algorithm", FORMS, ids=names(FORMS))
def test_bytes_messages_rounds_and_time_are_the_closed_form(algorithm, n):
    for elements in (0, 1, n + 1, 1001):
        run = on_ideal(algorithm, elements, n)
        form = FORMS[algorithm](elements, n)
        counted = run.rounds, sum(run.messages), max(run.bytes_sent)
        assert counted == form[:3]
        assert run.elapsed == pytest.approx(form.seconds(ALPHA, BETA), rel=1e-9)


# 1003 float64 on 5 ranks, 8024 bytes; chunks 201 201 201 200 200, and 251 251 251 250
# where four ranks share.  Messages and bytes (in elements) of ranks 0 to 4; rounds.
LITERALS = {
    a.naive_allreduce: ([4, 1, 1, 1, 1], [4012, 1003, 1003, 1003, 1003], 8),
    a.tree_allreduce: ([3, 2, 1, 1, 1], [3009, 2006, 1003, 1003, 1003], 6),
    a.direct_allreduce: ([4] * 5, [4012] * 5, 4),
    a.ring_allreduce: ([8] * 5, [1604, 1604, 1605, 1606, 1605], 8),
    a.segmented_ring_allreduce: ([8] * 5, [1604, 1604, 1605, 1606, 1605], 8),
    a.recursive_doubling_allreduce: ([3, 2, 2, 2, 1], [3009] + [2006] * 3 + [1003], 4),
    a.halving_doubling_allreduce: (
        [5, 4, 4, 4, 1],
        [1003 + 502 + 1003, 1003 + 502, 1003 + 501, 1003 + 501, 1003],
        6,
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", LITERALS, ids=names(LITERALS))
def test_counts_are_those_written_down_by_hand(algorithm, world):
    def once():
        algorithm(torch.ones(1003, dtype=torch.float64))

    run = d2lpar.run(once, world_size=5, backend=world)
    messages, elements, rounds = LITERALS[algorithm]
    assert run.messages == messages
    assert run.bytes_sent == [8 * count for count in elements]
    assert run.rounds == rounds


@pytest.mark.parametrize("n", range(1, 66))
def test_two_trees_share_the_work(n):
    parents = channels.binary_tree(n)
    assert parents.count(None) == 1 and parents[0] is None
    depth = [0] * n
    for rank in range(n):
        above = rank
        while parents[above] is not None:
            above, depth[rank] = parents[above], depth[rank] + 1
    assert max(depth) <= (n - 1).bit_length()
    for rank in range(n):
        (up, children), (other_up, others) = (
            channels.tree_neighbours(rank, n, shift) for shift in (0, 1)
        )
        assert max(len(children), len(others)) <= 2
        assert len(children) + len(others) <= 2
        for above, shift in ((up, 0), (other_up, 1)):
            assert above is None or rank in channels.tree_neighbours(above, n, shift)[1]


def test_trees_send_twice_the_tensor_and_rings_less():
    at = {"world_size": 8, "backend": "sim"}

    def trees():
        channels.double_tree_allreduce(torch.ones(4096), channels.tree_groups())

    assert max(d2lpar.run(trees, **at).bytes_sent) == 2 * 4096 * 4
    rings = d2lpar.run(two_rings, torch.ones(4096), **at)
    assert max(rings.bytes_sent) == costs.ring_cost(4096, 8).busiest


def test_rings_of_a_node_leave_it_by_different_ranks():
    orders = channels.node_rings(12, 4)
    leaving = [
        {a for a, b in zip(o, [*o[1:], o[0]], strict=True) if a // 4 != b // 4}
        for o in orders
    ]
    assert set.union(*leaving) == set(range(12)) == set().union(*orders)
    assert [len(ranks) for ranks in leaving] == [3] * 4


def test_a_ring_needs_one_spare_chunk():
    S = 4_000_000
    for algorithm, peak in (
        (a.ring_allreduce, S + S // 4),
        (a.halving_doubling_allreduce, S + S // 2),
        (a.recursive_doubling_allreduce, 2 * S),
        (a.direct_allreduce, 5 * S),
        (functools.partial(a.segmented_ring_allreduce, segment=1000), S + 2 * 4000),
    ):
        assert on_ideal(algorithm, S // 4, 4).peak_memory == [peak] * 4


def test_pieces_are_added_while_the_next_is_on_its_way():
    slow = d2lpar.Cluster.of("2xA100", launch=0).slow(0, 100).slow(1, 100)
    run = d2lpar.run(
        lambda: a.segmented_ring_allreduce(torch.ones(2**20), segment=2**17),
        world_size=2, backend="sim", cluster=slow,
    )  # fmt: skip
    adds = [e for e in run.timeline if e.name == "add" and e.rank == 0]
    wires = [e for e in run.timeline if e.stream == "recv" and e.rank == 0]
    assert len(adds) == 4
    for add, wire in zip(adds[:-1], wires[1:], strict=False):
        assert wire.start < add.stop and add.start < wire.stop


# Several nodes


@pytest.mark.parametrize(("n", "per_node"), [(4, 2), (6, 2), (6, 3), (8, 4), (8, 8)])
@pytest.mark.parametrize("elements", [1, 59, 1001])
def test_a_hierarchy_has_its_closed_form(n, per_node, elements):
    of_nodes = lambda x: a.hierarchical_allreduce(x, a.node_groups(per_node))
    run = on_ideal(of_nodes, elements, n)
    nodes = n // per_node
    inside, between = costs.hierarchical_cost(elements, per_node, nodes)
    assert run.rounds == inside.rounds + between.rounds
    assert sum(run.messages) == inside.messages + between.messages
    near, far = [0] * n, [0] * n
    for i in range(n):
        for j in range(n):
            kind = near if i // per_node == j // per_node else far
            kind[i] += run.traffic[i, j]
    assert (max(near), max(far)) == (inside.busiest, between.busiest)
    expected = inside.seconds(ALPHA, BETA) + between.seconds(ALPHA, BETA)
    assert run.elapsed == pytest.approx(expected, rel=1e-9)


# The function that chooses


def chosen(sizes):
    """The names that this rank chooses for float32 tensors of these sizes."""
    return [fastest.fastest(torch.empty(size), None).__name__ for size in sizes]


@pytest.mark.parametrize(
    ("n", "alpha", "beta", "expected"),
    [
        (8, 1e-5, 1e-10, ["recursive_doubling"] * 2 + ["halving_doubling"]),
        (7, 1e-5, 1e-10, ["recursive_doubling", "recursive_doubling", "ring"]),
        (8, 1.0, 0.0, ["recursive_doubling"] * 3),
    ],
)
def test_small_tensors_save_rounds_and_large_ones_bytes(n, alpha, beta, expected):
    cluster = d2lpar.Cluster.ideal(n, alpha, beta)
    where = {"world_size": n, "backend": "sim", "cluster": cluster}
    run = d2lpar.run(chosen, [1, 1000, 10**7], **where)
    assert run.results == [[f"{name}_allreduce" for name in expected]] * n


CLUSTERS = {
    "plain": d2lpar.Cluster.plain,
    "slow": d2lpar.Cluster.ideal(alpha=1e-4, beta=1e-9),
    "8xH100": d2lpar.Cluster.of("8xH100", launch=0),
    "8xT4": d2lpar.Cluster.of("8xT4", launch=0),
    "4x2xA100": d2lpar.Cluster.of("4x2xA100", launch=0),
    "2x4xV100": d2lpar.Cluster.of("2x4xV100", "25Gb", launch=0),
}


@pytest.mark.parametrize("n", [6, 8])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_choice_is_nearly_the_fastest(cluster, n):
    for elements in (10, 10_000, 300_000):
        seconds = {
            algorithm: d2lpar.run(
                lambda algorithm=algorithm, x=elements: algorithm(torch.ones(x)),
                world_size=n, backend="sim", cluster=CLUSTERS[cluster], device="meta",
            ).elapsed
            for algorithm in (fastest.allreduce, *fastest.CANDIDATES)
        }  # fmt: skip
        assert seconds.pop(fastest.allreduce) <= 1.05 * min(seconds.values())


def test_processes_of_one_host_use_its_memory():
    run = d2lpar.run(chosen, [1, 10**6], world_size=2, backend="gloo")
    assert run.results == [["shared_memory_allreduce"] * 2] * 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, False),
        ({"WORLD_SIZE": "8"}, False),
    ],
)
def test_launchers_say_whether_there_is_one_host(monkeypatch, variables, expected):
    for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert fastest.one_host() is expected


def test_ranks_on_several_hosts_send_messages():
    def elsewhere(sizes):
        import os

        os.environ |= {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"}
        return chosen(sizes)

    run = d2lpar.run(elsewhere, [1, 10**7], world_size=3, backend="gloo")
    expected = ["recursive_doubling_allreduce", "ring_allreduce"]
    assert run.results == [expected] * 3


# Bad input


@pytest.mark.parametrize("algorithm", ALL, ids=names(ALL))
def test_a_list_is_refused(algorithm):
    with pytest.raises(d2lpar.RankError, match=r"needs a tensor, not list"):
        d2lpar.run(lambda: algorithm([1.0]), world_size=2, backend="sim")


@pytest.mark.parametrize("algorithm", ALL, ids=names(ALL))
def test_who_is_not_a_member_is_told(algorithm):
    def outsider():
        group = dist.new_group([0, 1])
        algorithm(torch.ones(1), group)

    with pytest.raises(d2lpar.RankError, match="not in the group") as caught:
        d2lpar.run(outsider, world_size=3, backend="sim")
    assert caught.value.rank == 2


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: a.node_groups(3), "4 ranks make no nodes of 3: use a divisor of 4"),
        (lambda: a.node_groups(0), "4 ranks make no nodes of 0"),
        (lambda: a.hierarchical_allreduce(torch.ones(1), None), "needs the pair"),
        (lambda: TINY.func(torch.ones(1), segment=0), "at least 1 element, not 0"),
        (lambda: in_trees([4], 0), "at least 1 element, not 0"),
        (
            lambda: channels.multi_ring_allreduce(torch.ones(1), [[0, 1, 1, 3]]),
            "has to visit each of the 4 ranks once",
        ),
        (lambda: channels.node_rings(6, 4), "6 ranks make no nodes of 4"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(d2lpar.RankError) as caught:
        d2lpar.run(call, world_size=4, backend="sim")
    assert sentence in str(caught.value.__cause__)  # the line shown has it, too
