"""torch's own parallel modules run in the simulator and give one device's numbers."""

import datetime
import os
import re
import subprocess
import sys
from os import environ
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn

import d2lpar
from d2lpar.sim.torch_private import group

N = 4
TOLERANCE = dict(rtol=0, atol=1e-10)


def make_model(width=12):
    """The same weights on every rank and in the serial truth."""
    torch.manual_seed(1)
    layers = [nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)]
    return nn.Sequential(*layers).double()


def make_data(width=12, rows=16):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return x, y


def loss_of(output, y):
    return ((output - y) ** 2).mean()


def serial():
    """One device's output and gradients."""
    model, (x, y) = make_model(), make_data()
    output = model(x)
    loss_of(output, y).backward()
    return output.detach(), [p.grad for p in model.parameters()]


def shard(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def assert_equal_to_serial(results, whole_output=False):
    output, grads = serial()
    for rank, (out, mine) in enumerate(results):
        expected = output if whole_output else output.chunk(len(results))[rank]
        torch.testing.assert_close(out, expected, **TOLERANCE)
        assert len(mine) == len(grads)
        for a, b in zip(mine, grads, strict=True):
            torch.testing.assert_close(a, b, **TOLERANCE)


def ddp_step(how):
    from torch.nn.parallel import DistributedDataParallel as DDP

    options = {
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
        "small buckets": {"bucket_cap_mb": 0.001},
    }
    model = DDP(make_model(), **options.get(how, {}))
    if how == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, default_hooks.allreduce_hook)
    x, y = make_data()
    for _ in range(2):
        model.zero_grad()
        output = model(shard(x))
        loss_of(output, shard(y)).backward()
    return output, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("how", ["plain", "unused", "static", "small buckets", "hook"])
def test_ddp(how):
    for _ in range(2):
        assert_equal_to_serial(d2lpar.run(ddp_step, how, world_size=N).results)


def fsdp_step():
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    x, y = make_data()
    output = model(shard(x))
    loss_of(output, shard(y)).backward()
    return output, [p.grad.full_tensor() for p in model.parameters()]


def test_fully_shard():
    for _ in range(2):
        assert_equal_to_serial(d2lpar.run(fsdp_step, world_size=N).results)


def test_fully_shard_stays_on_the_cpu_where_torch_sees_a_gpu(monkeypatch):
    gpu = lambda *_: torch.device("cuda")
    monkeypatch.setattr(torch._C, "_get_accelerator", gpu)  # as on such a machine
    assert_equal_to_serial(d2lpar.run(fsdp_step, world_size=N, backend="sim").results)
    assert torch._C._get_accelerator is gpu


def split_by_torch(mesh):
    """The first layer by columns and the second by rows."""
    from torch.distributed.tensor import parallel

    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    return parallel.parallelize_module(make_model(), mesh, plan)


