"""A GPT on data x pipeline x tensor ranks: one device's loss, gradients and weights."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

import d2lpar
from bench import mesh as race
from d2lpar.mesh import AXES, Config, Mesh, MeshModel, bytes_per_axis
from d2lpar.mesh.costs import bytes_per_step, numbers
from d2lpar.mesh.gpt_parts import blocks_of, make_stage, one_device, row_losses
from d2lpar.pipeline import schedule
from d2lpar.sharding import parts
from d2lpar.shared.footprint import kept
from d2lpar.sim.cluster import Cluster

TINY = Config(D=12, depth=4, heads=12, context=4, vocabulary=12)
T = 3

# Every mesh of at most 12 ranks that divides 12 heads, 12 words and 4 blocks; its
# number chooses a schedule, micro-batches and whether the optimizer is sharded.
MESHES = [
    (d, p, t)
    for d, p, t in itertools.product(range(1, 13), (1, 2, 3, 4), (1, 2, 3, 4, 6, 12))
    if d * p * t <= 12
]


def takes_long(mesh):
    """12 ranks do; by day only those are tried that cut all axes, or every head."""
    return math.prod(mesh) == 12 and min(mesh) == 1 and mesh[2] != 12


NIGHT = {True: pytest.mark.night, False: ()}
TRIED = [pytest.param(*mesh, marks=NIGHT[takes_long(mesh)]) for mesh in MESHES]
SCHEDULES = ("1f1b", "zb-h1", "gpipe", "interleaved", "naive")


def options_of(number, p):
    name, m = SCHEDULES[number % 5], 1 + number % 3
    if name == "interleaved" and 2 * p > TINY.depth:
        name = "1f1b"
    return {"schedule": name, "micro_batches": m, "zero": number % 2} | (
        {"recompute": True} if number % 7 == 3 else {}
    )


def batch(N, k=0):
    generator = torch.Generator().manual_seed(100 * N + k)
    return torch.randint(0, TINY.vocabulary, (2, N, T), generator=generator)


def rows_of_steps(d, m):
    """Rows of two batches: odd or not to be divided, and the fewest possible."""
    return d * m + 3, d * m


def config_of(p, options):
    """A GPT with few blocks, which do not divide among two or three stages."""
    stages = 2 * p if options["schedule"] == "interleaved" else p
    return TINY._replace(depth=min(stages + 1, TINY.depth))


def on_ranks(mesh, options, rows, config=TINY):
    """(losses, gradients of the first step, norms, final weights), all whole."""
    model = MeshModel(config, mesh, **options).double()
    optimizer = torch.optim.Adam(model.shards, lr=0.01)
    losses, norms, first = [], [], None
    for k, N in enumerate(rows):
        losses.append(model.step(*batch(N, k)).item())
        first = first or whole_gradients(model)
        norms.append(model.clip(0.5).item())
        model.update(optimizer)
    return losses, first, norms, model.state_dict()


def whole_gradients(model):
    """The gradients by one device's names, also from shards."""
    if not model.zero:
        return model.state_dict(lambda p: p.grad)
    gradients = {}
    for flat in model.data.flats:
        every = torch.empty_like(flat.full)
        dist.all_gather_into_tensor(every, flat.grad, group=flat.group)
        gradients |= dict(zip(flat.params, parts(flat, every), strict=True))
    return model.state_dict(lambda p: gradients[p])


def truth(rows, config=TINY):
    model = one_device(config).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, norms, first = [], [], None
    for k, N in enumerate(rows):
        tokens, targets = batch(N, k)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        losses.append(loss.item())
        named = model.named_parameters()
        first = first or {name: p.grad.clone() for name, p in named}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(norm.item())
        optimizer.step()
    return losses, first, norms, model.state_dict()


def agree(run, expected):
    losses, gradients, norms, weights = expected
    for mine in run.results:
        assert mine[0] == pytest.approx(losses, rel=0, abs=1e-10)
        assert mine[2] == pytest.approx(norms, rel=0, abs=1e-10)
        same(mine[1], gradients)
        same(mine[3], weights)


def same(found, wanted):
    """Equal names, shapes and order, and no number further away than 1e-10."""
    shapes = lambda state: [(name, x.shape) for name, x in state.items()]
    assert shapes(found) == shapes(wanted)
    flat = lambda state: torch.cat([x.flatten() for x in state.values()])
    far = (flat(found) - flat(wanted)).abs()
    assert far.max() <= 1e-10  # false for NaN, too


