"""Pipelines: any schedule gives one device's outputs and gradients."""

import copy

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import d2lpar
from conftest import Takes
from d2lpar.pipeline import Pipeline, lines, schedule
from d2lpar.pipeline.delayed import LINEAR, Delayed, delay_weights
from d2lpar.pipeline.schedule import Action, make, needs, parse, simulate
from d2lpar.sim.cluster import Cluster


class Block(nn.Module):
    """A layer with a bias, a norm, a skip and a tied weight."""

    def __init__(self, D):
        super().__init__()
        self.up, self.norm = nn.Linear(D, D), nn.LayerNorm(D)
        self.again = nn.Linear(D, D, bias=False)
        self.again.weight = self.up.weight

    def forward(self, x):
        return x + self.again(torch.tanh(self.norm(self.up(x))))


def layers(count, D=3, frozen=()):
    """`count` blocks in float64; a layer's values depend on the layer alone."""
    made = []
    for i in range(count):
        torch.manual_seed(i)
        made.append(Block(D).double())
        if i in frozen:
            made[-1].up.weight.requires_grad_(False)
    return made


def squares(out, y):
    """The sum over rows; a row alone has an error too."""
    return ((out - y) ** 2).sum()


def batch(N, D=3):
    generator = torch.Generator().manual_seed(N)
    x, y = torch.randn(2, N, D, generator=generator, dtype=torch.float64)
    return x, y


def truth(count, N, steps, frozen=(), adam=False):
    """(losses, parameters and gradients by name) of one device."""
    model = nn.Sequential(*layers(count, frozen=frozen))
    return trained(model, lambda x, y: one_step(model, x, y), N, steps, adam)


def one_step(model, x, y):
    loss = squares(model(x), y) / len(x)
    loss.backward()
    return loss.detach()


def trained(model, step, N, steps, adam=False):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = (
        torch.optim.Adam(trainable, lr=0.01)
        if adam
        else torch.optim.SGD(trainable, lr=0.01, momentum=0.9)
    )
    losses = []
    for k in range(steps):
        optimizer.zero_grad()
        losses.append(step(*batch(N + k)).item())
        optimizer.step()
    values = {name: (p.detach(), p.grad) for name, p in model.named_parameters()}
    return losses, values


def on_ranks(made, N, steps, frozen=(), adam=False, recompute=False):
    """The same of this rank's stages, named as in the whole model."""
    r = dist.get_rank()
    mine = sorted({action.stage for action in made.ranks[r]})
    all_layers = layers(made.stages, frozen=frozen)
    modules = nn.ModuleDict({str(stage): all_layers[stage] for stage in mine})
    pipeline = Pipeline(made, list(modules.values()), squares, recompute=recompute)
    return trained(modules, pipeline.step, N, steps, adam)


def agree(run, expected):
    """Losses add up to one device's; every parameter and gradient is its."""
    losses, values = expected
    together = [sum(part) for part in zip(*(r[0] for r in run.results), strict=True)]
    assert together == pytest.approx(losses, rel=1e-10)
    found = [(name, v) for _, mine in run.results for name, v in mine.items()]
    assert {name for name, _ in found} == values.keys()
    for name, (mine, its) in found:
        value, gradient = values[name]
        torch.testing.assert_close(mine, value, rtol=0, atol=1e-10)
        if gradient is None:
            assert its is None
        else:
            torch.testing.assert_close(its, gradient, rtol=0, atol=1e-10)


def check(made, N, steps, world="sim", recompute=False, **how):
    """A run of `on_ranks`, which agrees with one device."""
    where = {"world_size": made.p, "backend": world}
    run = d2lpar.run(on_ranks, made, N, steps, recompute=recompute, **where, **how)
    agree(run, truth(made.stages, N, steps, **how))
    assert run.warnings == []


ALONE = [name for name in schedule.MAKERS if name != "dualpipe"]
TODAY = ["breadth-first", "zb-v", "dualpipe-v"]
NAMES = [name for name in ALONE if name not in TODAY]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_every_schedule_trains_as_one_device(name, p):
    for m in (1, 2, 3, 8):
        check(make(name, p, m), m + 2, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [2, 3])
def test_and_on_real_processes(name, p):
    check(make(name, p, 4), 7, 3, "gloo")


FEW = {1: (1, 3), 2: (1, 5), 3: (2, 7), 4: (8,), 8: (9,)}  # micro-batches
CASES = [(name, p, m) for name in TODAY for p in FEW for m in FEW[p]]