def tensor_parallel_step():
    model = split_by_torch(dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    x, y = make_data()
    output = model(x)
    loss_of(output, y).backward()
    return output, [p.grad.full_tensor() for p in model.parameters()]


def test_parallelize_module():
    for _ in range(2):
        run = d2lpar.run(tensor_parallel_step, world_size=N)
        assert_equal_to_serial(run.results, whole_output=True)


def two_dimensional_step():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = split_by_torch(mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    x, y = (t.chunk(2)[mesh["data"].get_local_rank()] for t in make_data())
    output = model(x)
    loss_of(output, y).backward()
    return output, [p.grad.full_tensor() for p in model.parameters()]


def test_mesh_of_two_dimensions():
    for _ in range(2):
        results = d2lpar.run(two_dimensional_step, world_size=N).results
        assert_equal_to_serial([results[0], results[2]])
        assert_equal_to_serial([results[1], results[3]])


def pipeline_model():
    torch.manual_seed(1)
    stages = [nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(N)]
    return nn.Sequential(*stages).double()


def pipeline_step():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n = dist.get_rank(), dist.get_world_size()
    part = pipeline_model()[rank]
    stage = PipelineStage(part, rank, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_of)
    x, y = make_data()
    if rank == 0:
        output = schedule.step(x)
    elif rank == n - 1:
        output = schedule.step(target=y)
    else:
        output = schedule.step()
    return output, [p.grad for p in part.parameters()]


def test_schedule_1f1b():
    model, (x, y) = pipeline_model(), make_data()
    output = model(x)
    loss_of(output, y).backward()
    for _ in range(2):
        results = d2lpar.run(pipeline_step, world_size=N).results
        torch.testing.assert_close(results[-1][0], output.detach(), **TOLERANCE)
        for rank, (_, grads) in enumerate(results):
            for a, b in zip(grads, model[rank].parameters(), strict=True):
                torch.testing.assert_close(a, b.grad, **TOLERANCE)


def slow_ddp():
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
    model = DDP(model, bucket_cap_mb=1.1)
    for _ in range(2):  # DDP cuts its buckets after the first step
        model(torch.ones(512, 512)).sum().backward()


def test_ddp_overlaps_its_all_reduces_with_backward():
    run = d2lpar.run(slow_ddp, world_size=2, cluster="2xT4")
    mine = [event for event in run.timeline if event.rank == 0]
    reduces = [e for e in mine if e.name == "all_reduce" and e.bytes > 1000]
    computes = [e for e in mine if e.kind == "compute"]
    assert len(reduces) > 3
    hidden = sum(
        max(0.0, min(a.stop, c.stop) - max(a.start, c.start))
        for a in reduces
        for c in computes
    )
    assert hidden > 0.2 * sum(e.stop - e.start for e in reduces)


DOUBLE = """
import torch
from torch.autograd.function import once_differentiable

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient

def gradient():
    x = torch.ones(1, requires_grad=True)
    Double.apply(x).backward()
    return x.grad.item()
"""


@pytest.mark.parametrize("world", ["sim", "gloo"])
def test_a_function_with_a_backward_of_its_own_travels(world):
    """As in a cell: `once_differentiable` refers to a module that has no file."""
    cell = {"__name__": "__main__"}
    exec(DOUBLE, cell)
    run = d2lpar.run(cell["gradient"], world_size=2, backend=world)
    assert run.results == [2.0, 2.0]


# checkpoints


def filled_net():
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    values = {name: p.detach().clone() for name, p in net.named_parameters()}
    fully_shard(net)
    return net, values


def set_from_rank_0():
    from torch.distributed.checkpoint import state_dict as interface

    torch.manual_seed(dist.get_rank())
    net, values = filled_net()
    options = interface.StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True
    )
    given = dict(values) if dist.get_rank() == 0 else {}  # torch 2.15 writes to it
    interface.set_model_state_dict(net, given, options=options)
    options = interface.StateDictOptions(full_state_dict=True)
    return values, interface.get_model_state_dict(net, options=options)


def saved_and_loaded(folder):
    import torch.distributed.checkpoint as checkpoint

    net, values = filled_net()
    found = []
    for save in (checkpoint.save, checkpoint.async_save):
        state = {"net": net.state_dict(), "step": 5}
        done = save(state, checkpoint_id=f"{folder}/{save.__name__}")
        if save is checkpoint.async_save:
            done.result()
        dist.barrier()
        other = filled_net()[0]
        state = {"net": other.state_dict(), "step": 0}
        checkpoint.load(state, checkpoint_id=f"{folder}/{save.__name__}")
        loaded = {name: t.full_tensor() for name, t in other.state_dict().items()}
        found.append((state["step"], loaded))
    return values, found


def in_plain_gloo(rank, fn, folder, args):
    """As a script on its own, without this course."""
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    torch.manual_seed(0)
    torch.save(fn(*args), f"{folder}/rank {rank}")
    dist.destroy_process_group()


def of_plain_gloo(fn, folder, *args):
    folder.mkdir()
    torch.multiprocessing.spawn(in_plain_gloo, (fn, str(folder), args), 2)
    return [
        torch.load(folder / f"rank {rank}", weights_only=False) for rank in range(2)
    ]


def set_saved_and_loaded(folder):
    whole = set_from_rank_0()
    torch.manual_seed(0)  # the ranks begin alike again
    return whole, saved_and_loaded(folder)


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_as_in_plain_gloo(tmp_path):
    folder = str(tmp_path / "plain")
    plain = of_plain_gloo(set_saved_and_loaded, tmp_path / "store", folder)
    for world in ("sim", "gloo"):
        given = set_saved_and_loaded, str(tmp_path / world)
        run = d2lpar.run(*given, world_size=2, backend=world, timeout=300)
        assert_same(run.results, plain)
        for _, (values, found) in run.results:
            assert_same(found, [(5, values), (5, values)])
        for how in ("save", "async_save"):
            names = {path.name for path in (tmp_path / world / how).iterdir()}
            assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def assert_same(a, b):
    """Equal results, with tensors in them."""
    torch.testing.assert_close(a, b, rtol=0, atol=0)


# what torch switches for the whole process


def loss_on_shards(inside_longer):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    x, target = torch.randn(4, 9, requires_grad=True), torch.arange(4)
    nn.functional.cross_entropy(x, target).backward()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(x.detach(), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(sharded, target)
        loss.backward()
        if inside_longer is None:
            raise RuntimeError("inside")
        if dist.get_rank() == inside_longer:
            dist.barrier()
            nn.functional.cross_entropy(sharded, target).backward()
    if dist.get_rank() != inside_longer:
        dist.barrier()
        with loss_parallel():
            nn.functional.cross_entropy(sharded, target).backward()
    return x.grad * 2, sharded.grad.full_tensor()


def test_loss_parallel_is_each_ranks_own():
    run = d2lpar.run(loss_on_shards, 1, world_size=3, backend="sim", timeout=300)
    for wanted, found in run.results:
        torch.testing.assert_close(found, wanted)
    with pytest.raises(d2lpar.RankError, match="inside"):
        d2lpar.run(loss_on_shards, None, world_size=2, backend="sim", timeout=300)
    assert not d2lpar.sim.torch_private.loss_parallel()


def compiled():
    """A functional collective, inside and outside of what is compiled."""
    import torch.distributed._functional_collectives as functional

    @torch.compile(backend="eager")
    def double_sum(x):
        return 2 * functional.all_reduce(x + 1, "sum", dist.group.WORLD)

    x = torch.ones(3) * dist.get_rank()
    y = functional.all_reduce(double_sum(x), "sum", dist.group.WORLD)
    return double_sum(x), y + 0


def test_compiled_functions_with_collectives(caplog):
    run = d2lpar.run(compiled, world_size=3, backend="sim", timeout=300)
    for result in run.results:
        assert [t.tolist() for t in result] == [[12.0] * 3, [36.0] * 3]
    assert sum(run.messages) == 3 * 3 * 4  # as for three native all-reduces
    assert "recompile_limit" not in caplog.text


def monitored(missing):
    if dist.get_rank() != missing:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=200))
    return dist.get_rank()