def check(mesh, options, rows, config=TINY, backend="sim"):
    given = on_ranks, mesh, options, rows, config
    run = d2lpar.run(*given, world_size=mesh.ranks, backend=backend)
    agree(run, truth(rows, config))
    assert run.warnings == []


@pytest.mark.parametrize("d, p, t", TRIED)
def test_every_mesh_trains_as_one_device(d, p, t):
    options = options_of(MESHES.index((d, p, t)), p)
    rows = rows_of_steps(d, options["micro_batches"])
    config = config_of(p, options)
    order = list(itertools.permutations(AXES))[MESHES.index((d, p, t)) % 6]
    check(Mesh(d, p, t, order=order), options, rows, config)


@pytest.mark.parametrize(
    "d, p, t, options",
    [
        (2, 2, 1, {"micro_batches": 3, "zero": 1}),
        (1, 2, 2, {"schedule": "zb-h1", "micro_batches": 2}),
        (2, 1, 2, {"schedule": "interleaved", "micro_batches": 2}),
    ],
)
def test_and_on_real_processes(d, p, t, options):
    rows = rows_of_steps(d, options["micro_batches"])
    check(Mesh(d, p, t), options, rows, backend="gloo")


@pytest.mark.parametrize("name", ["zb-v", "breadth-first", "dualpipe-v"])
def test_a_gpt_on_two_stages_per_rank_trains_as_one_device(name):
    options = {"schedule": name, "micro_batches": 3}
    check(Mesh(2, 2, 1), options, rows_of_steps(2, 3))


def test_a_mesh_refuses_a_schedule_with_copies():
    make_it = lambda: MeshModel(TINY, Mesh(1, 2, 1), "dualpipe", 4)
    with pytest.raises(d2lpar.RankError, match="2 copies, whose gradients must be"):
        d2lpar.run(make_it, world_size=2, backend="sim")


def losses_of(config, dims, rows):
    """[(torch's loss, ours)] of two steps on the same batch."""
    batch = torch.randint(0, config.vocabulary, (2, rows, config.context))
    steps = [make(config, dims, *batch) for make in (race.torchs, race.ours)]
    return [[float(step()[0]) for step in steps] for _ in range(2)]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("dims", [(2, 2, 1), (1, 2, 2), (2, 2, 2)])
def test_losses_are_those_of_torchs_composition(dims):
    config = Config(D=16, depth=2, heads=4, context=4, vocabulary=8)
    d, p, t = dims
    world = {"world_size": d * p * t, "backend": "sim"}
    run = d2lpar.run(losses_of, config, dims, 4 * d, **world)
    first, second = run.results[0]
    assert run.results == [[first, second]] * (d * p * t)
    assert first[0] == pytest.approx(first[1], rel=1e-5) != second[1]
    assert second[0] == pytest.approx(second[1], rel=1e-5)


# The grid


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)))
def test_ranks_and_coordinates_are_inverse(order):
    mesh = Mesh(2, 3, 4, order=order)
    found = [mesh.coordinates(r) for r in range(mesh.ranks)]
    assert [mesh.rank(**at) for at in found] == list(range(24))
    assert found == sorted(found, key=lambda at: [at[axis] for axis in order])
    for axis, size in zip(AXES, (2, 3, 4), strict=True):
        every = mesh.every_group(axis)
        assert sorted(r for group in every for r in group) == list(range(24))
        assert {len(group) for group in every} == {size}
        for group in every:
            for a, b in itertools.permutations(group, 2):
                assert mesh.axis(a, b) == axis


def test_the_usual_order_is_that_of_a_device_mesh():
    mesh = Mesh(2, 2, 3)
    names = torch.arange(12).view(2, 2, 3)
    for rank in range(12):
        at = mesh.coordinates(rank)
        assert names[at["data"], at["pipeline"], at["tensor"]] == rank
    assert mesh.axis(0, 5) is None and mesh.rank(tensor=2) == 2


def groups_of(mesh):
    return [dist.get_process_group_ranks(mesh.group(axis)) for axis in AXES]