@pytest.mark.parametrize(("name", "p", "m"), CASES)
def test_schedules_of_today_train_as_one_device(name, p, m):
    check(make(name, p, m), m + 2, 2)


@pytest.mark.parametrize("name", TODAY)
def test_schedules_of_today_on_real_processes(name):
    check(make(name, 2, 5), 7, 2, "gloo")


@pytest.mark.parametrize(
    "made",
    [
        schedule.from_torch("InterleavedZeroBubble", 3, 6),
        schedule.from_torch("LoopedBFS", 2, 4),
    ],
    ids=repr,
)
def test_schedules_that_are_read_train_as_one_device(made):
    check(made, made.m + 1, 2)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_with_adam_frozen_weights_and_recomputed_activations(name):
    how = {"frozen": (0, 2), "adam": True}
    for recompute in (False, True):
        check(make(name, 3, 4), 6, 3, recompute=recompute, **how)


HAND_MADE = """\
0F0 3F0 0F1 3F1 3B1 0F2 3F2 3B2 3B0 0B1 0B2 0B0
1F1 2F1 1F0 2F0 2B1 1B1 1F2 2F2 2B2 2B0 1B2 1B0"""


def test_a_schedule_by_hand_with_stages_anywhere_and_any_order():
    """Stages 0 and 3 on one rank; rank 1 takes the micro-batches in another order."""
    text = HAND_MADE.replace("0F0 3F0 0F1 3F1", "0F0 0F1 3F1 3F0")
    text = text.replace("2F1 1F0", "2F1 1F0")
    for world in ("sim", "gloo"):
        check(parse(text), 5, 2, world)


# Time, and what is held: as `simulate` says


class Timed(nn.Module):
    """A stage that takes F, B and W; with `delayed` W is apart."""

    def __init__(self, F, B, W):
        super().__init__()
        self.F, self.B, self.W, self.delayed = F, B, W, None
        self.weight = nn.Parameter(torch.eye(2))

    def forward(self, x):
        W = self.W if self.delayed is None else 0
        return Takes.apply(x @ self.weight, self.F, self.B + W)


def clocked(made, F, B, W):
    """{action: stop} of a second step, the most that was held, the gradients.

    F, B and W are times, or lists with one for each stage.
    """
    mine = sorted(s for s, rank in made.home.items() if rank == dist.get_rank())
    of = lambda time, s: time[s] if isinstance(time, list) else time
    stages = [Timed(*(of(time, s) for time in (F, B, W))) for s in mine]
    pipeline = Pipeline(made, stages, lambda out, y: out.sum())
    for stage in stages:
        stage.delayed = made.splits or None
    seen, held = {}, []

    def watch(name):
        method = getattr(pipeline, name)

        def watched(action):
            method(action)
            if name == "weights":
                d2lpar.sleep(of(W, action.stage))
            seen[str(action)] = d2lpar.now()
            held.append(len({*pipeline.kept, *pipeline.late}))

        setattr(pipeline, name, watched)

    for name in ("forward", "backward", "weights"):
        watch(name)
    x = torch.arange(2.0 * made.m).view(-1, 2).requires_grad_()
    pipeline.step(x, x.detach())
    dist.barrier()
    begin, _ = d2lpar.now(), (seen.clear(), held.clear())
    pipeline.step(x, x.detach())
    gradients = [stage.weight.grad for stage in stages]
    stops = {name: stop - begin for name, stop in seen.items()}
    return stops, max(held, default=0), gradients


# Times of which no two messages come to one port at once: there they would queue, and
# `simulate` knows no ports.
@pytest.mark.parametrize("comm", [0.0, 0.1])
@pytest.mark.parametrize("name", [*NAMES, "zb-v"])
def test_it_takes_the_time_that_simulate_says(name, comm):
    F, B, W = 1.0, 1.7, 0.6
    made = make(name, 3, 6)
    cluster = Cluster.ideal(3, alpha=comm, beta=0.0)
    world = {"backend": "sim", "world_size": 3, "cluster": cluster}
    run = d2lpar.run(clocked, made, F, B, W, **world)
    agrees_with(simulate(made, F, B, W, comm), run)


def agrees_with(sim, run):
    """Each action ends when it should; as much is held; no micro-batch is missed."""
    stops = {event.name: event.stop for event in sim.timeline}
    found = {}
    for times, _, _ in run.results:
        assert list(times.values()) == sorted(times.values())
        found |= times
    assert found == pytest.approx(stops)
    assert [most for _, most, _ in run.results] == sim.in_flight


