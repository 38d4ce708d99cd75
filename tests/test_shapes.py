"""`d2lpar simulate --shapes`: GPUs without values, and what they cost all the same."""

import json
import re

import pytest
from test_simulate import call, script

from d2lpar.cli import simulate
from d2lpar.sim.cluster import Cluster

TRAINS = """
    H = 48
    net = nn.Sequential(nn.Linear(H, 4 * H), nn.GELU(), nn.LayerNorm(4 * H),
                        nn.Linear(4 * H, H)).cuda()
    net = DDP(net, device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.02)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for step in range(3):
        x = torch.randn(32, H).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.device.type, round(loss.item(), 6))
    """
SHARDS = """
    import torch.nn.functional as F
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.out = nn.Linear(64, 64), nn.Linear(64, 64)
        def forward(self, x):
            q = self.q(x).unflatten(-1, (4, 16)).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            return x + self.out(y.transpose(1, 2).flatten(-2))
    with torch.device("meta"):
        net = nn.Sequential(*[Layer() for _ in range(3)])
    assert torch.cuda.memory_allocated() == 0 and net[0].q.weight.is_meta
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in net:
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    net.to_empty(device="cuda")
    for layer in net:
        layer.q.reset_parameters(), layer.out.reset_parameters()
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9, foreach=True)
    for step in range(3):
        x = torch.randn(2, 8, 64).to("cuda")
        again = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        again.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """


def played(path, shapes, ranks=2, assumed=None, cluster=None, alike=False):
    """The finished Run of the script in a file, on a small cluster of A100."""
    given = {"shapes": shapes, "assumed": assumed}
    program = simulate.script(path, (), "none", ranks, **given)
    cluster = Cluster.of(cluster or f"{ranks}xA100")
    run, error, _ = simulate.simulate(program, ranks, cluster, alike=alike)
    assert error is None, simulate.failure(error)
    return run


def traffic(run):
    """{(kind of call, its line): bytes}, without DDP's comparison of shapes."""
    calls = run.ledger.by_call().items()
    big = {(kind, line): size for (kind, (_, line)), (_, size) in calls if size > 100}
    return {call: size for call, size in big.items() if call[0] != "broadcast"}