def test_groups_are_those_of_the_grid():
    mesh = Mesh(2, 3, 1, order=("tensor", "pipeline", "data"))
    run = d2lpar.run(groups_of, mesh, world_size=6, backend="sim")
    for rank, found in enumerate(run.results):
        assert found == [mesh.members(axis, rank) for axis in AXES]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Mesh(data=0), "data must be a whole number"),
        (lambda: Mesh(tensor=1.5), "tensor must be a whole number"),
        (lambda: Mesh(2, 2, order=("data", "tensor")), "names data, pipeline, tensor"),
        (lambda: Mesh(2).rank(data=2), "coordinates 0 to 1, not 2"),
        (lambda: Mesh(2).rank(row=1), "not row"),
        (lambda: Mesh(2).coordinates(2), "ranks 0 to 1, not 2"),
        (lambda: Mesh(2).group("rows"), "not 'rows'"),
    ],
)
def test_a_grid_says_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "mesh, options, N, message",
    [
        (Mesh(2, 2), {}, 4, "has 4 ranks, but the world has 2"),
        (Mesh(tensor=2), {"config": TINY._replace(heads=3)}, 4, "share 3 heads"),
        (Mesh(tensor=2), {"config": TINY._replace(vocabulary=7)}, 4, "share 7 words"),
        (Mesh(pipeline=2), {"config": TINY._replace(depth=1)}, 4, "cannot fill 2"),
        (Mesh(pipeline=2), {"schedule": schedule.make("1f1b", 3, 3)}, 4, "p=2"),
        (Mesh(2), {"zero": 3}, 4, "zero must be 0 or 1"),
        (Mesh(2), {"micro_batches": 3}, 5, "5 rows cannot fill 3 micro-batches"),
        (Mesh(2), {"config": TINY._replace(context=2)}, 4, "T at most 2"),
    ],
)
def test_a_model_says_what_does_not_fit(mesh, options, N, message):
    options = {"config": TINY} | options
    with pytest.raises(d2lpar.RankError, match=message):
        d2lpar.run(one_step, mesh, options, N, world_size=2, backend="sim")


def one_step(mesh, options, N):
    model = MeshModel(mesh=mesh, **options)
    return model.step(*batch(N)).item()


# What is drawn and what is split


DROPPING = TINY._replace(dropout=0.4)


@pytest.mark.parametrize("dims", [(2, 2, 2), (3, 1, 2), (1, 4, 1)])
@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_is_that_of_one_device(dims, recompute):
    """The mask belongs to the row, so the mesh of one rank is the truth."""
    rows, world = (7, 9), {"backend": "sim"}
    options = {"micro_batches": 2, "recompute": recompute}
    train = lambda mesh, more: d2lpar.run(
        on_ranks, mesh, more, rows, DROPPING, world_size=mesh.ranks, **world
    )
    (expected,) = train(Mesh(), {"micro_batches": 1}).results
    agree(train(Mesh(*dims), options), expected)
    losses = truth(rows)[0]
    assert abs(expected[0][0] - losses[0]) > 1e-3  # there was a mask at all


def test_blocks_of_all_stages_are_all_blocks():
    for depth, stages in itertools.product(range(1, 9), range(1, 9)):
        if stages <= depth:
            parts_ = [blocks_of(depth, s, stages) for s in range(stages)]
            assert [i for part in parts_ for i in part] == list(range(depth))
            assert max(map(len, parts_)) - min(map(len, parts_)) <= 1


def initial(mesh):
    model = MeshModel(TINY, mesh, seed=3)
    state = model.state_dict()
    doubled = {name: 2 * x for name, x in state.items()}
    model.load_state_dict(doubled)
    back = model.state_dict()
    return state, all(torch.equal(back[name], doubled[name]) for name in doubled)


def test_initial_values_and_loaded_ones_are_one_devices():
    expected = one_device(TINY, seed=3).state_dict()
    for mesh in (Mesh(1, 2, 2), Mesh(2, 1, 3)):
        run = d2lpar.run(initial, mesh, world_size=mesh.ranks, backend="sim")
        for state, loaded in run.results:
            assert loaded
            assert all(torch.equal(state[name], x) for name, x in expected.items())


