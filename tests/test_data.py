"""The digits: real, in a fixed order, the same for every rank."""

import sys
from pathlib import Path

import torch

import d2lpar
from d2lpar.data import digits


def test_shapes_ranges_and_types():
    train, test = digits()
    assert len(train) == 1437 and len(test) == 360
    for part in (train, test):
        assert part.images.shape == (len(part), 1, 8, 8)
        assert part.images.dtype == torch.float32
        assert part.images.min() == 0 and part.images.max() == 1
        assert part.labels.dtype == torch.int64
        assert set(part.labels.tolist()) == set(range(10))
    assert digits(torch.float64)[0].images.dtype == torch.float64


def test_every_digit_is_there_once():
    from sklearn.datasets import load_digits

    ours = torch.cat([part.images for part in digits(torch.float64)]).flatten(1) * 16
    theirs = load_digits().data
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_another_place_of_the_file_changes_nothing(monkeypatch):
    usual = digits()
    monkeypatch.setattr(Path, "exists", lambda path: False)
    for a, b in zip(usual, digits(), strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)


def test_a_process_reads_them_without_importing_scikit_learn():
    def imports():
        return len(digits()[0]), "sklearn" in sys.modules

    run = d2lpar.run(imports, world_size=2, backend="gloo")
    assert run.results == [(1437, False)] * 2


def test_pictures_keep_their_labels():
    """A nearest-neighbour reader, trained on one part, reads the other."""
    train, test = digits()
    apart = torch.cdist(test.images.flatten(1), train.images.flatten(1))
    read = train.labels[apart.argmin(1)]
    assert (read == test.labels).float().mean() > 0.97


def test_the_order_is_the_same_for_every_rank_and_seed():
    def first():
        return digits()[0].labels[:20]

    for seed in (0, 1):
        run = d2lpar.run(first, world_size=2, backend="sim", seed=seed)
        assert all(torch.equal(labels, first()) for labels in run.results)


def test_the_callers_random_numbers_are_untouched():
    torch.manual_seed(3)
    digits()
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
