"""The simulated cluster: its clock, its wires, its memory and its order."""

import ast
import cProfile
import functools
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.utils._python_dispatch as _dispatch

import d2lpar
from conftest import WATCHDOG, completed, inventory
from d2lpar import Cluster
from d2lpar.allreduce import ring_allreduce
from d2lpar.messages import exchange
from d2lpar.report import threads
from d2lpar.report.calls import Meta, cost_of
from d2lpar.report.events import WAITS
from d2lpar.sim import matching, simulator

ALPHA, BETA = 1e-5, 1e-9
close = functools.partial(math.isclose, rel_tol=1e-9, abs_tol=1e-15)


def sim(fn, *args, n=4, **options):
    options.setdefault("cluster", Cluster.ideal(alpha=ALPHA, beta=BETA))
    return d2lpar.run(fn, *args, world_size=n, backend="sim", **options)


def seconds(run, rank, *kinds):
    """How long the events of such kinds took on this rank, together."""
    found = (e for e in run.timeline if e.rank == rank and e.kind in kinds)
    return sum(e.stop - e.start for e in found)


# messages


def send_one(count, late=0.0):
    x = torch.ones(count)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        d2lpar.sleep(late)
        dist.recv(x, 0)
    return d2lpar.now()


@pytest.mark.parametrize("count", [0, 1, 1_000, 1_000_003])
def test_a_message_takes_alpha_and_its_bytes(count):
    run = sim(send_one, count, n=2)
    assert close(run.elapsed, ALPHA + 4 * count * BETA)
    assert close(run.results[0], run.elapsed) and close(run.results[1], run.elapsed)
    assert run.bytes_sent == [4 * count, 0] and run.messages == [1, 0]
    assert run.rounds == 1 and run.traffic[0, 1] == 4 * count


def test_a_parameter_of_a_class_of_its_own_is_one():
    class Mine(torch.nn.Parameter):
        pass

    def summed():
        return Mine(torch.ones(3)).data.sum().item()

    assert d2lpar.run(summed, world_size=2, backend="sim").results == [3.0, 3.0]


def test_a_send_ends_when_it_is_received():
    run = sim(send_one, 10, 1.0, n=2)
    assert close(run.elapsed, 1.0 + ALPHA + 40 * BETA)
    assert close(seconds(run, 0, "blocked"), 1.0)
    assert close(seconds(run, 0, "transferring"), ALPHA + 40 * BETA)


def test_buffered_messages_leave_before_they_are_received():
    run = sim(send_one, 10, 1.0, n=2, buffered=True)
    assert close(run.elapsed, 1.0)
    assert not [e for e in run.timeline if e.rank == 0 and e.kind in WAITS]


def exchange_all(count):
    r, ops = dist.get_rank(), []
    for i in range(dist.get_world_size()):
        if i != r:
            ops.append(dist.P2POp(dist.isend, torch.full((count,), float(r)), i))
            ops.append(dist.P2POp(dist.irecv, torch.empty(count), i))
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def test_ports_are_full_duplex_and_serve_one_transfer_at_a_time():
    def gather_by_hand():
        if dist.get_rank():
            return dist.send(torch.ones(1000), 0)
        for i in range(1, dist.get_world_size()):
            dist.recv(torch.empty(1000), i)

    one = ALPHA + 4_000 * BETA
    assert close(sim(exchange_all, 1000, n=2).elapsed, one)
    gathered = sim(gather_by_hand, n=5)
    assert close(gathered.elapsed, 4 * one) and gathered.rounds == 4
    assert sim(exchange_all, 1000, n=5).elapsed >= 4 * one * (1 - 1e-9)


@pytest.mark.parametrize("per_node", [2, 3, 5, 8])
@pytest.mark.parametrize("network", ["10Gb", "100Gb", "400Gb"])
def test_messages_through_one_card_pay_latency_once(per_node, network):
    """k messages of S bytes: alpha + k S / bandwidth, in both directions at once.

    Their bytes queue, one message after the other.
    """

    def exchange(x):
        other = (dist.get_rank() + per_node) % (2 * per_node)
        works = [dist.isend(x, other), dist.irecv(torch.empty_like(x), other)]
        [work.wait() for work in works]

    cluster = Cluster.of(f"2x{per_node}xA100", network=network, cards=1, launch=0)
    x = torch.empty(16384, device="meta")
    run = sim(exchange, x, n=2 * per_node, cluster=cluster)
    alpha, bandwidth, _ = cluster.path(0, per_node)
    sends = [e for e in run.timeline if e.name == "send"]
    took = max(e.stop for e in sends) - min(e.start for e in sends)
    assert close(took, alpha + per_node * x.nbytes / bandwidth)
    assert all(close(e.stop - e.start, alpha + x.nbytes / bandwidth) for e in sends)


