"""One function, two worlds: the same results, bytes, messages and output."""

import enum
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar
from d2lpar.sim.randomness import DrawnOnHost, RandomStates

SIZES = [1, 2, 3, 4, 5, 8]
BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])


def mine(*shape, dtype=torch.float64):
    """A tensor that differs from rank to rank; whole numbers, so sums are exact."""
    numbers = torch.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    return numbers + 10 * (dist.get_rank() + 1)


def empty(*shape):
    return torch.empty(shape, dtype=torch.float64)


def complete(works):
    for work in works:
        work.wait()


class Configured:
    """Its attribute has the name of torch.distributed.config, an unusual module."""

    config = 3

    def plus_rank(self):
        return self.config + dist.get_rank()


@BOTH
def test_a_method_may_use_config_beside_dist(backend):
    program = lambda: Configured().plus_rank()
    assert d2lpar.run(program, world_size=2, backend=backend).results == [3, 4]


# messages


def shift():
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return mine(6)
    y = empty(6)
    if r % 2 == 0:
        dist.send(mine(6), (r + 1) % n)
    dist.recv(y, (r - 1) % n)
    if r % 2 == 1:
        dist.send(mine(6), (r + 1) % n)
    print(f"rank {r} has {y[0]:.0f}")
    return y


def line():
    n, r = dist.get_world_size(), dist.get_rank()
    total = mine(2, 3, dtype=torch.int64)
    if r > 0:
        before = torch.empty_like(total)
        assert dist.recv(before, r - 1) == r - 1
        total = total + before
    if r < n - 1:
        dist.send(total, r + 1)
    return total


def nonblocking():
    n, r = dist.get_world_size(), dist.get_rank()
    inbox = [empty(6) for _ in range(n)]
    works = [dist.irecv(inbox[i], i, tag=3) for i in range(n) if i != r]
    works += [dist.isend(mine(6) * (i + 1), i, tag=3) for i in range(n) if i != r]
    complete(works)
    inbox[r] = mine(6) * (r + 1)
    return inbox


def tags():
    r, second, first = dist.get_rank(), torch.empty(1), torch.empty(1)
    if r == 0 and dist.get_world_size() > 1:
        complete([dist.isend(torch.tensor([float(t)]), 1, tag=t) for t in (1, 2)])
    elif r == 1:
        complete([dist.irecv(second, 0, tag=2), dist.irecv(first, 0, tag=1)])
        return first, second


def batched():
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return None
    left, right, back = empty(6), torch.empty(4), torch.full((4,), float(r))
    send, recv = partial(dist.P2POp, dist.isend), partial(dist.P2POp, dist.irecv)
    first = [send(mine(6), (r + 1) % n), recv(left, (r - 1) % n)]
    complete(dist.batch_isend_irecv(first))
    second = [recv(right, (r + 1) % n), send(back, (r - 1) % n)]
    complete(dist.batch_isend_irecv(second))
    return left, right


def any_source():
    n, r = dist.get_world_size(), dist.get_rank()
    if r > 0:
        dist.send(mine(6), 0)
        return None
    inbox = [empty(6) for _ in range(n - 1)]
    seen = [dist.recv(x) for x in inbox]
    return sorted(seen), sum(inbox)


def subgroups():
    n, r = dist.get_world_size(), dist.get_rank()
    even_odd = [dist.new_group([*range(i, n, 2)]) for i in range(min(n, 2))]
    group, x = even_odd[r % 2], mine(6)
    dist.all_reduce(x, group=group)
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) > 1:
        if r == ranks[0]:
            dist.send(x, ranks[-1], group=group)
        elif r == ranks[-1]:
            dist.recv(x, ranks[0], group=group)
    return ranks, dist.get_rank(group), x


MESSAGES = [shift, line, nonblocking, tags, batched, any_source, subgroups]

# collectives


def all_reduce():
    results = [mine(5) for _ in range(5)]
    results += [mine(3, dtype=torch.int64) for _ in range(3)]
    ops = "SUM PRODUCT MIN MAX AVG BAND BOR BXOR".split()
    for x, op in zip(results, ops, strict=True):
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
    dist.all_reduce(y := mine(7, dtype=torch.float32), async_op=True).wait()
    dist.all_reduce_coalesced(together := [mine(3), mine(2, 2)])
    return results, y, together


