"""`d2lpar.allreduce.costs`: the closed forms, against numbers worked out by hand."""

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from d2lpar.allreduce import costs
from d2lpar.allreduce.costs import Cost, chunk_sizes, hierarchical_cost, lower_bound

FORMS = {
    name.removesuffix("_cost"): form
    for name, form in vars(costs).items()
    if name.endswith("_cost") and name != "hierarchical_cost"
}
SIZES = st.integers(0, 10_000)
RANKS = st.integers(1, 70)

# (algorithm, elements, ranks): rounds, messages, busiest and path in bytes.
# 1000 over 4: chunks of 250.  1003 over 5: 201 201 201 200 200, and over 4: 251 251
# 251 250.
BY_HAND = {
    ("naive", 1000, 4): (6, 6, 12_000, 24_000),
    ("tree", 1000, 4): (4, 6, 8_000, 16_000),
    ("direct", 1000, 4): (3, 12, 12_000, 12_000),
    ("ring", 1000, 4): (6, 24, 6_000, 6_000),
    ("segmented_ring", 1000, 4): (6, 24, 6_000, 6_000),
    ("recursive_doubling", 1000, 4): (2, 8, 8_000, 8_000),
    ("halving_doubling", 1000, 4): (4, 16, 6_000, 6_000),
    ("naive", 1003, 5): (8, 8, 16_048, 32_096),
    ("tree", 1003, 5): (6, 8, 12_036, 24_072),
    ("direct", 1003, 5): (4, 20, 16_048, 16_048),
    ("ring", 1003, 5): (8, 40, 6_424, 6_432),
    ("recursive_doubling", 1003, 5): (4, 10, 12_036, 16_048),
    ("halving_doubling", 1003, 5): (6, 18, 10_032, 14_048),
    ("ring", 3, 2): (2, 4, 12, 16),
    ("ring", 1, 8): (14, 112, 8, 56),
    ("halving_doubling", 3, 8): (6, 48, 32, 48),
    ("recursive_doubling", 2, 3): (3, 4, 16, 24),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_forms_have_the_numbers_worked_out_by_hand(case):
    name, elements, n = case
    assert FORMS[name](elements, n) == BY_HAND[case]


def test_every_form_is_worked_out_once():
    assert {name for name, *_ in BY_HAND} == set(FORMS)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("elements", [0, 1, 1000])
def test_one_rank_sends_nothing(name, elements):
    assert FORMS[name](elements, 1) == (0, 0, 0, 0)


@given(elements=SIZES, n=RANKS)
def test_chunks_are_those_of_tensor_split(elements, n):
    parts = torch.empty(elements).tensor_split(n)
    assert chunk_sizes(elements, n) == [len(part) for part in parts]


@given(elements=SIZES, n=RANKS, itemsize=st.sampled_from([1, 2, 4, 8]))
def test_nothing_is_below_the_lower_bound(elements, n, itemsize):
    rounds, busiest = lower_bound(elements, n, itemsize)
    for form in FORMS.values():
        cost = form(elements, n, itemsize)
        assert cost.rounds >= rounds
        assert cost.busiest >= busiest


@given(elements=SIZES, n=RANKS)
def test_bytes_grow_with_the_itemsize_and_nothing_else_does(elements, n):
    for form in FORMS.values():
        one, eight = form(elements, n, 1), form(elements, n, 8)
        assert eight == (*one[:2], 8 * one.busiest, 8 * one.path)


@given(chunk=st.integers(1, 1000), n=RANKS)
def test_the_ring_meets_the_bound_on_bytes_where_n_divides(chunk, n):
    cost = FORMS["ring"](chunk * n, n)
    assert cost.busiest == lower_bound(chunk * n, n)[1] == 2 * (n - 1) * chunk * 4
    assert cost.path == cost.busiest


@given(k=st.integers(1, 6), chunk=st.integers(1, 1000))
def test_doubling_meets_the_bounds_at_powers_of_two(k, chunk):
    n, elements = 2**k, 2**k * chunk
    rounds, busiest = lower_bound(elements, n)
    assert FORMS["recursive_doubling"](elements, n).rounds == rounds == k
    assert FORMS["halving_doubling"](elements, n).busiest == busiest


@pytest.mark.parametrize(("n", "rounds"), [(1, 0), (2, 1), (3, 2), (5, 3), (1024, 10)])
def test_terms_come_together_in_a_logarithm_of_rounds(n, rounds):
    assert lower_bound(1, n)[0] == rounds


def test_seconds_are_alpha_per_round_and_beta_per_byte():
    assert Cost(6, 24, 6000, 6000).seconds(1e-5, 1e-9) == pytest.approx(66e-6)
    assert Cost(6, 24, 5000, 7000).seconds(0, 1e-9) == pytest.approx(7e-6)


@pytest.mark.parametrize(
    ("segment", "rounds"), [(1, 3 * 251), (249, 9), (250, 6), (251, 6)]
)
def test_pieces_of_the_segmented_ring(segment, rounds):
    cost = FORMS["segmented_ring"](1000, 4, 4, segment)
    assert cost == (rounds, 4 * rounds, 6000, 6000)


def test_hierarchy_by_hand():
    # 8 ranks, 2 nodes of 4; 1001 elements: own chunks 251 250 250 250
    inside, between = hierarchical_cost(1001, 4, 2)
    assert inside == (6, 8 * 6, (2 * 1001 - 500) * 4, 6 * 251 * 4)
    # a ring of two ranks: 251 in 126 and 125, so 251 go out in two messages
    assert between == (2, 4 * 2 * 2, 251 * 4, 2 * 126 * 4)


@pytest.mark.parametrize("elements", [0, 1, 7, 1003])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_hierarchy_of_one_level_is_a_ring(elements, n):
    ring = FORMS["ring"](elements, n)
    inside, between = hierarchical_cost(elements, n, 1)
    assert (inside, between) == (ring, (0, 0, 0, 0))
    inside, between = hierarchical_cost(elements, 1, n)
    assert (inside, between) == ((0, 0, 0, 0), ring)


def test_costs_need_no_torch():
    tree = ast.parse(Path(costs.__file__).read_text(encoding="utf-8"))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert [n.module for n in nodes if isinstance(n, ast.ImportFrom)] == ["typing"]
    assert [n for n in nodes if isinstance(n, ast.Import)] == []