def test_operations_are_charged_by_what_they_read_write_and_multiply():
    def computes():
        x, y = torch.empty(1000), torch.empty(1000)
        x.copy_(y), x.zero_(), x.add_(y)
        q = torch.empty(1, 2, 64, 16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
        rows = torch.ones(12, 8, requires_grad=True)
        weights = torch.ones(3, 8, 16, requires_grad=True)  # of three experts
        ends = torch.tensor([5, 5, 12], dtype=torch.int32)
        y = torch.nn.functional.grouped_mm(rows, weights, offs=ends)
        y.square().sum().backward()

    run = sim(computes, n=1, cluster=Cluster.of("1xA100"))
    found = {e.name: e for e in [*run.timeline][::-1] if e.stream == "compute"}
    moved = {name: found[name].bytes for name in ("copy", "zero", "add")}
    assert moved == {"copy": 8000, "zero": 4000, "add": 12000}
    backward, forward = (e.flops for e in found.values() if "attention" in e.name)
    assert forward == 2 * 2 * 2 * 64 * 64 * 16  # two products, of two heads
    assert backward == 2.5 * forward
    products = [e.flops for e in run.timeline if e.name.endswith("grouped_mm")]
    assert products == [2 * 12 * 8 * 16] * 3  # forward, and both gradients


def test_any_source_receives_in_the_order_of_virtual_time():
    def workers():
        if r := dist.get_rank():
            d2lpar.sleep(1.0 / r)
            return dist.send(torch.tensor([r]), 0)
        return [dist.recv(torch.empty(1, dtype=torch.int64)) for _ in range(4)]

    assert sim(workers, n=5).results[0] == [4, 3, 2, 1]


def test_messages_without_a_batch_are_warned_of_and_arrive_when_the_transfer_ends():
    def looks_before_it_waits():
        other = 1 - dist.get_rank()
        x, y = torch.full((3,), 7.0), torch.zeros(3)
        seen = y.numpy()  # which nobody watches
        works = [dist.isend(x, other), dist.irecv(y, other)]
        assert seen.tolist() == [0.0] * 3
        for work in works:
            work.wait()
        assert y.tolist() == [7.0] * 3

    (warning,) = sim(looks_before_it_waits, n=2).warnings
    assert "batch_isend_irecv" in warning
    assert sim(exchange_all, 10, n=2).warnings == []


def test_a_look_costs_a_microsecond_and_lets_others_run():
    def polls():
        if dist.get_rank() == 0:
            work = dist.irecv(x := torch.empty(1000), 1)
            looks = 0
            while not work.is_completed():
                looks += 1
            return looks, x.sum().item(), d2lpar.now()
        d2lpar.sleep(1e-4)
        dist.send(torch.ones(1000), 0)

    looks, total, now = sim(polls, n=2).results[0]
    assert total == 1000.0 and close(now, (looks + 1) * 1e-6)
    assert 1e-4 + ALPHA + 4e-6 <= now <= 1e-4 + ALPHA + 4e-6 + 2e-6


# collectives


def reduce_all(count):
    x = torch.ones(count)
    dist.all_reduce(x)
    return x.sum().item()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("count", [1, 7, 1000, 100_003])
def test_native_all_reduce_is_the_ring(n, count):
    def by_hand():
        ring_allreduce(torch.ones(count))

    native, hand = sim(reduce_all, count, n=n), sim(by_hand, n=n)
    chunk = -(-count // n) * 4
    assert close(native.elapsed, 2 * (n - 1) * (ALPHA + chunk * BETA))
    assert close(hand.elapsed, native.elapsed)
    assert hand.bytes_sent == native.bytes_sent
    assert sum(native.bytes_sent) == 2 * (n - 1) * count * 4
    assert hand.messages == native.messages == [2 * (n - 1)] * n
    assert hand.rounds == native.rounds == 2 * (n - 1)
    assert (hand.traffic == native.traffic).all()


def one_of_each(kind, count):
    x, *pieces = (torch.ones(count) for _ in range(dist.get_world_size() + 1))
    there = pieces if dist.get_rank() == 1 else None
    arguments = {"broadcast": [x, 1], "reduce": [x, 1], "barrier": []}
    arguments |= {"gather": [x, there, 1], "scatter": [x, there, 1]}
    arguments |= {"all_gather": [pieces, x], "reduce_scatter": [x, pieces]}
    arguments |= {"all_to_all": [pieces, [piece * 2 for piece in pieces]]}
    getattr(dist, kind)(*arguments[kind])


@pytest.mark.parametrize("n", [2, 3, 5])
def test_other_collectives_take_their_closed_forms(n):
    size, rest = 4_000, n - 1
    chain = rest * ALPHA + size * BETA, rest * size, rest
    one = rest * (ALPHA + size * BETA), rest * size, rest
    every = rest * (ALPHA + size * BETA), n * rest * size, rest
    forms = {"broadcast": chain, "reduce": chain, "gather": one, "scatter": one}
    forms |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), every)
    for kind, (took, nbytes, rounds) in {**forms, "barrier": (0.0, 0, 0)}.items():
        run = sim(one_of_each, kind, 1000, n=n)
        assert close(run.elapsed, took), kind
        assert (sum(run.bytes_sent), run.rounds) == (nbytes, rounds), kind