# Any valid schedule at all, made by chance: stages anywhere, W apart or not


@st.composite
def valid_schedules(draw):
    """An action that could be next is taken, until none is left."""
    p, m, splits = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
    home = [*range(p), *draw(st.lists(st.integers(0, p - 1), max_size=2))]
    home = draw(st.permutations(home))
    kinds = "FBW" if splits else "FB"
    left = [Action(s, k, i) for s in range(len(home)) for k in kinds for i in range(m)]
    rows, over = [[] for _ in range(p)], set()
    while left:
        ready = [a for a in left if over.issuperset(needs(a, len(home)))]
        action = draw(st.sampled_from(ready))
        left.remove(action)
        over.add(action)
        rows[home[action.stage]].append(action)
    return schedule.Schedule(tuple(map(tuple, rows)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(valid_schedules(), st.data())
def test_no_valid_schedule_takes_another_time_or_order(made, data):
    times = st.lists(st.integers(1, 9), min_size=made.stages, max_size=made.stages).map(
        lambda found: [x / 4 for x in found]
    )
    F, B, W = (data.draw(times, label=name) for name in "FBW")
    comm = data.draw(st.sampled_from([0.0, 0.0, 0.0, 0.3]), label="comm")
    cluster = Cluster.ideal(made.p, alpha=comm, beta=0.0)
    world = {"backend": "sim", "world_size": made.p, "cluster": cluster}
    run = d2lpar.run(clocked, made, F, B, W, **world)
    sim = simulate(made, F, B, W, comm)
    if comm == 0:
        agrees_with(sim, run)
    for event in sim.timeline:  # messages that queue at a port make it later
        stops, _, _ = run.results[event.rank]
        assert stops[event.name] >= event.stop - 1e-9
    for row, (stops, _, _) in zip(made.ranks, run.results, strict=True):
        assert list(stops) == [str(action) for action in row]
    x = torch.arange(2.0 * made.m).view(-1, 2)  # the weights are those of 1
    expected = 2 * x.sum(0)[:, None].expand(2, 2) / made.m
    for _, _, gradients in run.results:
        for gradient in gradients:
            torch.testing.assert_close(gradient, expected)


# The pieces


def test_lines_are_in_the_order_of_their_sender():
    made = parse("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1")
    texts = {line: [str(a) for a in needed] for line, needed in lines(made).items()}
    assert texts == {("F", 0, 1): ["1F0", "1F1"], ("B", 1, 0): ["0B0", "0B1"]}


@pytest.mark.parametrize("how", ["linear", "conv", "strided conv", "tied"])
def test_delayed_weights_get_the_gradient_of_autograd(how):
    torch.manual_seed(1)
    module = {
        "linear": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        "conv": lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()),
        "strided conv": lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False),
        "tied": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
    }[how]().double()
    whole = copy.deepcopy(module)
    shape = (2, 4, 7, 6) if "conv" in how else (2, 3, 4)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    delayed = delay_weights(module)
    (module(x) ** 3).sum().backward()
    dx, x.grad = x.grad, None
    assert all(p.grad is None for p in module.parameters() if p.dim() > 1)
    for add_gradient in delayed:
        add_gradient()
    (whole(x) ** 3).sum().backward()
    torch.testing.assert_close(dx, x.grad)
    for mine, its in zip(module.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_a_delayed_product_is_differentiable_as_autograd_says():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, dtype=torch.float64)
    of = lambda x: Delayed.apply(x, weight, LINEAR, [])
    assert torch.autograd.gradcheck(of, x)
    torch.testing.assert_close(of(x), F.linear(x, weight))


def refuses(made, count, rows):
    try:
        Pipeline(made, [nn.Linear(2, 2)] * count, squares).step(*batch(rows, 2))
    except ValueError as error:
        return str(error).partition("\n")[0]