def rooted():
    n = dist.get_world_size()
    casts, sums = [mine(2, 2) for _ in range(n)], [mine(3) for _ in range(n)]
    for root in range(n):
        dist.broadcast(casts[root], root)
        dist.reduce(sums[root], root)
    return casts, sums[dist.get_rank()]


def all_gather():
    n = dist.get_world_size()
    pieces, whole = [empty(3) for _ in range(n)], empty(3 * n)
    dist.all_gather(pieces, mine(3))
    dist.all_gather_into_tensor(whole, mine(3))
    return pieces, whole


def gather_scatter():
    n, r = dist.get_world_size(), dist.get_rank()
    root, back = n - 1, empty(3)
    pieces = [empty(3) for _ in range(n)] if r == root else None
    dist.gather(mine(3), pieces, dst=root)
    dist.scatter(back, [p + 1 for p in pieces] if r == root else None, src=root)
    return pieces, back


def reduce_scatter():
    n, out, whole = dist.get_world_size(), empty(2), empty(2)
    dist.reduce_scatter(out, [mine(2) * i for i in range(n)])
    dist.reduce_scatter_tensor(whole, mine(2 * n))
    return out, whole


def all_to_all():
    n, r = dist.get_world_size(), dist.get_rank()
    outs, whole, uneven = [empty(2) for _ in range(n)], empty(2 * n), empty((r + 1) * n)
    dist.all_to_all(outs, [mine(2) + 100 * i for i in range(n)])
    dist.all_to_all_single(whole, mine(2 * n))
    rows = [i + 1 for i in range(n)]
    dist.all_to_all_single(uneven, mine(sum(rows)), [r + 1] * n, rows)
    return outs, whole, uneven


def objects():
    n, r = dist.get_world_size(), dist.get_rank()
    every = [None] * n
    dist.all_gather_object(every, {"rank": r})
    box = ["from the root"] if r == 0 else [None]
    dist.broadcast_object_list(box, src=0)
    dist.barrier()
    return every, box


COLLECTIVES = [all_reduce, rooted, all_gather, gather_scatter]
COLLECTIVES += [reduce_scatter, all_to_all, objects]


def program(functions):
    """All of them, one after another, in one run."""
    return [fn() for fn in functions]


def equal(a, b):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    else:
        assert a == b


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("functions", [MESSAGES, COLLECTIVES], ids=["p2p", "coll"])
def test_sim_and_gloo_are_equal(functions, n):
    sim = d2lpar.run(program, functions, world_size=n, backend="sim")
    gloo = d2lpar.run(program, functions, world_size=n, backend="gloo")
    equal(sim.results, gloo.results)
    for name in ("bytes_sent", "messages", "output", "rounds"):
        assert getattr(sim, name) == getattr(gloo, name)
    assert (sim.traffic == gloo.traffic).all()
    assert (sim.clock, gloo.clock) == ("virtual", "measured")


@pytest.mark.parametrize("n", SIZES)
def test_collectives_have_the_values_of_the_serial_truth(n):
    run = d2lpar.run(program, COLLECTIVES, world_size=n, backend="sim")
    tens = 10 * torch.arange(1, n + 1, dtype=torch.float64)[:, None]
    stack = torch.arange(5) + tens  # row r is what rank r has
    three, two = [*stack[:, :3]], stack[:, :2]
    truths = [stack.sum(0), stack.prod(0), stack.min(0).values, stack.max(0).values]
    truths.append(stack.mean(0))
    for rank, results in enumerate(run.results):
        (ops, *_), (casts, reduced), gathered, dealt, scattered, swapped, _ = results
        equal(ops[:5], truths)
        equal([c[0, 0].item() for c in casts], [10.0 * (r + 1) for r in range(n)])
        equal(reduced, stack[:, :3].sum(0))
        equal(gathered[0], three)
        equal(gathered[1], torch.cat(three))
        equal(dealt[1], three[rank] + 1)
        equal(scattered[0], two.sum(0) * rank)
        equal(swapped[0], [*(two + 100 * rank)])