@pytest.mark.parametrize("world", ["sim", "gloo"])
def test_monitored_barrier(world):
    run = d2lpar.run(monitored, None, world_size=3, backend=world)
    assert run.results == [0, 1, 2]
    with pytest.raises(d2lpar.DeadlockError, match="rank 1 has returned.*in barrier"):
        d2lpar.run(monitored, 1, world_size=3, backend=world, timeout=2)


# scripts


def tutorial():
    """As torch's tutorials begin and end."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=n)
    assert (rank, n) == (dist.get_rank(), dist.get_world_size())
    os.environ["MINE"] = str(rank)
    x = torch.ones(1) * int(os.getenv("LOCAL_RANK"))
    dist.all_reduce(x)
    assert (environ["MINE"], dist.get_node_local_rank()) == (str(rank), rank)
    dist.destroy_process_group()
    return x.item(), dist.is_initialized(), sorted(set(os.environ) - set(TOLD))


TOLD = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
TOLD += ["MASTER_PORT", "MINE", "D2LPAR_INSIDE"]


@pytest.mark.parametrize("world", ["sim", "gloo"])
def test_a_script_that_joins_the_world_itself(world):
    before = dict(os.environ)
    run = d2lpar.run(tutorial, world_size=3, backend=world)
    assert run.results == [(3.0, False, sorted(set(before) - set(TOLD)))] * 3
    said = "init_process_group does nothing inside run, which has connected the ranks."
    assert run.warnings == [said]
    assert dict(os.environ) == before and not dist.is_initialized()
    child = 'import os; print(os.environ.get("MINE"), os.environ.get("RANK"))'
    output = subprocess.check_output([sys.executable, "-c", child], text=True)
    assert output.split() == [str(before.get(name)) for name in ("MINE", "RANK")]


def joins_wrongly(how):
    if how == "again":
        dist.destroy_process_group()
        dist.init_process_group("gloo")
    dist.init_process_group("nccl", **how)


@pytest.mark.parametrize(
    "how, words",
    [
        ({"world_size": 8, "rank": 0}, r"init_process_group.world_size=8. inside run"),
        ("again", "init_process_group after destroy_process_group"),
    ],
)
def test_a_script_that_joins_another_world(how, words):
    with pytest.raises(d2lpar.RankError, match=words):
        d2lpar.run(joins_wrongly, how, world_size=1, backend="sim")


# Tensors that are wrappers


def sums_what_a_functional_collective_gave():
    from torch.distributed import _functional_collectives as functional

    y = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    dist.all_reduce(y)
    return y.tolist()


def sums_a_dtensor():
    from torch.distributed.tensor import distribute_tensor

    dist.all_reduce(
        distribute_tensor(torch.ones(2), dist.init_device_mesh("cpu", (2,)))
    )


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_wrapper_of_torchs_is_opened_and_a_dtensor_refused(backend):
    """Without memory of their own they ended the process with a segmentation fault."""
    world = {"world_size": 2, "backend": backend}
    run = d2lpar.run(sums_what_a_functional_collective_gave, **world)
    assert run.results == [[4.0] * 3] * 2
    with pytest.raises(d2lpar.RankError, match="all_reduce got a DTensor: give it x"):
        d2lpar.run(sums_a_dtensor, **world)


def steps(count_of):
    """`count_of(rank)` steps of DDP."""
    model = nn.parallel.DistributedDataParallel(make_model())
    for _ in range(count_of(dist.get_rank())):
        model(make_data()[0]).sum().backward()


def leaves_early():
    steps(lambda rank: 3 - (rank == 0))


def never_ends():
    steps(lambda rank: 2)
    while dist.get_rank() == 1:
        pass


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_rank_that_waits_in_a_backward_says_for_what(backend):
    """DDP waits in C++, for a future."""
    said = "rank 0 has returned, and rank 1 still waits for it in all_reduce. "
    said += "Rank 1 has called all_reduce 3 times, rank 0 twice."
    with pytest.raises(d2lpar.DeadlockError, match=re.escape(said)) as caught:
        d2lpar.run(leaves_early, world_size=2, backend=backend, timeout=3)
    assert "model(make_data()[0]).sum().backward()" in str(caught.value)


def test_a_rank_that_has_its_gradients_waits_for_nothing():
    with pytest.raises(d2lpar.RankError, match="rank 1 did not come to a") as caught:
        d2lpar.run(never_ends, world_size=2, backend="gloo", timeout=3)
    assert "rank 1: running" in str(caught.value)


@pytest.mark.parametrize("name", ["sum", "avg", "max", "bxor", "sum times 0.25"])
def test_a_reduction_is_made_of_its_name(name):
    made = SimpleNamespace(reduceOp=group.reduction(name))
    assert group._op(made) == name