def tied_copies(mesh):
    model = MeshModel(TINY, mesh, "interleaved", 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for k in range(3):
        model.step(*batch(6, k))
        model.update(optimizer)
    return [p.detach() for name, p, _ in model.entries() if name == "token.weight"]


@pytest.mark.parametrize("p", [1, 2])
def test_the_copies_of_the_tied_table_stay_equal_bit_for_bit(p):
    run = d2lpar.run(tied_copies, Mesh(pipeline=p), world_size=p, backend="sim")
    first, second = [table for mine in run.results for table in mine]
    assert torch.equal(first, second)


# Bytes and memory, predicted and counted


BYTES = Config(D=12, depth=4, heads=6, context=5, vocabulary=12)


def some_steps(mesh, count, m):
    model = MeshModel(BYTES, mesh, micro_batches=m)
    for _ in range(count):
        model.step(*torch.zeros(2, 13, 5, dtype=torch.int64))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("dims", [(2, 2, 2), (3, 2, 2), (2, 3, 1), (1, 4, 3)])
def test_bytes_per_axis_are_the_closed_forms(dims):
    mesh = Mesh(*dims)
    cluster = Cluster.ideal(mesh.ranks, alpha=0.0)  # bytes alone choose the all-reduce
    world = {"world_size": mesh.ranks, "backend": "sim", "cluster": cluster}
    once, twice = (d2lpar.run(some_steps, mesh, k, 3, **world) for k in (1, 2))
    first, both = (bytes_per_axis(mesh, run.traffic) for run in (once, twice))
    step = {axis: both[axis] - first[axis] for axis in both}
    assert step == bytes_per_step(BYTES, mesh, 13, 5)
    stages = [mesh.coordinates(r)["pipeline"] for r in range(mesh.ranks)]
    assert once.results == [numbers(BYTES, mesh, stage) for stage in stages]


MEMORY = Config(D=64, depth=4, heads=8, context=32, vocabulary=128)
ROWS = 2  # of a micro-batch


def trained_twice(mesh, m, name):
    model = MeshModel(MEMORY, mesh, name, m)
    optimizer = torch.optim.Adam(model.parameters())
    N = ROWS * m * mesh.sizes["data"]
    for _ in range(2):
        model.step(*torch.zeros(2, N, 32, dtype=torch.int64))
        model.update(optimizer)


def kept_by_a_stage(mesh):
    """Bytes that one micro-batch keeps from its F to its B on this rank."""
    group, stages = mesh.group("tensor"), mesh.sizes["pipeline"]
    s = mesh.coordinates(dist.get_rank())["pipeline"]
    stage = make_stage(MEMORY, s, stages, group)
    tokens = torch.zeros(ROWS, 32, dtype=torch.int64)
    x = tokens if s == 0 else torch.zeros(ROWS, 32, 64, requires_grad=True)
    last = lambda out: row_losses(out, tokens, group) if s == stages - 1 else out
    return kept(lambda: last(stage(x)), stage.parameters())[1]


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize("dims", [(1, 2, 1), (2, 2, 2), (1, 4, 1)])
def test_peak_memory_is_weights_adam_and_what_is_in_flight(dims, name):
    mesh, m = Mesh(*dims), 8
    world = {"world_size": mesh.ranks, "backend": "sim"}
    counted = d2lpar.run(trained_twice, mesh, m, name, **world).peak_memory
    activations = d2lpar.run(kept_by_a_stage, mesh, **world).results
    held = schedule.simulate(schedule.make(name, dims[1], m)).in_flight
    for rank, peak in enumerate(counted):
        stage = mesh.coordinates(rank)["pipeline"]
        always = 4 * 4 * numbers(MEMORY, mesh, stage)  # weight, gradient, two of Adam
        predicted = always + held[stage] * activations[rank]
        assert 0.9 * predicted < peak < 1.25 * predicted


# Without memory: a large model on many ranks


def large(mesh, config):
    model = MeshModel(config, mesh, micro_batches=2).to(torch.bfloat16)
    begin = d2lpar.now()
    tokens = torch.zeros(2, 2 * mesh.sizes["data"], config.context, dtype=torch.int64)
    model.step(*tokens)
    return d2lpar.now() - begin


def test_a_model_without_memory_on_32_ranks():
    """Blocks of GPT-3 with 175 billion parameters, four of its 96."""
    config = Config(D=12288, depth=4, heads=96, context=2048, vocabulary=51200)
    mesh = Mesh(2, 2, 8)
    cluster = Cluster.of("4x8xA100", network="200Gb", cards=8)
    world = {"backend": "sim", "device": "meta", "cluster": cluster, "timeout": 300}
    run = d2lpar.run(large, mesh, config, world_size=32, **world)
    parts_ = [2 * numbers(config, mesh, r // 8 % 2) for r in range(32)]
    assert all(p > mine for p, mine in zip(run.peak_memory, parts_, strict=True))
    assert 0.01 < max(run.results) < 10