@pytest.mark.parametrize("body", [TRAINS, SHARDS], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_shapes_cost_what_values_do(folder, body, ranks):
    (folder / "train.py").write_text(script(body)["train"])
    exact, shaped = (played("train.py", shapes, ranks) for shapes in (False, True))
    assert traffic(shaped) == traffic(exact)
    for a, b in zip(shaped.peak_memory, exact.peak_memory, strict=True):
        assert abs(a / b - 1) < 0.15  # kernels of the CPU and of a GPU keep others
    assert abs(shaped.elapsed / exact.elapsed - 1) < 0.1


GROUPS = """
    from torch.distributed.device_mesh import init_device_mesh
    size = dist.get_world_size()
    mesh = init_device_mesh("cuda", (2, size // 2))
    x = torch.ones(6 * 10**5, device="cuda")
    for dim in (0, 1):
        dist.all_reduce(x, group=mesh.get_group(dim))
        parts = list(torch.empty_like(x).chunk(mesh.size(dim)))
        dist.reduce_scatter(parts[0].clone(), parts, group=mesh.get_group(dim))
        dist.all_to_all(parts, [2 * part for part in parts], group=mesh.get_group(dim))
        x = x @ torch.ones(len(x), 2, device="cuda") * torch.ones_like(x[:2])
        x = x.repeat(3 * 10**5)
    host = torch.arange(size) + 1
    own = torch.empty(1, dtype=torch.int64)
    dist.scatter(own, list(host.chunk(size)) if rank == 0 else None)
    dist.broadcast(host, src=size - 1)
    found = [None] * size
    dist.all_gather_object(found, {"each": 3})
    if rank == 0:
        assert own.item() == 1 and host.tolist() == list(range(1, size + 1))
        assert found == [{"each": 3}] * size, found
    """


@pytest.mark.parametrize(
    ("body", "ranks", "cluster"),
    [
        (TRAINS, 3, "3xA100"),
        (SHARDS, 4, "2x2xA100"),
        (GROUPS, 4, "2x2xA100"),
        (GROUPS, 8, "2x4xA100"),
        (GROUPS, 6, "3x2xA100"),
    ],
)
def test_one_rank_stands_for_all_where_they_do_the_same(folder, body, ranks, cluster):
    (folder / "train.py").write_text(script(body)["train"])
    every, one = (
        played("train.py", True, ranks, None, cluster, alike) for alike in (False, True)
    )
    assert traffic(one) == traffic(every)
    counts = [
        {key: call for key, (call, _) in run.ledger.by_call().items()}
        for run in (one, every)
    ]
    assert counts[0] == counts[1]
    assert one.elapsed == pytest.approx(every.elapsed, rel=0.01)
    assert one.bytes_sent == pytest.approx([every.bytes_sent[0]] * ranks)
    assert len(one.peak_memory) == 1 and one.peak_memory[0] in every.peak_memory


def test_a_message_needs_the_rank_at_its_other_end(folder):
    words = "-n", "2", "--cluster", "2xA100", "--shapes", "--alike"
    for body in ("dist.send(torch.ones(2), 1)", "dist.recv(torch.ones(2), 1)"):
        result = call(folder, *words, **script(body))
        assert result.exit_code == 1 and "run this without --alike" in result.stderr
    told = call(folder, *words, **script("dist.barrier()")).stdout
    assert "2 ranks in sim" in told
    assert "Rank 0 stands for 1 other rank, not executed." in told


def test_a_gpu_says_cuda_and_the_host_keeps_its_values(folder):
    body = """
        x = torch.arange(6).to("cuda")
        print(x.device, x.is_cuda, x.is_meta, torch.ones(2).device)
        host = x.to("cpu", torch.float64, non_blocking=True)
        print(host, (x + 1).tolist(), x.sum().item(), float(x[0] / 2),
              f"{x.sum() / 2:.2f}")
        x += 1
        seed = torch.tensor([7 + rank]).cuda()
        print(x.cpu().tolist(), int(seed), torch.zeros(2, device=x.device).is_cuda)
        later = torch.empty(9, device="meta")
        print(later.device, later.is_meta, (later + 1).is_meta, later.is_cuda)
        for move in (later.cuda, nn.Linear(2, 2, device="meta").to):
            try:
                move("cuda")
            except NotImplementedError as error:
                print("refused:", error)
        print(nn.init.trunc_normal_(torch.empty(4, 4, device="cuda")).norm())
        print("little" if torch.cuda.memory_allocated() < 1000 else "much")
        """
    out = call(folder, "-n", "1", "--shapes", **script(body)).stdout
    assert "cuda:0 True False cpu" in out
    assert "5.], dtype=torch.float64) [1, 1, 1, 1, 1, 1] 1 1.0 1.00" in out
    assert "[1, 1, 1, 1, 1, 1] 7 True" in out  # computed with, it is not known
    assert "meta True True False" in out
    assert out.count("refused: Cannot copy out of meta tensor") == 2
    assert "little" in out


def test_autocast_gives_the_dtypes_that_it_has_on_a_gpu(folder):
    body = """
        import torch.nn.functional as F
        x = torch.ones(4, 4, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            low = [x @ x, F.linear(x, x), torch.einsum("ab,bc->ac", x, x)]
            y = low[0]
            full = [y.softmax(-1), F.layer_norm(y, (4,)), y.sum(), y.exp()]
            with torch.autocast("cuda", enabled=False):
                full.append(x @ x)
        full.append(x @ x)
        print({t.dtype for t in low}, {t.dtype for t in full}, (y + y).dtype)
        """
    out = call(folder, "-n", "1", "--shapes", **script(body)).stdout
    assert "{torch.bfloat16} {torch.float32} torch.bfloat16" in out


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("if (torch.ones(2).cuda() > 5).any(): pass", "--assume 0 or --assume 1"),
        ("torch.ones(2, 2).cuda() @ torch.ones(2, 2)", "two devices, cuda and cpu"),
        ("torch.ones(2).cuda().nonzero()", simulate.NO_VALUES),
    ],
)
def test_what_needs_values_is_refused(folder, body, sentence):
    result = call(folder, "-n", "1", "--shapes", **script(body))
    assert result.exit_code == 1 and sentence in result.stderr
    assert "train.py:1" in result.stderr