# isolation

counter = {"calls": 0}


def write_everywhere(tensor, numbers):
    counter["calls"] += 1
    tensor += dist.get_rank()
    numbers.append(dist.get_rank())
    return counter["calls"], tensor.clone(), list(numbers)


@BOTH
def test_ranks_share_nothing(backend):
    tensor, numbers = torch.zeros(3), [7]
    for _ in range(2):
        given = write_everywhere, tensor, numbers
        run = d2lpar.run(*given, world_size=3, backend=backend)
        for rank, (calls, after, seen) in enumerate(run.results):
            assert calls == 1
            equal(after, torch.full((3,), float(rank)))
            assert seen == [7, rank]
    equal(tensor, torch.zeros(3))
    assert numbers == [7] and counter == {"calls": 0}


class Tally:
    count = 0
    ranks = []


class Colour(enum.Enum):
    RED = 1


class Complaint(Exception):
    pass


def count_in_a_class(tally):
    r = dist.get_rank()
    Tally.count += r + 1
    Tally.ranks.append(r)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (tally, Colour.RED))
    assert all(type(a) is Tally and b is Colour.RED for a, b in everyone)
    return Tally.count, Tally.ranks, tally, Colour.RED


def complain():
    raise Complaint("about something")


@BOTH
def test_each_rank_has_its_own_classes(backend):
    for _ in range(2):
        run = d2lpar.run(count_in_a_class, Tally(), world_size=3, backend=backend)
        for r, (count, ranks, tally, colour) in enumerate(run.results):
            assert (count, ranks) == (r + 1, [r])
            assert type(tally) is Tally and colour is Colour.RED
    assert (Tally.count, Tally.ranks) == (0, [])
    with pytest.raises(d2lpar.RankError) as failed:
        d2lpar.run(complain, world_size=2, backend=backend)
    assert type(failed.value.__cause__) is Complaint


def one_of_each():
    return [torch.rand(1).item(), np.random.rand(), random.random()]


def seed_all(seed):
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def draw():
    numbers = one_of_each()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        torch.rand(5), np.random.rand(5), random.random()
    dist.all_reduce(torch.ones(1))
    numbers += one_of_each()
    seed_all(3)
    dist.barrier()
    return numbers + one_of_each()


def test_random_numbers_are_the_callers_until_a_rank_begins():
    random.seed(3)
    wanted, usual = random.random(), random.random
    random.seed(3)
    states = RandomStates(2, seed=0)
    with states.kept():
        assert random.random() == wanted
        drawn = []
        for rank in (0, 1, 0):
            states.enter(rank)
            drawn.append(random.random())
    assert drawn[0] == drawn[1] != drawn[2] and random.random == usual


def test_random_numbers_are_each_ranks_own():
    seed_all(5)
    expected = one_of_each()
    seed_all(5)
    sim = d2lpar.run(draw, world_size=3, backend="sim", seed=11)
    gloo = d2lpar.run(draw, world_size=3, backend="gloo", seed=11)
    assert one_of_each() == expected
    assert sim.results == gloo.results
    assert sim.results[0] == sim.results[2] != sim.results[1]
    assert sim.results[0][:3] == sim.results[1][:3]
    assert d2lpar.run(draw, world_size=3, backend="sim", seed=12).results != sim.results


def drawn():
    """What a rank may draw: weights, numbers, places, masks."""
    torch.manual_seed(3)
    nets = nn.Linear(3, 4), nn.Conv2d(1, 2, 3), nn.Embedding(5, 2)
    nets += (nn.MultiheadAttention(4, 2), nn.LSTM(3, 2))
    found = [p.detach() for net in nets for p in net.parameters()]
    found += [torch.rand(2), torch.randn(2, 3, dtype=torch.float64)]
    found += [torch.randint(9, (3,)), torch.randperm(7), torch.empty(3).uniform_(2, 3)]
    given = torch.Generator().manual_seed(1)
    found += [torch.rand(2, generator=given), torch.zeros(3).normal_(generator=given)]
    found += [nn.functional.dropout(torch.ones(9)), nn.Dropout(0.2)(torch.ones(5) * 2)]
    return found