@pytest.mark.parametrize(
    ("made", "count", "rows", "words"),
    [
        (make("gpipe", 3, 2), 1, 4, "rows for 3 ranks, and there are 2"),
        (make("gpipe", 2, 2), 2, 4, "the stages [0], so it needs 1 modules, not 2."),
        (make("gpipe", 2, 3), 1, 2, "2 rows cannot fill 3 micro-batches."),
        (parse("0F0\n1F0 1B0"), 1, 2, "0B0 is missing. (Every stage sees"),
        (make("dualpipe", 2, 4), 2, 4, "have 2 copies, whose gradients must be summed"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(made, count, rows, words):
    run = d2lpar.run(refuses, made, count, rows, world_size=2, backend="sim")
    assert words in run.results[0] and run.results[1]


# What travels between stages: rows of one shape and dtype, and a sentence else


class Makes(nn.Module):
    """A stage that makes what `change` says from call number `when` on."""

    def __init__(self, change, when=1):
        super().__init__()
        self.layer, self.change = nn.Linear(2, 2).double(), change
        self.calls, self.when = 0, when

    def forward(self, x):
        self.calls += 1
        x = self.layer(x)
        return self.change(x) if self.calls >= self.when else x


class Any(nn.Module):
    """A stage that takes whatever comes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (self.weight * x).flatten(1).sum(1, keepdim=True).double()


def sends_what(change, when=1, steps=2):
    r = dist.get_rank()
    stage = Makes(change, when) if r == 0 else Any()
    pipeline = Pipeline(make("1f1b", 2, 2), [stage], lambda out, y: out.sum())
    for _ in range(steps):
        pipeline.step(*batch(4, 2))
    return [p.grad for p in stage.parameters()]


@pytest.mark.parametrize("world", ["sim", "gloo"])
@pytest.mark.parametrize(
    ("change", "when", "words"),
    [
        (lambda x: x[:, :1], 3, "0F0 made rows of [1] in torch.float64, but before"),
        (lambda x: x.float(), 3, "rows of [2] in torch.float32, but before they were"),
        (lambda x: x[:, :1], 2, "0F1 made rows of [1] in torch.float64, but before"),
        (lambda x: x[:1], 1, "0F0 made a tensor of shape [1, 2]. It must have 2 rows"),
        (lambda x: x.sum(), 1, "0F0 made a tensor of shape []. It must have 2 rows"),
        (lambda x: x.view(2, 2, *[1] * 8), 1, "at most 9 dimensions"),
        (lambda x: x + 0j, 1, "made torch.complex128, but only these dtypes travel:"),
        (lambda x: (x, x), 1, "0F0 made a tuple, and only a tensor can travel"),
    ],
)
def test_what_cannot_travel_gets_a_sentence(world, change, when, words):
    with pytest.raises(d2lpar.RankError) as caught:
        d2lpar.run(sends_what, change, when, world_size=2, backend=world)
    assert caught.value.rank == 0
    text = str(caught.value.__cause__)
    assert words in text and "\n" not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_and_more_dimensions_travel(dtype):
    change = lambda x: x.to(dtype).view(2, 1, 2, 1)
    run = d2lpar.run(sends_what, change, world_size=2, backend="sim")
    assert all(g is not None and g.abs().sum() > 0 for g in run.results[0])


def fields_of_a_step(name):
    """The fields of a pipeline and of its mail, before a step and after it."""
    made = make(name, 2, 2)
    pipeline = Pipeline(made, layers(2)[dist.get_rank() :][:1], squares)
    fields = lambda: [sorted(vars(x)) for x in (pipeline, pipeline.mail)]
    before = fields()
    pipeline.step(*batch(4))
    return before, fields()


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_all_fields_are_set_when_it_is_made(name):
    run = d2lpar.run(fields_of_a_step, name, world_size=2, backend="sim")
    assert all(before == after for before, after in run.results)


def ignores_its_input():
    class Deaf(Any):
        def forward(self, x):
            return self.weight * torch.ones(len(x), 1)

    stages = [nn.Linear(2, 2).double(), Deaf()][dist.get_rank()]
    Pipeline(make("gpipe", 2, 2), [stages], lambda out, y: out.sum()).step(*batch(4, 2))


def test_a_stage_that_makes_no_gradient_is_named():
    with pytest.raises(d2lpar.RankError, match="1B0 made a NoneType") as caught:
        d2lpar.run(ignores_its_input, world_size=2, backend="sim")
    assert caught.value.rank == 1


# Memory: an activation that has left is not held


def many(name, p, m, rows=8):
    stage = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
    pipeline = Pipeline(make(name, p, m), [stage], squares)
    x = torch.ones(rows * m, 16)
    pipeline.step(x, x)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_memory_grows_with_the_batch_and_with_nothing_else(name):
    peaks = {}
    for m in (8, 16):
        run = d2lpar.run(many, name, 3, m, world_size=3, backend="sim")
        peaks[m] = run.peak_memory
    batch_bytes = 8 * 8 * 16 * 4  # the rows that m=16 has more
    for less, more in zip(peaks[8], peaks[16], strict=True):
        assert more - less == batch_bytes