def test_what_is_assumed_decides(folder):
    body = "x = torch.ones(2).cuda() * 2\nprint(bool((x > 5).any()), x.mean().item())"
    for value, found in (("0", "False 0.0"), ("1", "True 1.0"), ("3", "True 3.0")):
        words = "-n", "1", "--shapes", "--assume", value
        assert found in call(folder, *words, **script(body)).stdout


def test_what_does_not_fit_and_what_has_no_effect_is_said(folder):
    words = "-n", "1", "--cluster", "1xA100", "--shapes"
    large = call(folder, *words, **script("x = torch.empty(30 * 10**9, device='cuda')"))
    assert "peak memory: 120 GB" in large.stdout
    assert "this ends with torch.OutOfMemoryError" in large.stdout
    none = call(folder, *words, train="import torch\ntorch.ones(3) + 1\n")
    assert "--shapes had no effect" in none.stdout
    scaled = call(folder, *words, **script("torch.amp.GradScaler()"))
    assert "GradScaler is left out" in scaled.stdout


def test_an_event_holds_no_memory(folder):
    """As of each reduce-scatter of `fully_shard`: else all gradients stay whole."""
    body = """
        from torch.distributed.fsdp import fully_shard
        layers = [nn.Linear(512, 512, bias=False, device="cuda") for _ in range(12)]
        net = nn.Sequential(*layers)
        for part in (*net, net):
            fully_shard(part)
        net(torch.randn(8, 512, device="cuda")).square().mean().backward()
        """
    (folder / "train.py").write_text(script(body)["train"])
    for shapes in (False, True):
        peak = max(played("train.py", shapes, 4).peak_memory)
        assert peak < 14 * 4 * 512**2  # all gradients alone are 12


def test_tokens_count_once_where_ranks_share_them(folder):
    body = """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            RowwiseParallel, parallelize_module)
        net = nn.Embedding(64, 8, device="cuda")
        if SPLIT:
            mesh = init_device_mesh("cuda", (2,))
            split = RowwiseParallel(input_layouts=Replicate())
            parallelize_module(net, mesh, split)
        sgd = torch.optim.SGD(net.parameters())
        for step in range(3):
            net(torch.zeros(500, dtype=torch.long, device="cuda")).sum().backward()
            sgd.step()
        """
    for split, count in (("True", 250), ("False", 500)):
        words = "--cluster", "2xA100", "--shapes", "--json", "a.json"
        call(folder, *words, **script(body.replace("SPLIT", split)))
        report = json.loads((folder / "a.json").read_text())
        assert report["step"]["tokens"] == count


def test_devices_by_number_generators_and_checkpoints(folder):
    body = """
        net = DDP(nn.Linear(2, 2).to(rank).to(device=rank), device_ids=[rank])
        drawn = torch.Generator("cuda").manual_seed(1)
        x = torch.randn(3, 2, generator=drawn, device="cuda")
        net(x).sum().backward()
        print(x.get_device(), torch.ones(1).get_device(), net.module.weight.device)
        """
    result = call(folder, "-n", "2", "--shapes", **script(body))
    assert "[rank 1] 1 -1 cuda:1" in result.stdout and "Warning" not in result.stderr
    body = """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.fsdp import fully_shard
        net = fully_shard(nn.Linear(64, 64, device="cuda"))
        dcp.save({"net": net.state_dict()}, checkpoint_id="saved")
        """
    words = "--cluster", "2xA100", "--shapes", "--alike"
    assert simulate.NO_CHECKPOINT in call(folder, *words, **script(body)).stderr


