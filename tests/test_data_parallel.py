"""`d2lpar.data_parallel`: all ranks together do what one device does, to 1e-10."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar
from conftest import RANKS, WORLDS
from d2lpar import allreduce as a
from d2lpar import data_parallel as dp
from d2lpar.allreduce import costs, fastest
from d2lpar.shared.data import digits

FEW = ((1, "sim"), (2, "sim"), (3, "sim"), (4, "sim"), (5, "sim"), (3, "gloo"))
SUM = {"reduction": "sum"}


class Net(nn.Module):
    """A net with a frozen layer, a tied weight and a scalar of its own."""

    def __init__(self, norm=False):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.frozen = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.tied = nn.Linear(6, 8)
        self.tied.weight = nn.Parameter(self.first.weight.detach().t().clone())
        self.last = nn.Linear(8, 6)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.norm(torch.tanh(self.frozen(self.first(x))))
        return self.last(torch.tanh(self.tied(x))) * self.scale


def net(norm=False):
    torch.manual_seed(11)
    return Net(norm).double()


def batches(N, steps=3):
    """Another batch of N rows for each step: inputs and classes."""
    rng = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randn(N, 8, dtype=torch.float64, generator=rng)
        yield 3 * x + 1, torch.randint(6, [N], generator=rng)


def loss_sum(outputs, targets):
    return F.cross_entropy(outputs, targets, **SUM)


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


def state(model):
    """Every parameter, gradient and buffer, by name."""
    found = {f"{k} buffer": v.clone() for k, v in model.named_buffers()}
    for name, p in model.named_parameters():
        found[name] = p.detach().clone()
        found[f"{name} grad"] = None if p.grad is None else p.grad.clone()
    return found


def one_device(kind, N, norm=False):
    model = net(norm)
    optimizer = OPTIMIZERS[kind](model)
    for x, y in batches(N):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return state(model)


def steps(kind, N, m, allreduce, norm=False):
    model = net(norm)
    if norm:
        model = dp.convert_batch_norms(model, allreduce)
    optimizer = OPTIMIZERS[kind](model)
    parts = [
        dp.train_step(model, loss_sum, batch, optimizer, allreduce, m=m)
        for batch in batches(N)
    ]
    dp.check_replicas(model)
    return state(model), [float(part) for part in parts]


def near(came, wanted, atol=1e-10):
    assert came.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if tensor is None:
            assert came[name] is None, name
        else:
            assert came[name].dtype == tensor.dtype
            assert torch.allclose(came[name], tensor, rtol=0, atol=atol), name


def same_bits(states):
    for other in states[1:]:
        for name, tensor in states[0].items():
            assert tensor is None or torch.equal(tensor, other[name]), name


# Shards


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("N", [0, 1, 5, 8, 16])
def test_shards_are_views_and_together_the_batch(n, N):
    def mine():
        batch = torch.arange(2 * N).view(N, 2)
        part = dp.shard(batch)
        inside = part.untyped_storage().data_ptr() == batch.untyped_storage().data_ptr()
        return part, inside, dp.shard((batch, torch.arange(N)))

    run = d2lpar.run(mine, world_size=n)
    parts, views, pairs = zip(*run.results, strict=True)
    assert torch.equal(torch.cat(parts), torch.arange(2 * N).view(N, 2))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(views) and sum(run.messages) == 0
    assert all(type(pair) is tuple for pair in pairs)
    assert torch.equal(torch.cat([y for _, y in pairs]), torch.arange(N))


def test_a_named_batch_stays_one():
    def mine():
        part = dp.shard(digits()[1])
        return type(part).__name__, len(part), part.images.shape[0]

    run = d2lpar.run(mine, world_size=7)
    assert [n for _, n, _ in run.results] == [52, 52, 52, 51, 51, 51, 51]
    assert all(kind == "Examples" and n == m for kind, n, m in run.results)


@pytest.mark.parametrize(
    ("batch", "kind", "message"),
    [
        (torch.tensor(1.0), ValueError, "A batch has rows"),
        ((torch.zeros(3), torch.zeros(4)), ValueError, "3, 4"),
        ({"x": torch.zeros(3)}, TypeError, "not dict"),
        ((torch.zeros(0, 2), torch.tensor(3.0)), ValueError, "A batch has rows"),
    ],
)
def test_shard_refuses_what_has_no_rows(batch, kind, message):
    with pytest.raises(d2lpar.RankError, match=message) as caught:
        d2lpar.run(dp.shard, batch, world_size=2)
    assert isinstance(caught.value.__cause__, kind)


# A step


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("N", [12, 7, 2])
@pytest.mark.parametrize(("n", "world"), FEW)
def test_steps_equal_one_devices(n, world, N, kind, norm):
    given = kind, N, 1, a.ring_allreduce, norm
    run = d2lpar.run(steps, *given, world_size=n, backend=world)
    truth = one_device(kind, N, norm)
    for found, _ in run.results:
        near(found, truth)
    same_bits([found for found, _ in run.results])


@pytest.mark.parametrize("m", [2, 3, 9])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_micro_batches_change_nothing_but_the_memory(n, m):
    run = d2lpar.run(steps, "adam", 7, m, a.ring_allreduce, world_size=n)
    whole = d2lpar.run(steps, "adam", 7, 1, a.ring_allreduce, world_size=n)
    for found, _ in run.results:
        near(found, one_device("adam", 7))
    assert run.bytes_sent == whole.bytes_sent


@pytest.mark.parametrize(
    "allreduce",
    [a.naive_allreduce, a.tree_allreduce, fastest.allreduce, dist.all_reduce],
    ids=lambda f: f.__name__,
)
def test_any_allreduce_will_do(allreduce):
    run = d2lpar.run(steps, "sgd", 7, 1, allreduce, world_size=3)
    for found, _ in run.results:
        near(found, one_device("sgd", 7))


@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_of_the_loss_add_up(world):
    run = d2lpar.run(steps, "sgd", 7, 2, a.ring_allreduce, world_size=3, backend=world)
    x, y = next(batches(7))
    first = sum(losses[0] for _, losses in run.results)
    assert first == pytest.approx(F.cross_entropy(net()(x), y).item(), abs=1e-12)


def test_a_group_trains_by_itself():
    def pairs():
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        r = dist.get_rank()
        model = net()
        optimizer = OPTIMIZERS["sgd"](model)
        for batch in batches(5 + r % 2):
            dp.train_step(model, loss_sum, batch, optimizer, group=groups[r % 2])
        dp.check_replicas(model, groups[r % 2])
        return state(model)

    run = d2lpar.run(pairs, world_size=4)
    for r, found in enumerate(run.results):
        near(found, one_device("sgd", 5 + r % 2))


def test_bytes_are_those_of_one_all_reduce_for_each_trained_parameter():
    def one():
        model = net()
        optimizer = OPTIMIZERS["sgd"](model)
        dp.train_step(model, loss_sum, next(batches(6)), optimizer)

    run = d2lpar.run(one, world_size=3, cluster=d2lpar.Cluster.ideal(3))
    sizes = [p.numel() for p in net().parameters() if p.requires_grad]
    forms = [costs.ring_cost(size, 3, 8) for size in sizes]
    assert len(sizes) == 6  # two linear layers, a bias, a scale; tied ones once
    assert max(run.bytes_sent) == sum(form.busiest for form in forms)
    assert sum(run.messages) == sum(form.messages for form in forms)
    assert run.rounds == sum(form.rounds for form in forms)


@pytest.mark.parametrize(
    ("N", "m", "message"), [(0, 1, "N = 0"), (3, 0, "m = 0"), (3, -1, "m = -1")]
)
def test_a_step_needs_rows_and_parts(N, m, message):
    with pytest.raises(d2lpar.RankError, match=message):
        d2lpar.run(steps, "sgd", N, m, a.ring_allreduce, world_size=2)


# Averages


def averaged(N, weights, allreduce=a.ring_allreduce):
    """Gradients of the loss's mean over own rows, averaged; rows and weights."""
    model = net()
    x, y = dp.shard(next(batches(N)))
    F.cross_entropy(model(x), y).backward()
    weight = len(x) if weights == "rows" else weights
    dp.average_gradients(model, allreduce, weight)
    return state(model)


