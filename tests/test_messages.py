"""`d2lpar.messages`: exchange, ping-pong, and the two numbers of a link."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import d2lpar
from d2lpar.messages import exchange, fit_alpha_beta, ping_pong

RANKS = (2, 3, 4, 5, 8)
WORLDS = ("sim", "gloo")


def values(r, size, dtype):
    """What rank r holds: other numbers on every rank."""
    return (100 * r + torch.arange(size)).to(dtype)


def shifted(size, dtype, k=1):
    """Every rank's tensor after it went k ranks to the right."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine = values(r, size, dtype)
    before, incoming = mine.clone(), torch.empty_like(mine)
    exchange(mine, (r + k) % n, incoming, (r - k) % n)
    assert torch.equal(mine, before)
    return incoming


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", RANKS)
def test_a_ring_of_exchanges_is_a_roll_in_one_round(n, world):
    size, dtype = 7, torch.float64
    run = d2lpar.run(shifted, size, dtype, world_size=n, backend=world)
    whole = torch.stack([values(r, size, dtype) for r in range(n)])
    assert torch.equal(torch.stack(run.results), whole.roll(1, dims=0))
    assert run.rounds == 1
    assert run.messages == [1] * n
    assert run.bytes_sent == [size * 8] * n
    assert run.warnings == []


@pytest.mark.parametrize("size", [0, 1, 3, 1001])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.int64])
def test_exchange_keeps_every_size_and_dtype(size, dtype):
    run = d2lpar.run(shifted, size, dtype, 2, world_size=5, backend="sim")
    for r, incoming in enumerate(run.results):
        assert incoming.dtype == dtype
        assert torch.equal(incoming, values((r - 2) % 5, size, dtype))


def in_a_group(members):
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return None
    n, r = dist.get_world_size(group), dist.get_rank(group)
    incoming = torch.zeros(1)
    mine = torch.ones(1) * dist.get_rank()
    exchange(mine, (r + 1) % n, incoming, (r - 1) % n, group)
    return incoming.item()


@pytest.mark.parametrize("world", WORLDS)
def test_exchange_counts_in_ranks_of_the_group(world):
    run = d2lpar.run(in_a_group, [1, 2, 4], world_size=5, backend=world)
    assert run.results == [None, 4, 1, None, 2]


def left_alone():
    incoming = torch.zeros(1)
    if dist.get_rank() < 2:
        exchange(torch.ones(1), 2, incoming, 2)


def test_exchange_with_a_rank_that_does_not_is_named():
    with pytest.raises(d2lpar.DeadlockError, match="rank 2") as caught:
        d2lpar.run(left_alone, world_size=3, backend="sim")
    assert "d2lpar/messages.py" not in str(caught.value)
    assert caught.value.run.results == [None, None, None]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_ping_pong_is_exact_on_an_ideal_cluster(n):
    cluster = d2lpar.Cluster.ideal(n, alpha=7e-6, beta=3e-9)
    sizes = [1, 13, 1000, 77_777]
    run = d2lpar.run(ping_pong, sizes, 3, world_size=n, backend="sim", cluster=cluster)
    expected = [7e-6 + 3e-9 * size for size in sizes]
    np.testing.assert_allclose(run.results[0], expected, rtol=1e-9)
    assert run.results[1:] == [None] * (n - 1)
    assert run.messages == [16, 16] + [0] * (n - 2)
    assert run.bytes_sent[0] == 4 * sum(sizes)


def test_ping_pong_of_one_rank_has_nobody_to_play_with():
    with pytest.raises(d2lpar.RankError):
        d2lpar.run(ping_pong, [8], world_size=1, backend="sim")


def test_ping_pong_measures_processes():
    run = d2lpar.run(ping_pong, [8, 3001], 3, world_size=3, backend="gloo")
    assert len(run.results[0]) == 2
    assert all(0 < seconds < 10 for seconds in run.results[0])
    assert run.results[1:] == [None, None]
    assert run.messages == [8, 8, 0]
    assert run.bytes_sent == [4 * 3009, 4 * 3009, 0]


@given(
    alpha=st.floats(1e-7, 1e-2),
    beta=st.floats(1e-12, 1e-7),
    sizes=st.lists(st.integers(1, 10**9), min_size=2, max_size=9, unique=True),
)
def test_fit_returns_what_made_the_times(alpha, beta, sizes):
    seconds = [alpha + beta * size for size in sizes]
    a, b = fit_alpha_beta(sizes, seconds)
    found = a + b * np.array(sizes)
    np.testing.assert_allclose(found, seconds, rtol=1e-6)


def test_fit_is_exact_where_both_numbers_matter():
    sizes = [10, 1000, 100_000, 10_000_000]
    a, b = fit_alpha_beta(sizes, [2e-5 + 4e-10 * size for size in sizes])
    np.testing.assert_allclose([a, b], [2e-5, 4e-10], rtol=1e-9)


def test_noise_on_the_largest_message_does_not_drown_alpha():
    alpha, beta = 2e-5, 1e-10
    sizes = [100, 1000, 10_000, 10_000_000, 100_000_000]
    seconds = [alpha + beta * size for size in sizes]
    seconds[-1] *= 1.05
    a, b = fit_alpha_beta(sizes, seconds)
    assert abs(a / alpha - 1) < 0.01
    assert abs(b / beta - 1) < 0.05
    plain = np.polyfit(sizes, seconds, 1)[1]
    assert abs(plain / alpha - 1) > 0.5


@pytest.mark.parametrize("sizes", [[], [8], [8, 8, 8]])
def test_fit_needs_two_sizes(sizes):
    with pytest.raises(ValueError, match="two sizes"):
        fit_alpha_beta(sizes, [1e-5] * len(sizes))