def test_disjoint_groups_do_not_wait_for_each_other():
    def two_groups():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.all_reduce(torch.ones(1000), group=groups[dist.get_rank() // 2])

    assert close(sim(two_groups).elapsed, 2 * (ALPHA + 2000 * BETA))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_cost_of_an_all_reduce_is_that_of_a_ring(n):
    inputs = (((7,), "float64"), ((2, 3), "int32"), ((), "int8"))
    meta = Meta("all_reduce", "sum", None, inputs, inputs)
    pieces = [torch.arange(total).tensor_split(n) for total in (7, 6, 1)]
    sizes = [8 * len(a) + 4 * len(b) + len(c) for a, b, c in zip(*pieces, strict=True)]
    for r in range(n):
        cost = cost_of(meta, n, r)
        sent = [sizes[(r - 1 - k) % n] for k in range(n - 1)]  # reduce-scatter
        sent += [sizes[(r - k) % n] for k in range(n - 1)]  # all-gather
        assert cost.sends == (((r + 1) % n, sum(sent), 2 * (n - 1)),)
        assert cost.steps == (max(sizes),) * (2 * (n - 1))
        assert cost.edges == tuple((i, (i + 1) % n) for i in range(n))


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "reduce", "gather"])
def test_what_is_as_long_as_the_group_is_made_once_for_all_ranks(kind):
    root = None if kind == "all_reduce" else 3
    entry = (((4,), "float32"),)
    meta = Meta(kind, "sum", root, entry, entry)
    one, other = (cost_of(meta, 1000, r, root) for r in (5, 700))
    assert one.edges is other.edges
    assert one.steps is other.steps or len(one.steps) == 1
    wanted = [(i, 3 if kind == "gather" else (i + 1) % 1000) for i in range(1000)]
    if kind != "all_reduce":
        del wanted[2 if kind == "broadcast" else 3]
    assert sorted(one.edges) == wanted


# compute


def multiply(count=1):
    a = torch.ones(256, 512)
    start = d2lpar.now()
    for _ in range(count):
        a @ a.T
    return d2lpar.now() - start


def test_an_output_that_is_given_is_charged_once():
    def program(given):
        x, y = torch.ones(1000, 1000), torch.empty(1000, 1000)
        torch.mul(x, 2.0, out=y if given else None)

    given, new = (sim(program, way, n=1, cluster="1xT4") for way in (True, False))
    assert given.elapsed == new.elapsed > 0


def test_computing_is_charged_by_the_roofline():
    cluster = Cluster.of("2xH100", launch=0)
    moved = 4 * (256 * 512 * 2 + 256 * 256)
    expected = cluster.compute_seconds(0, 2 * 256 * 256 * 512, moved, torch.float32)
    run = sim(multiply, 3, n=2, cluster=cluster)
    assert expected > 0 and close(run.results[0], 3 * expected)
    matmuls = [e for e in run.timeline if e.rank == 0 and e.name == "mm"]
    assert [e.flops for e in matmuls] == [2 * 256 * 256 * 512] * 3
    assert sim(multiply, n=2).elapsed == 0.0