def gradient_of(N):
    model = net()
    x, y = next(batches(N))
    F.cross_entropy(model(x), y).backward()
    return state(model)


@pytest.mark.parametrize("N", [12, 7, 2, 1])
@pytest.mark.parametrize(("n", "world"), FEW)
def test_means_weighted_by_rows_are_the_mean(n, world, N):
    run = d2lpar.run(averaged, N, "rows", world_size=n, backend=world)
    for found in run.results:
        near(found, gradient_of(N))
    same_bits(run.results)


@pytest.mark.parametrize("weight", [None, 1, 0.3])
def test_equal_shards_need_no_weights(weight):
    run = d2lpar.run(averaged, 12, weight, world_size=3)
    near(run.results[0], gradient_of(12))


def test_equal_weights_are_wrong_for_unequal_shards():
    found = d2lpar.run(averaged, 7, None, world_size=3).results[0]
    off = found["tied.weight grad"] - gradient_of(7)["tied.weight grad"]
    assert off.abs().max() > 1e-3


def test_weights_cost_one_number():
    plain = d2lpar.run(averaged, 7, None, world_size=3)
    weighted = d2lpar.run(averaged, 7, "rows", world_size=3)
    assert sum(weighted.messages) - sum(plain.messages) == 12
    assert sum(weighted.bytes_sent) - sum(plain.bytes_sent) == 4 * 8


