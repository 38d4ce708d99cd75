"""Experts on many ranks: one device's results and gradients, for any routing."""

import itertools
import math
from dataclasses import fields

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar
from d2lpar import planning
from d2lpar.allreduce import node_groups
from d2lpar.data_parallel import sum_gradients
from d2lpar.experts import (
    Exchange,
    ExpertParallel,
    MoE,
    balance_loss,
    combine,
    count_tokens,
    dispatch,
    drop,
    nudge,
    route,
)
from d2lpar.experts.nodes import NodeExperts, OverlappedExperts, within_nodes
from d2lpar.planning.experts import PUBLISHED, ExpertModel
from d2lpar.planning.model import Model
from d2lpar.sim.cluster import Cluster
from d2lpar.tensor_parallel import parallel_mlp

D, H, E, K = 5, 4, 24, 3
ROWS = (5, 0, 7, 1, 2, 9, 4, 3)  # tokens of rank 0, 1, ...
ROUTINGS = ("any", "one", "few", "ties")
RANKS = (1, 2, 3, 4, 8)


def layer(routing, capacity=None, k=K):
    """A whole layer, the same on every rank, that routes in this way."""
    torch.manual_seed(7)
    moe = MoE(D, H, E, k, capacity).double()
    if routing == "one":
        moe.bias[17] = 5.0  # every token has expert 17
    if routing == "few":
        moe.bias[8:] = -5.0  # experts 8 to 23 get nothing
    if routing == "ties":
        nn.init.zeros_(moe.router.weight)
    return moe


def tokens_of(n):
    generator = torch.Generator().manual_seed(n)
    rows = ROWS[:n] if n > 1 else (11,)
    shape = sum(rows), D
    x, slope = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return x, slope, rows


def truth(routing, capacity, n):
    """(results, gradients of tokens, {parameter: gradient}, kept choices)."""
    moe, (x, slope, _) = layer(routing, capacity), tokens_of(n)
    x.requires_grad_()
    y = moe(x)
    ((y * slope).sum() + moe.balance()).backward()
    kept = moe.choose(x)[1]
    return y.detach(), x.grad, {k: p.grad for k, p in moe.named_parameters()}, kept


def on_ranks(make, routing, capacity=None):
    """This rank's part of the same, with the router's gradient summed."""
    n, r = dist.get_world_size(), dist.get_rank()
    moe = make(layer(routing, capacity))
    x, slope, rows = tokens_of(n)
    x, slope = x.split(rows)[r].requires_grad_(), slope.split(rows)[r]
    y = moe(x)
    ((y * slope).sum() + moe.balance()).backward()
    sum_gradients(moe.router)
    own, grads = E // n, {"router.weight": moe.router.weight.grad}
    for name, p in moe.experts.named_parameters():
        e, rest = name.split(".", 1)
        grads[f"experts.{r * own + int(e)}.{rest}"] = p.grad
    return y.detach(), x.grad, grads, moe.choose(x)[1]


def agree(run, expected):
    y, dx, grads, kept = expected
    far = lambda a, b: (a - b).abs().max().item() if b.numel() else 0.0
    assert far(torch.cat([mine[0] for mine in run.results]), y) <= 1e-10
    assert far(torch.cat([mine[1] for mine in run.results]), dx) <= 1e-10
    assert torch.equal(torch.cat([mine[3] for mine in run.results]), kept)
    seen = set()
    for mine in run.results:
        for name, grad in mine[2].items():
            assert far(grad, grads[name]) <= 1e-10, name
            seen.add(name)
    assert seen == set(grads)
    assert run.warnings == []


def check(make, routing, capacity, n, backend="sim"):
    given = on_ranks, make, routing, capacity
    run = d2lpar.run(*given, world_size=n, backend=backend)
    agree(run, truth(routing, capacity, n))


def nodes_of(per_node):
    return lambda moe: NodeExperts(moe, node_groups(per_node))


CASES = list(itertools.product(RANKS, ROUTINGS, (None, 1.25)))