def test_a_product_in_place_has_as_many_flops_as_a_new_one():
    def program():
        x, y = torch.ones(3, 4, 5), torch.zeros(3, 4, 4)
        y.baddbmm_(x, x.mT)
        y[0].addmm_(x[0], x[0].T)

    run = sim(program, n=1, cluster="1xT4")
    found = {event.name: event.flops for event in run.timeline}
    assert (found["baddbmm"], found["addmm"]) == (2 * 3 * 4 * 4 * 5, 2 * 4 * 4 * 5)


@pytest.mark.parametrize("look", [False, True])
def test_a_queue_hides_launches_unless_someone_looks(look):
    def queued(large):
        """One large operation, then small ones: in how many seconds?"""
        a, b = torch.ones(large, 512), torch.ones(4)
        start = d2lpar.now()
        a @ a.T
        for _ in range(9):
            b = b + 1
            if look:
                b[0].item()
        return d2lpar.now() - start

    launch = 100e-6
    at = {"n": 1, "cluster": Cluster.of("1xT4", launch=launch)}
    busy, idle = sim(queued, 4096, **at), sim(queued, 8, **at)
    (product,) = (e for e in busy.timeline if e.name == "mm")
    work = product.stop - product.start - launch
    assert work > 20 * launch
    launches, left = (19, 16) if look else (10, 0)  # left: after the product and two
    assert idle.results[0] == pytest.approx(launches * launch, rel=0.01)
    assert busy.results[0] == pytest.approx(work + (1 + left) * launch, rel=0.01)


def test_overlap_makes_computing_slower():
    def overlapped(cut):
        """Compute while an all-reduce is on its way; `cut`: wait for it first."""
        x, a = torch.empty(2**24), torch.empty(1024, 1024)
        start = d2lpar.now()
        work = dist.all_reduce(x, async_op=True)
        if cut:
            work.wait()
        for _ in range(40):
            a @ a
        work.wait()
        return d2lpar.now() - start

    times = {}
    for contention in (0, 0.5):
        cluster = Cluster.of("2xA100", launch=0, contention=contention)
        for cut in (False, True):
            run = sim(overlapped, cut, n=2, cluster=cluster, device="meta")
            (times[contention, cut],) = set(run.results)  # on both ranks the same
    (moving,) = (e for e in run.timeline if e.rank == 0 and e.name == "all_reduce")
    inside = moving.stop - moving.start
    assert times[0, True] == times[0.5, True]  # nothing overlaps
    assert times[0, False] < times[0.5, False] < times[0.5, True]
    more = times[0.5, False] - times[0, False]
    assert more == pytest.approx(0.5 * inside, rel=1e-3)


def test_a_straggler_makes_the_others_wait():
    def step():
        multiply(10)
        dist.all_reduce(torch.ones(10))

    cluster = Cluster.of("4xH100", launch=0)
    even, slow = sim(step, cluster=cluster), sim(step, cluster=cluster.slow(2, 4.0))
    usual, more = seconds(slow, 0, "compute"), seconds(slow, 2, "compute")
    assert close(more, 4 * usual)
    assert close(slow.elapsed - even.elapsed, more - usual)
    assert seconds(slow, 0, *WAITS) > more - usual


# memory


def allocate():
    r = dist.get_rank()
    a = torch.zeros(1000)  # 4000
    b = a.view(10, 100)[2:5]  # a view is free
    c = a + 1  # 8000 in all
    del a
    d = torch.ones(r * 100, dtype=torch.float64)  # 800 r more: b still holds a
    del b
    e = torch.tensor([1.0, 2.0])  # a is gone, the peak is past
    c += 1
    return c.sum() + d.sum() + e.sum()


def embeds():
    """Of this gradient, the places are those asked for, the rows one number."""
    table = torch.nn.Embedding(100, 4, sparse=True)
    gradient = torch.autograd.grad(table(torch.tensor([1, 2, 2])).sum(), table.weight)
    assert gradient[0].to_dense()[:3].tolist() == [[count] * 4 for count in (0, 1, 2)]


def uses_argument(x):
    x += 1
    return x.clone()


def resizes():
    x = torch.ones(1000)
    x.untyped_storage().resize_(0)
    y = torch.ones(500)
    x.untyped_storage().resize_(4000)
    return y