@pytest.mark.parametrize(
    ("weight", "message"), [(-1, "not -1"), (float("nan"), "not nan"), (0, "are 0")]
)
def test_weights_that_mean_nothing_are_refused(weight, message):
    with pytest.raises(d2lpar.RankError, match=message):
        d2lpar.run(averaged, 7, weight, world_size=2)


@pytest.mark.parametrize("fault", ["no", "a sparse"])
def test_a_gradient_that_cannot_be_reduced_is_named(fault):
    def one():
        model = nn.ModuleDict({"emb": nn.Embedding(4, 2, sparse=True)})
        if fault == "a sparse":
            model["emb"](torch.tensor([1])).sum().backward()
        dp.sum_gradients(model)

    with pytest.raises(d2lpar.RankError, match=f"emb.weight has {fault} gradient"):
        d2lpar.run(one, world_size=2, backend="gloo")


# Replicas


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("what", ["first.weight", "norm.running_var", "scale"])
def test_a_replica_that_differs_is_named(what, world):
    def check():
        model = net(norm=True)
        dp.check_replicas(model)
        if dist.get_rank() == 2:
            tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            tensor[what].data.view(-1)[0] += 1e-15
        dp.check_replicas(model)

    with pytest.raises(d2lpar.RankError, match=f"{what} of rank 2 .*: 1 of") as caught:
        d2lpar.run(check, world_size=3, backend=world)
    assert caught.value.rank == 2


def test_replicas_with_equal_bits_pass_whatever_they_are():
    def check():
        model = nn.Linear(2, 2)
        model.weight.data[0] = torch.tensor([float("nan"), -0.0])
        model.weight.data = model.weight.data.t()  # with gaps
        dp.check_replicas(model)
        return True

    assert all(d2lpar.run(check, world_size=3).results)


# Batch norm


SHAPES = {"1d": (nn.BatchNorm1d, ()), "1d long": (nn.BatchNorm1d, (3,))}
SHAPES |= {"2d": (nn.BatchNorm2d, (2, 3)), "3d": (nn.BatchNorm3d, (2, 1, 2))}
OPTIONS = [{}, {"momentum": None, "eps": 0.1}, {"affine": False}]
OPTIONS += [{"track_running_stats": False}]


