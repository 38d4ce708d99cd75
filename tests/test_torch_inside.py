"""torch's own parallel modules run in the simulator and give one device's numbers."""

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn

import d2lpar

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


def tensor_parallel_step():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make_model(), mesh, plan)
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
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make_model(), mesh["tensor"], plan)
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
    computes = [e for e in mine if e.stream == "compute" and e.name != "wait"]
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