@pytest.mark.parametrize("n, routing, capacity", CASES)
def test_experts_on_ranks_are_one_device(n, routing, capacity):
    check(ExpertParallel, routing, capacity, n)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("n, per_node", [(2, 1), (4, 2), (8, 4), (8, 2), (3, 3)])
def test_and_with_tokens_that_cross_to_a_node_once(n, per_node, routing):
    check(nodes_of(per_node), routing, 1.0 if per_node == 2 else None, n)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("n, parts", [(1, 2), (2, 3), (4, 1), (8, 4)])
def test_and_with_parts_that_overlap(n, parts, routing):
    make = lambda moe: OverlappedExperts(moe, parts)
    check(make, routing, 0.5 if n == 2 else None, n)


@pytest.mark.parametrize(
    "make, capacity",
    [(ExpertParallel, 1.25), (nodes_of(2), None), (OverlappedExperts, None)],
)
def test_and_on_real_processes(make, capacity):
    for routing in ("any", "one"):
        check(make, routing, capacity, 4, "gloo")


def test_64_experts_on_64_ranks():
    def program():
        torch.manual_seed(0)
        moe = MoE(4, 2, 64, 2).double()
        x = torch.randn(64 * 3, 4, dtype=torch.float64)
        r = dist.get_rank()
        mine = ExpertParallel(moe)(x[3 * r : 3 * r + 3])
        expected = moe(x)[3 * r : 3 * r + 3] if r % 16 == 0 else mine
        return (mine - expected).abs().max().item()

    run = d2lpar.run(program, world_size=64, backend="sim")
    assert max(run.results) <= 1e-12


# What is sent


def routed(n, routing="any", capacity=None):
    """The kept experts of each rank's tokens, from one device."""
    rows = tokens_of(n)[2]
    return truth(routing, capacity, n)[3].split(rows)


def forward_only(make, routing, capacity=None):
    moe, r = make(layer(routing, capacity)), dist.get_rank()
    x, _, rows = tokens_of(dist.get_world_size())
    moe(x.split(rows)[r])