def normalised(norm, N, n, r, sync, dtype=torch.float64):
    """Output, gradient of x, parameters' gradients and buffers; then in eval."""
    norm = copy.deepcopy(norm).to(dtype)
    rest = SHAPES[norm.kind][1]
    rng = torch.Generator().manual_seed(N)
    whole = torch.randn(2, N, 4, *rest, generator=rng, dtype=torch.float64).to(dtype)
    x = (5 * whole[0] + 100).tensor_split(n)[r].clone().requires_grad_()
    if sync:
        norm = dp.convert_batch_norms(norm)
        assert isinstance(norm, dp.SyncBatchNorm)
    y = norm(x)
    (y * whole[1].tensor_split(n)[r]).sum().backward()
    grads = [p.grad.clone() for p in norm.parameters()]
    buffers = {k: v.clone() for k, v in norm.named_buffers()}
    return y.detach(), x.grad, grads, buffers, norm.eval()(x).detach()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_sync_batch_norm_equals_torchs_on_one_device(n, shape, options):
    norm = SHAPES[shape][0](4, **options)
    norm.kind = shape
    if norm.affine:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)

    def mine():
        return normalised(norm, 5, dist.get_world_size(), dist.get_rank(), True)

    run = d2lpar.run(mine, world_size=n)
    truth = normalised(norm, 5, 1, 0, False)
    ys, xs, grads, buffers, evals = zip(*run.results, strict=True)
    for parts, wanted in ((ys, truth[0]), (xs, truth[1])):
        assert torch.allclose(torch.cat(parts), wanted, rtol=0, atol=1e-10)
    for k, wanted in enumerate(truth[2]):
        assert torch.allclose(sum(g[k] for g in grads), wanted, rtol=0, atol=1e-10)
    for found in buffers:
        near(found, truth[3])
    if norm.track_running_stats:
        assert torch.allclose(torch.cat(evals), truth[4], rtol=0, atol=1e-10)
    times = 3 if norm.track_running_stats else 5  # in eval it asks the others, too
    assert sum(run.messages) == times * 2 * (n - 1) * n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_added_up_in_float32_at_least(dtype):
    norm = nn.BatchNorm1d(4)
    norm.kind = "1d"

    def mine():
        return normalised(norm, 64, dist.get_world_size(), dist.get_rank(), True, dtype)

    run = d2lpar.run(mine, world_size=4)
    truth = normalised(norm, 64, 1, 0, False, torch.float64)
    y = torch.cat([result[0] for result in run.results])
    assert y.dtype == dtype and run.results[0][1].dtype == dtype
    atol = 1e-4
    if dtype == torch.bfloat16:
        truth, atol = normalised(norm, 64, 1, 0, False, dtype), 0.05
    assert torch.allclose(y.double(), truth[0].double(), rtol=0, atol=atol)


def test_conversion_keeps_objects_names_and_mode():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4)))
    model.eval()
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    model = dp.convert_batch_norms(model)
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert [*before] == [*after]
    assert all(before[name] is after[name] for name in before)
    assert isinstance(model[1][0], dp.SyncBatchNorm) and not model[1][0].training
    assert model[1][0].weight.device.type == "cpu"
    norm = model[1][0]
    assert dp.convert_batch_norms(norm, a.tree_allreduce) is not norm


@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 5, 4)])
def test_batch_norm_names_a_wrong_shape(shape):
    with pytest.raises(d2lpar.RankError, match=r"\[N, 4, \.\.\.\], not"):
        d2lpar.run(lambda: dp.SyncBatchNorm(4)(torch.zeros(shape)), world_size=2)


def test_one_value_per_channel_has_no_variance():
    def one():
        dp.SyncBatchNorm(4)(dp.shard(torch.zeros(1, 4)))

    with pytest.raises(d2lpar.RankError, match="two values per channel"):
        d2lpar.run(one, world_size=2)


# Learning rate


def test_the_learning_rate_grows_evenly_to_k_times():
    rates = [dp.scaled_lr(step, 0.1, 5, warmup=4) for step in range(7)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert dp.scaled_lr(0, 0.1, 5) == pytest.approx(0.5)
    assert dp.scaled_lr(9, 0.1, 1, warmup=4) == pytest.approx(0.1)


@pytest.mark.parametrize(("k", "warmup"), [(0, 1), (-2, 1), (2, -1)])
def test_a_learning_rate_needs_sense(k, warmup):
    with pytest.raises(ValueError, match=f"not {k}, {warmup}"):
        dp.scaled_lr(1, 0.1, k, warmup)