@pytest.mark.parametrize(
    ("program", "argument", "peaks"),
    [
        (allocate, [], [8000, 8800, 9600, 10400]),
        (embeds, [], [1600 + 1600 + 3 * 8 + 4] * 2),
        (resizes, [], [6000] * 2),
        (uses_argument, [torch.ones(50)], [200] * 2),
    ],
)
def test_peak_memory_of_a_known_program(program, argument, peaks):
    assert sim(program, *argument, n=len(peaks)).peak_memory == peaks


def test_peak_memory_of_gradients():
    def backward():
        w = torch.ones(100, requires_grad=True)
        (w * w).sum().backward()

    # w, w*w and the sum are alive in forward; backward adds the gradient's terms
    assert 3 * 400 <= sim(backward, n=1).peak_memory[0] <= 5 * 400 + 64


def test_memory_outside_of_tensors_counts_where_it_is_traced():
    def holds_an_array(transient=0):
        """Each rank has one of its own size while the others are at work."""
        bytearray(transient)  # gone before another rank runs
        array = np.zeros(100_000 * (dist.get_rank() + 1))
        dist.barrier()
        return float(array.sum())

    assert sim(holds_an_array).peak_memory == [0] * 4
    tracemalloc.start()
    try:
        held, passing = (sim(holds_an_array, b).peak_memory for b in (0, 5_000_000))
    finally:
        tracemalloc.stop()
    for r in range(4):
        assert abs(held[r] - 800_000 * (r + 1)) < 20_000
        assert abs(passing[r] - 5_000_000) < 20_000  # other objects come and go


def test_collectives_of_meta_tensors_copy_nothing(monkeypatch):
    def reduce_on_meta():
        shard, whole = torch.empty(3), torch.empty(3 * 64)
        for _ in range(20):
            dist.reduce_scatter_tensor(shard, whole)
            dist.all_gather_into_tensor(whole, shard)

    copied = []  # 64 ranks would add and copy 64 blocks each, 40 times
    monkeypatch.setattr(matching, "copy_raw", lambda *pair: copied.append(pair))
    run = sim(reduce_on_meta, n=64, device="meta")
    assert copied == []
    assert run.bytes_sent == [20 * 2 * 63 * 3 * 4] * 64


@pytest.mark.parametrize("n", [2, 3])
def test_functional_collectives_of_meta_tensors_are_sent(n):
    """torch's own would send nothing, as if ranks never met."""

    def functional():
        x, group = torch.ones(6 * n, 5), dist.group.WORLD
        for done in (
            fc.all_reduce(x, "avg", group),
            fc.all_gather_tensor(x.t().contiguous(), 0, group),
            fc.reduce_scatter_tensor(x, "sum", 0, group),
            fc.all_to_all_single(x, None, None, group),
            fc.broadcast(x, 1, group),
            *fc.all_reduce_coalesced([x, x + 1], "max", group),
        ):
            x = x + done.sum()

    at = {"n": n, "cluster": Cluster.of(f"{n}xA100")}
    host, meta = (sim(functional, device=device, **at) for device in ("cpu", "meta"))
    assert meta.bytes_sent == host.bytes_sent and min(host.bytes_sent) > 0
    assert meta.ledger.by_call() == host.ledger.by_call()
    assert meta.warnings == host.warnings
    assert meta.elapsed == pytest.approx(host.elapsed, rel=0.05)