@pytest.mark.parametrize("n", (2, 3, 8))
@pytest.mark.parametrize("routing", ROUTINGS)
def test_bytes_and_messages_are_the_closed_forms(n, routing):
    run = d2lpar.run(forward_only, ExpertParallel, routing, world_size=n, backend="sim")
    there = [
        [int((e // (E // n) == i).sum()) for i in range(n)] for e in routed(n, routing)
    ]
    for r in range(n):
        others = [i for i in range(n) if i != r]
        rows = sum(there[r][i] + there[i][r] for i in others)  # out, and results back
        assert run.bytes_sent[r] == (n - 1) * E // n * 8 + rows * D * 8
        messages = sum((there[r][i] > 0) + (there[i][r] > 0) for i in others)
        assert run.messages[r] == n - 1 + messages


def test_backward_sends_what_forward_sent_without_the_counts():
    def program(backward):
        moe, r = ExpertParallel(layer("any")), dist.get_rank()
        x, _, rows = tokens_of(3)
        y = moe(x.split(rows)[r].requires_grad_())
        if backward:
            y.sum().backward()

    once, both = (
        d2lpar.run(program, b, world_size=3, backend="sim") for b in (False, True)
    )
    counts = 2 * E // 3 * 8
    for a, b in zip(once.bytes_sent, both.bytes_sent, strict=True):
        assert b == 2 * a - counts


def test_a_capacity_gathers_the_counts_of_all_ranks_and_sends_no_dropped_token():
    free, tight = (
        d2lpar.run(forward_only, ExpertParallel, "one", c, world_size=4, backend="sim")
        for c in (None, 1.25)
    )
    kept, loose = routed(4, "one", 1.25), routed(4, "one")
    counts = 3 * (E // 4) * 8  # of the plan; with a capacity, those of all experts, too
    for run, experts, gathered in ((free, loose, 0), (tight, kept, 3 * E * 8)):
        home = [e // (E // 4) for e in experts]
        away = [[int((home[r] == i).sum()) for i in range(4)] for r in range(4)]
        for r in range(4):
            rows = sum(away[r][i] + away[i][r] for i in range(4) if i != r)
            assert run.bytes_sent[r] == counts + gathered + rows * D * 8
    slots = math.ceil(1.25 * 13 * K / E)
    assert (torch.cat(kept) == 17).sum() == slots < (torch.cat(loose) == 17).sum()


def test_a_token_crosses_to_a_node_once():
    cluster, between = Cluster.of("4x2xA100"), []
    world = {"world_size": 8, "cluster": cluster, "backend": "sim"}
    away = [(i, j) for i in range(8) for j in range(8) if i // 2 != j // 2]
    for make in (ExpertParallel, nodes_of(2)):
        traffic = d2lpar.run(forward_only, make, "any", **world).traffic
        between.append(sum(traffic[i][j] for i, j in away))
    flat = crossings = 0
    for r, experts in enumerate(routed(8)):
        home = experts // (E // 4)
        flat += int((home != r // 2).sum())
        crossings += sum(len(set(row) - {r // 2}) for row in home.tolist())
    row = 2 * D * 8  # there and back
    assert crossings < flat
    assert between[0] == flat * row + 8 * 6 * E // 8 * 8
    # with a row go k weights and k numbers; counts go to 3 peers, one number each
    assert between[1] == crossings * (row + K * 16) + 8 * 3 * 8


def test_overlap_hides_messages_behind_the_experts():
    def program(make):
        torch.manual_seed(0)
        moe = make(MoE(256, 1024, 8, 2))
        moe(torch.randn(256, 256)).sum().backward()

    def seconds(make):
        free = {"launch": 1e-9, "contention": 0.0}  # of what else takes time
        cluster = Cluster.of("4x1xA100", network_latency=2e-6, **free)
        world = {"world_size": 4, "cluster": cluster, "backend": "sim"}
        return d2lpar.run(program, make, **world).elapsed

    assert seconds(lambda moe: OverlappedExperts(moe, 2)) < seconds(ExpertParallel)


# The pieces


def test_route_takes_the_most_likely_and_the_lowest_of_equals():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    weights, experts = route(logits, 2)
    assert experts.tolist() == [[1, 3], [0, 1]]
    assert torch.equal(weights, logits.softmax(-1).gather(1, experts))
    assert route(logits[:0], 2)[0].shape == (0, 2)


def test_a_bias_changes_the_choice_and_not_the_weights():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    weights, experts = route(logits, 1, torch.tensor([5.0, 0.0, 0.0]))
    assert experts.tolist() == [[0]]
    assert weights.item() == pytest.approx(logits.softmax(-1)[0, 0].item())


def test_drop_keeps_the_first():
    experts = torch.tensor([[0], [1], [0], [0], [1]])
    assert drop(experts, 2, 2).flatten().tolist() == [0, 1, 0, -1, 1]
    before = torch.tensor([1, 0])
    assert drop(experts, 2, 2, before).flatten().tolist() == [0, 1, -1, -1, 1]


def test_the_balance_loss_is_that_of_the_paper():
    even = torch.zeros(8, 4), torch.arange(8)[:, None] % 4
    assert balance_loss(*even).item() == pytest.approx(1)
    one = torch.tensor([[100.0, 0, 0, 0]] * 8)
    assert balance_loss(one, torch.zeros(8, 1).long()).item() == pytest.approx(4)
    logits = torch.randn(50, 6)
    experts = route(logits, 1)[1]
    f = F.one_hot(experts[:, 0], 6).double().mean(0)
    expected = 6 * (f * logits.softmax(-1).mean(0)).sum()
    assert balance_loss(logits, experts).item() == pytest.approx(expected.item())
    assert balance_loss(logits[:0], experts[:0]).item() == 0


def test_nudging_balances_without_a_gradient():
    torch.manual_seed(0)
    logits = torch.randn(400, 8) + torch.arange(8) / 2
    bias, before = torch.zeros(8), count_tokens(route(logits, 2)[1], 8)
    for _ in range(400):
        nudge(bias, count_tokens(route(logits, 2, bias)[1], 8), rate=0.002)
    after = count_tokens(route(logits, 2, bias)[1], 8)
    assert before.max() > 2 * 100 > 1.5 * after.max()


def test_few_nodes_per_token():
    torch.manual_seed(0)
    logits = torch.randn(100, 16)
    for limit in (1, 2, 4):
        experts = route(logits, 4, within_nodes(logits, 4, 4, limit))[1]
        nodes = [len(set(row)) for row in (experts // 4).tolist()]
        assert max(nodes) == limit or limit == 4
    best = logits.softmax(-1).unflatten(1, (4, 4)).sum(-1).argmax(-1)
    experts = route(logits, 4, within_nodes(logits, 4, 4, 1))[1]
    assert torch.equal(experts[:, 0] // 4, best)
    with pytest.raises(ValueError, match="cannot be chosen on 1 of 8 nodes"):
        within_nodes(logits, 4, 8, 1)


def test_exchange_by_pytorchs_all_to_all_single_is_the_same():
    def program():
        r, sizes = dist.get_rank(), [[2, 0, 1], [0, 0, 3], [1, 1, 0]]
        sent, came = sizes[r], [row[r] for row in sizes]
        x = torch.arange(sum(sent) * 2.0).view(-1, 2) + 100 * r
        theirs = x.new_empty(sum(came), 2)
        dist.all_to_all_single(theirs, x, came, sent)
        return torch.equal(theirs, Exchange.apply(x, sent, came, None))

    assert all(d2lpar.run(program, world_size=3, backend="sim").results)


def test_dispatch_and_combine_without_weights_give_each_token_its_sum():
    def program():
        r = dist.get_rank()
        x = torch.ones(3, 2) * (r + 1)
        experts = torch.tensor([[0, 3], [-1, 2], [-1, -1]])
        rows, trip = dispatch(x, experts, 4)
        return rows[:, 0].tolist(), trip.sizes, combine(rows, trip)[:, 0].tolist()

    first, second = d2lpar.run(program, world_size=2, backend="sim").results
    assert first == ([1.0, 2.0], [2, 0], [2.0, 1.0, 0.0])
    assert second == ([1.0, 2.0, 1.0, 2.0], [2, 2], [4.0, 2.0, 0.0])


# Experts x tensor x data


def test_experts_x_tensor_x_data_are_one_device():
    def program(routing):
        mesh = dist.init_device_mesh(
            "cpu", (2, 2, 2), mesh_dim_names=("data", "experts", "tensor")
        )
        d, e, _ = mesh.get_coordinate()
        x, slope, rows = tokens_of(4)
        mine = x.split(rows)[2 * d + e].requires_grad_()
        moe = ExpertParallel(layer(routing), mesh.get_group("experts"))
        tensor = mesh.get_group("tensor")
        cut = [parallel_mlp(*expert, group=tensor) for expert in moe.experts]
        moe.experts = nn.ModuleList(cut)
        y = moe(mine)
        (y * slope.split(rows)[2 * d + e]).sum().backward()
        sum_gradients(moe.router, group=mesh.get_group("experts"))
        sum_gradients(moe.router, group=mesh.get_group("data"))
        sum_gradients(moe.experts, group=mesh.get_group("data"))
        columns = [expert[0].weight.grad for expert in moe.experts]
        return y.detach(), mine.grad, moe.router.weight.grad, columns

    for routing in ("any", "one"):
        moe, (x, slope, rows) = layer(routing), tokens_of(4)
        x.requires_grad_()
        y = moe(x)
        (y * slope).sum().backward()
        run = d2lpar.run(program, routing, world_size=8, backend="sim")
        for r, (mine, dx, router, columns) in enumerate(run.results):
            d, e, t = r // 4, r // 2 % 2, r % 2
            here = slice(sum(rows[: 2 * d + e]), sum(rows[: 2 * d + e + 1]))
            close(mine, y[here])
            close(dx, x.grad[here])
            close(router, moe.router.weight.grad)
            for i, grad in enumerate(columns):
                part = moe.experts[e * E // 2 + i][0].weight.grad[2 * t : 2 * t + 2]
                close(grad[: len(part)], part)


def close(a, b):
    assert a.shape == b.shape
    assert a.numel() == 0 or (a - b).abs().max() <= 1e-10


# Bad input


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: route(torch.zeros(3, 4), 5), "1 to 4 of 4 experts, not 5"),
        (lambda: route(torch.zeros(3, 4), 0), "1 to 4 of 4 experts, not 0"),
        (lambda: route(torch.zeros(4), 1), r"\[N, E\], not torch.float32 \[4\]"),
        (lambda: MoE(2, 2, 4, 2, capacity=0), "A capacity is a number above 0"),
        (lambda: MoE(2, 2, 4, 2, capacity=math.nan), "not nan"),
    ],
)
def test_bad_input_gets_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "x, experts, count, message",
    [
        (torch.zeros(3, 2), torch.zeros(2, 1).long(), 4, "x must be"),
        (torch.zeros(2, 2), torch.full((2, 1), 4), 4, "0 to 3, or -1 for none, not 4"),
        (torch.zeros(2, 2), torch.zeros(2, 1), 4, "not torch.float32"),
        (torch.zeros(2, 2), torch.zeros(2, 1).long(), 3, "cannot share 3 experts"),
    ],
)
def test_bad_tokens_get_a_sentence(x, experts, count, message):
    with pytest.raises(d2lpar.RankError, match=message):
        d2lpar.run(dispatch, x, experts, count, world_size=2, backend="sim")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda moe: NodeExperts(moe, None), "the pair that node_groups"),
        (lambda moe: OverlappedExperts(moe, 0), "at least 1 part, not 0"),
        (lambda moe: ExpertParallel(MoE(2, 2, 3, 1)), "cannot share 3 experts"),
    ],
)
def test_layers_that_cannot_be_made_say_why(make, message):
    with pytest.raises(d2lpar.RankError, match=message):
        d2lpar.run(lambda: make(MoE(2, 2, 4, 2)), world_size=2, backend="sim")


# Published models


@pytest.mark.parametrize(
    "name, total, active, digits",
    [
        ("Mixtral 8x7B", 46.7, 12.9, 1),
        ("DBRX", 132, 36, 0),
        ("OLMoE-1B-7B", 6.9, 1.3, 1),
        ("DeepSeek-V3", 671, 37, 0),
    ],
)
def test_published_models_have_the_printed_parameters(name, total, active, digits):
    model = PUBLISHED[name]
    assert round(model.parameters / 1e9, digits) == total
    assert round(model.active / 1e9, digits) == active


def test_one_expert_is_the_dense_model():
    dense = Model(4, 64, 4, 100, 32, tied=False, gated=True, positions=False)
    same = {f.name: getattr(dense, f.name) for f in fields(Model)}
    sparse = ExpertModel(**same, experts=1, chosen=1)
    assert sparse.parameters == dense.parameters + 4 * 64  # the routers
    assert sparse.bytes_per_token() == 64 * 4


def test_the_planner_refuses_experts():
    """It would count one expert in a layer."""
    model, cluster = PUBLISHED["DeepSeek-V3"], d2lpar.Cluster.of("8xH100")
    for ask in (
        lambda: planning.predict(model, cluster, planning.Plan(data=8), 8),
        lambda: planning.plans(model, cluster, 8),
        lambda: planning.mfu(model, 1.0, 8, 1e15),
        lambda: model.flops(8),
    ):
        with pytest.raises(ValueError, match="this one has 256 experts in a layer"):
            ask()