def test_modules_go_to_the_gpu_in_place(folder):
    """Tied weights stay one; `fully_shard` takes a module from the host."""
    body = """
    from torch.distributed.fsdp import fully_shard
    def net():
        made = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
        made[1].weight = made[0].weight
        return made
    moved, sharded = net().cuda(), net()
    assert moved[0].weight is moved[1].weight and moved[0].weight.is_cuda
    assert torch.cuda.memory_allocated() == 50 * 8 * 4
    fully_shard(sharded)
    optimizer = torch.optim.Adam(sharded.parameters())
    sharded(torch.arange(9, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(sharded.parameters(), 1.0, foreach=True)
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save(moved.state_dict(), "moved.pt")
    """
    words = "-n", "2", "--cluster", "2xA100", "--shapes"
    result = call(folder, *words, **script(body))
    assert result.exit_code == 0, result.stderr
    assert re.search(r"all_reduce +train.py:\d+ +1 ", result.stdout)
    assert "moved.pt is saved without the values of a GPU" in result.stdout
    assert "values that the script reads from a GPU are 1." in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shapes", "--gloo"], "--shapes has no values, which --gloo would send"),
        (["--assume", "1"], "--assume stands for values that only --shapes"),
        (["--alike"], "--alike is for --shapes"),
    ],
)
def test_options_that_do_not_go_together(folder, words, sentence):
    result = call(folder, *words, train="")
    assert sentence in str(result.exception)


# Streams of a GPU, with and without values

SIDE = """
    x, side = torch.ones(1 << 24, device="cuda"), torch.cuda.Stream()
    work = torch.ones(2048, 2048, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(x)
        done = side.record_event()
    y = work @ work
    {then}
    print(x.device.type, (x + 0).sum().item() / x.numel())
    """


@pytest.mark.parametrize("shapes", [False, True])
def test_a_call_in_a_side_stream_is_hidden(folder, shapes):
    took = {}
    for name, then in {
        "stream": "torch.cuda.current_stream().wait_stream(side)",
        "event": "torch.cuda.current_stream().wait_event(done)",
        "wait": "done.wait()",
        "all": "torch.cuda.synchronize()",
        "before": "",
    }.items():
        body = SIDE.format(then=then)
        if name == "before":
            body = body.replace("with torch.cuda.stream(side)", "if True")
        (folder / "train.py").write_text(script(body)["train"])
        took[name] = played("train.py", shapes).elapsed
    assert took["before"] > 1.05 * took["stream"]
    assert took["stream"] == took["event"] == took["wait"]
    assert abs(took["all"] / took["stream"] - 1) < 0.01


@pytest.mark.parametrize("options", [[], ["--shapes"]])
def test_each_stream_has_a_clock_of_its_own(folder, options):
    """What is asked for later in a side stream runs beside what is still computed."""
    body = """
    x, side = torch.ones(1 << 24, device="cuda"), torch.cuda.Stream()
    work = torch.ones(1024, 1024, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    begin, computed, reduced, end = events
    torch.cuda.synchronize()
    begin.record()
    for _ in range(PRODUCTS):
        work @ work
    computed.record()
    with side:
        side.wait_event(begin)
        y = x * 2
        dist.all_reduce(y)
        z = y + 1
        reduced.record()
    side.synchronize()
    end.record()
    print("at", *(begin.elapsed_time(event) for event in events[1:]))
    """
    took = {}
    for products in (1, 20):
        code = script(body.replace("PRODUCTS", str(products)))
        result = call(folder, "-n", "2", "--cluster", "2xA100", *options, **code)
        words = result.stdout.split(" at ")[1].split()
        took[products] = [float(word) for word in words[:3]]
    (few, alone, last), (many, beside, whole) = took.values()
    assert few < alone == last and alone < beside < many < whole < 1.05 * many
    launches = 19 * Cluster.of("2xA100").launch_seconds(0) * 1e3
    assert beside - alone == pytest.approx(launches)


@pytest.mark.parametrize("options", [[], ["--shapes"]])
def test_a_side_stream_that_nobody_waits_for_is_a_race(folder, options):
    body = script(SIDE.format(then=""))
    words = "-n", "2", "--cluster", "2xA100", *options
    result = call(folder, *words, **body)
    assert result.exit_code == 1 and "RaceError" in result.stderr
    inside = body["train"].replace("done = side", "x += 1; done = side")
    inside = inside.replace(
        "y = work", "torch.cuda.current_stream().wait_event(done)\ny = work"
    )
    result = call(folder, *words, train=inside)
    assert result.exit_code == 0, result.stderr
    assert options or "cpu 3.0" in result.stdout