def test_adam_steps_on_meta_tensors():  # with torch 2.11 it could not
    def adam():
        layer = torch.nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            layer(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return [int(state["step"]) for state in optimizer.state.values()]

    assert sim(adam, n=1, device="meta").results == [[2, 2]]


def test_meta_tensors_cost_time_and_bytes_but_no_memory():
    def on_meta():
        x = torch.ones(1_000_000_000)
        dist.all_reduce(x)
        return x.device.type

    run = sim(on_meta, n=2, device="meta")
    assert run.results == ["meta", "meta"]
    assert run.peak_memory == run.bytes_sent == [4_000_000_000] * 2


FIRST_RUN = """
import sys, torch, d2lpar

def forward():
    model = torch.nn.Sequential(*[torch.nn.Linear(50, 50) for _ in range(9)])
    model(torch.ones(7, 50)).sum().backward()

def trains():
    forward()
    torch.ones(9 * 50 * 50) + 1

assert "torch._dynamo" not in sys.modules
print([d2lpar.run(trains, world_size=2, device="meta").peak_memory for _ in "ab"])
"""


def test_the_first_run_of_a_process_keeps_no_more_memory_than_the_next():
    """An import inside a rank may leave its frames, and their tensors, in circles."""
    environ = os.environ | {"D2LPAR_BACKEND": "sim"}
    done = completed([sys.executable, "-c", FIRST_RUN], env=environ)
    first, second = ast.literal_eval(done.stdout or done.stderr)
    assert first == second


def test_two_runs_are_identical():
    def noisy():
        r = dist.get_rank()
        d2lpar.sleep(0.001 * ((r * 7) % 8))
        exchange(torch.rand(50), (r + 1) % 8, y := torch.empty(50), (r - 1) % 8)
        print(r, d2lpar.now())
        dist.all_reduce(y)
        return y

    cluster = Cluster.of("2x4xT4", network="25Gb").slow(3, 2.0)
    a, b = (sim(noisy, n=8, cluster=cluster, seed=4) for _ in range(2))
    assert a.timeline.events == b.timeline.events
    assert str(a.timeline) == str(b.timeline)
    assert (a.output, a.elapsed, a.peak_memory) == (b.output, b.elapsed, b.peak_memory)
    assert all(torch.equal(x, y) for x, y in zip(a.results, b.results, strict=True))


def unusual_arguments():
    """Messages that are short-cut inside torch, next to those that are not."""
    x, group, pair = torch.zeros(3), dist.group.WORLD, dist.new_group([1, 0])
    if dist.get_rank() == 0:
        dist.send(x + 1, 1), dist.send(x + 2, dst=1, group=group, tag=7)
        dist.send(x + 3, group=pair, group_dst=dist.get_group_rank(pair, 1))
        return dist.send(torch.full((2,), 4j), 1)
    y, z, last = x.clone(), x.clone(), torch.empty(2, dtype=torch.complex64)
    sources = [dist.recv(x, src=0), dist.recv(y, 0, group, 7)]
    sources += [dist.recv(z, group=pair), dist.recv(last, 0)]
    return sources, [tensor[0].item() for tensor in (x, y, z, last)]


def test_messages_with_unusual_arguments():
    run = sim(unusual_arguments, n=2)
    assert run.results[1] == ([0] * 4, [1.0, 2.0, 3.0, 4j])
    assert run.messages == [4, 0] and run.bytes_sent == [3 * 12 + 16, 0]


MISTAKES = {
    "to itself": (lambda x: dist.send(x, 0), ValueError),
    "beyond": (lambda x: dist.send(x, 9), ValueError),
    "no target": (lambda x: dist.send(x), ValueError),
    "no tensor": (lambda x: dist.recv([x], 1), TypeError),
    "wrong name": (lambda x: dist.send(x, to=1), TypeError),
    "no arguments": (lambda x: dist.P2POp(), TypeError),
    "no direction": (lambda x: dist.P2POp(dist.send, x, 1), ValueError),
    "empty": (lambda x: dist.batch_isend_irecv([]), IndexError),
    "no list": (lambda x: dist.batch_isend_irecv((x,)), ValueError),
}


@pytest.mark.parametrize(("call", "kind"), MISTAKES.values(), ids=MISTAKES)
def test_bad_arguments_of_messages_are_torchs_own_errors(call, kind):
    with pytest.raises(d2lpar.RankError) as error:
        sim(lambda: call(torch.ones(3)), n=2)
    assert type(error.value.__cause__) is kind


def test_nothing_of_torch_is_changed():
    def state():
        return (
            [getattr(dist, name) for name in ("send", "recv", "batch_isend_irecv")],
            [vars(dist.P2POp)[name] for name in ("__new__", "__init__")],
            dist.distributed_c10d._world,
            torch.UntypedStorage.resize_,
            torch.get_num_threads(),
            torch.initial_seed(),
            sys.excepthook,
            sys.stdout,
            {k: v for k, v in vars(_dispatch).items() if k.startswith("_is_in_")},
            dist.is_initialized(),
        )

    before = state()
    sim(dist.get_rank)
    with pytest.raises(d2lpar.RankError):
        sim(lambda: 1 / 0)
    assert state() == before


def test_a_thousand_and_twenty_four_ranks():
    def ring_rounds():
        n, r = dist.get_world_size(), dist.get_rank()
        x, y = torch.tensor([float(r)]), torch.empty(1)
        for _ in range(20):
            exchange(x, (r + 1) % n, y, (r - 1) % n)
            x, y = y, x
        return x.item()

    start = time.monotonic()
    run = sim(ring_rounds, n=1024)
    assert run.results == [float((r - 20) % 1024) for r in range(1024)]
    assert run.rounds == 20 and sum(run.messages) == 20_480
    assert time.monotonic() - start < 200  # a watchdog


# interrupts and soak

INTERRUPTED = """
    import signal, threading
    import torch, torch.distributed as dist
    import d2lpar

    # a shell starts what runs in the background with this signal ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def hang(how):
        if how == "loop" and dist.get_rank() == 1:
            while True:
                pass
        while True:
            dist.barrier()

    def healthy():
        x = torch.ones(2)
        dist.all_reduce(x)
        return x[0].item()

    for how in ("loop", "barriers"):
        threads = threading.active_count()
        print("ready", flush=True)
        try:
            d2lpar.run(hang, how, world_size=3, backend=BACKEND)
        except KeyboardInterrupt:
            print("interrupted", threading.active_count() - threads, flush=True)
        assert d2lpar.run(healthy, world_size=3, backend=BACKEND).results == [3.0] * 3
    print("done", flush=True)
"""


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_interrupt_returns_to_the_prompt(backend, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(INTERRUPTED).replace("BACKEND", repr(backend)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    words = [sys.executable, script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            for _ in range(2):
                assert child.stdout.readline() == "ready\n"
                time.sleep(1.0)
                start = time.monotonic()
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "interrupted 0\n"
                assert time.monotonic() - start < WATCHDOG  # the goal is 2 s
            assert child.stdout.readline() == "done\n"
            assert child.wait(WATCHDOG) == 0
        finally:
            child.kill()


SOAK = int(os.environ.get("D2LPAR_SOAK", "1"))  # 5 for the long way


@pytest.mark.parametrize("backend, times", [("sim", 100), ("gloo", 20)])
def test_many_runs_leave_nothing(backend, times):
    for k in range(times // 2 + times * SOAK):
        if k == times // 2:
            before, memory = inventory(), psutil.Process().memory_info().rss
        d2lpar.run(exchange_all, 100, world_size=4, backend=backend)
    assert inventory() == before
    assert psutil.Process().memory_info().rss - memory < 25e6


def test_a_rank_that_leaves_is_no_longer_counted_when_the_next_one_runs(monkeypatch):
    counted, following = [], simulator.Simulator._next

    def watched(run):
        if sys._getframe(1).f_code.co_name == "leave":
            counted.append(run._left)
        return following(run)

    monkeypatch.setattr(simulator.Simulator, "_next", watched)
    sim(dist.get_rank)
    assert counted == [3, 2, 1, 0]


def computes_while_another_fails():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)
    if dist.get_rank() == 2:
        raise ValueError("too small")


def test_ranks_that_leave_are_not_interrupted(monkeypatch):
    escaped, leave = [], simulator.Simulator.leave

    def slowly(run, engine):
        end = time.monotonic() + 0.3  # as on a busy machine
        while time.monotonic() < end:
            pass
        leave(run, engine)

    monkeypatch.setattr(simulator.Simulator, "leave", slowly)
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    with pytest.raises(d2lpar.RankError, match="rank 2 raised ValueError: too small"):
        sim(computes_while_another_fails, n=3)
    assert escaped == []


@pytest.mark.parametrize("delay", [0, 1e-4, 1e-3])
def test_an_interrupt_never_leaves_the_part_that_it_is_for(delay):
    class Enough(BaseException):
        pass

    escaped, ended = [], []

    def live(part):
        try:
            try:
                part.run(lambda: time.sleep(delay))
            except Enough:
                pass
            ended.append([None for _ in range(300)])  # nothing arrives here
        except Enough as error:
            escaped.append(error)

    for _ in range(200):
        part = threads.Interruptible()
        thread = threading.Thread(target=live, args=[part])
        thread.start()
        while thread.is_alive():
            part.interrupt(Enough)
        thread.join()
    assert (len(ended), escaped) == (200, [])


def test_a_profiler_may_watch_a_run_and_what_comes_after():
    seen = []

    def watched():
        with cProfile.Profile():
            seen.append(sim(reduce_all, 5, n=3).results)
            with pytest.raises(d2lpar.RankError):  # the others are interrupted
                sim(computes_while_another_fails, n=3)
            seen.append(sim(reduce_all, 5, n=2).results)
        seen.append("ended")

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    assert seen == [[15.0] * 3, [10.0] * 2, "ended"]


def on_shapes():
    """Results of operations on tensors without values, of many kinds."""
    F, meta = torch.nn.functional, {"device": "meta"}
    x, w = torch.empty(5, 4, 6, 6, **meta), torch.empty(3, 4, 3, 3, **meta)
    last = x.contiguous(memory_format=torch.channels_last)
    m, column = torch.empty(7, 4, **meta), torch.empty(7, 1, **meta)
    halves = m.chunk(2, dim=1)
    words = torch.empty(2, 3, dtype=torch.long, **meta)
    conv = torch.ops.aten.convolution_backward
    args = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    dy = torch.empty(5, 3, 6, 6, **meta)
    mean = torch.empty(4, **meta)
    return [
        *(m + column, m + 1, m + 1.5, m > 0, m.t() @ m, m.bfloat16(), m.sum(0)),
        *(m.sum(0, keepdim=True), m.double() * m, halves[1].clone(), m.t().clone()),
        *(torch.cat(halves, 1), torch.cat(halves), torch.zeros_like(m[1:])),
        *(m.max(1), m.topk(2), F.embedding(words, m), m.softmax(-1), m[:, :0] * 2),
        *(F.layer_norm(m, [4], mean, mean), F.layer_norm(m, [4]), m.logaddexp(column)),
        *(F.conv2d(x, w, padding=1), F.conv2d(last, w), F.max_pool2d(last, 2)),
        *(conv(dy, x, w, None, *args, [True, False, False]), x.mean((2, 3))),
        *(conv(dy, last, w, [3], *args, [True, True, True]), last + 1, x[0] + last),
        *(F.batch_norm(x, mean, mean, mean, mean, True), F.gelu(m, approximate="tanh")),
        *(F.batch_norm(x, mean, mean), m.to(torch.int8), m.expand(2, 7, 4) * 1),
    ]


def described(results):
    """Of each tensor: shape, strides, type, bytes, and the first with its memory."""
    each = [r if isinstance(r, tuple) else (r,) for r in results]
    tensors = [part for result in each for part in result if part is not None]
    stored = [t.untyped_storage() for t in tensors]
    first = [s._cdata for s in stored].index
    about = [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]
    sizes = [(s.nbytes(), first(s._cdata)) for s in stored]
    return list(map(len, each)), about, sizes


def test_what_operations_on_shapes_return_is_remembered_rightly():
    wanted = described(on_shapes())
    run = sim(lambda: [described(on_shapes()) for _ in range(3)], n=2, device="meta")
    assert run.results == [[wanted] * 3] * 2


def test_shapes_that_do_not_fit_are_refused_each_time():
    def wrong():
        for _ in range(2):
            assert (torch.empty(2, 3) + torch.empty(2, 3)).shape == (2, 3)
            with pytest.raises(RuntimeError):
                torch.empty(2, 3) + torch.empty(2, 4)

    sim(wrong, n=1, device="meta")


several_processors = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads cannot be placed here",
)


@several_processors
def test_ranks_share_a_processor_and_the_caller_keeps_all():
    mine = os.sched_getaffinity(0)
    places = sim(lambda: tuple(os.sched_getaffinity(0)), n=3).results
    assert len(set(places)) == 1 and len(places[0]) == 1
    assert os.sched_getaffinity(0) == mine


@several_processors
def test_ranks_move_when_their_processor_has_no_time_for_them(monkeypatch):
    first, second = sorted(os.sched_getaffinity(0))[:2]
    answers = iter([first])
    monkeypatch.setattr(simulator, "processor", lambda: next(answers, second))

    def wait_to_be_moved():
        deadline = time.monotonic() + WATCHDOG
        places = [os.sched_getaffinity(0)]
        while places[0] == os.sched_getaffinity(0) and time.monotonic() < deadline:
            time.sleep(0.01)  # as little time as under other programs
        return places + [os.sched_getaffinity(0)]

    assert sim(wait_to_be_moved, n=1).results == [[{first}, {second}]]


def test_where_threads_cannot_be_placed_ranks_run_as_they_are(monkeypatch):
    def processors():
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

    monkeypatch.setattr(threads, "_getcpu", None)
    assert sim(processors).results == [processors()] * 4