@pytest.mark.parametrize("kind", ["cpu", "meta"])  # in place of a GPU
def test_numbers_for_a_gpu_are_drawn_on_the_host(kind):
    wanted, state = drawn(), torch.get_rng_state()
    torch.manual_seed(9)
    with torch.device(kind), DrawnOnHost(kind):
        found = drawn()
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(found, wanted, strict=True):
        assert a.device.type == kind
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert kind == "meta" or torch.equal(a, b)


def test_gradients_pass_a_mask_that_is_drawn_on_the_host():
    with DrawnOnHost("cpu"):
        x, leaf = torch.ones(9, requires_grad=True), torch.rand(2, requires_grad=True)
        nn.functional.dropout(x, 0.5).sum().backward()
    assert set(x.grad.tolist()) == {0, 2} and leaf.is_leaf and leaf.requires_grad


def read_the_clock(monkeypatch):
    """How often the clock waits for a GPU; here its functions are played."""
    waits = []
    with monkeypatch.context() as m:
        m.setattr(torch.cuda, "is_initialized", lambda: True)
        m.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
        d2lpar.now()
    d2lpar.now()
    return len(waits)


def test_the_clock_waits_for_the_gpu_where_time_is_measured():
    patch = pytest.MonkeyPatch()
    waits = {w: d2lpar.run(read_the_clock, patch, backend=w) for w in ("sim", "gloo")}
    assert waits["sim"].results == [0] * 4 and waits["gloo"].results == [1] * 4


def tied(a, view, module):
    view += 1
    module[0].weight.data += 1
    return a, bool(module[0].weight is module[1].weight), a.sum().item()


@BOTH
def test_views_and_tied_weights_stay_tied(backend):
    a = torch.zeros(4)
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    module[1].weight = module[0].weight
    run = d2lpar.run(tied, a, a[1:3], module, world_size=2, backend=backend)
    for after, same, total in run.results:
        equal(after, torch.tensor([0.0, 1.0, 1.0, 0.0]))
        assert same and total == 2.0
    equal(a, torch.zeros(4))


@BOTH
def test_results_are_detached(backend):
    def detached():
        w = torch.ones(2, requires_grad=True)
        return {"loss": (w * 2).sum(), "w": w}

    for result in d2lpar.run(detached, world_size=2, backend=backend).results:
        assert not result["loss"].requires_grad and not result["w"].requires_grad
        assert result["loss"].item() == 4.0


def starts(how):
    """Begin calls of several kinds; `how` says which of them nobody waits for."""
    r, x = dist.get_rank(), torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    if how != "all_reduce":
        work.wait()
    work = (dist.isend if r == 0 else dist.irecv)(torch.ones(3), 1 - r)
    if how != "isend" or r == 1:
        work.wait()
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()


@BOTH
def test_a_call_that_nobody_waits_for_is_a_warning(backend):
    run = d2lpar.run(starts, "all_reduce", world_size=2, backend=backend)
    [said] = run.warnings
    line = starts.__code__.co_firstlineno + 3
    assert said.startswith("Ranks 0 and 1 never waited for the all_reduce at ")
    assert f"test_worlds.py:{line}" in said and run.unwaited == [said]
    run = d2lpar.run(starts, "nothing", world_size=2, backend=backend)
    assert run.warnings == run.unwaited == []


@BOTH
def test_a_hang_tells_first_of_a_call_that_nobody_waited_for(backend):
    """Gloo may need somebody who waits before it moves bytes."""

    def sends_and_leaves():
        x = torch.ones(3)
        dist.recv(x, 0, tag=7) if dist.get_rank() else dist.isend(x, 1)

    with pytest.raises(d2lpar.DeadlockError) as raised:
        d2lpar.run(sends_and_leaves, world_size=2, backend=backend, timeout=2.0)
    first, second, *_ = str(raised.value).splitlines()
    assert first.startswith("Rank 0 never waited for the isend at ")
    assert "rank 1 still waits for it in recv(src=0)" in second
