"""Digits and shapes: in a fixed order, the same for every rank."""

import sys
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

import d2lpar
from d2lpar.shared.data import digits, shapes


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


def test_shapes_have_a_disc_and_a_square_on_every_picture():
    images, masks = drawn = shapes(40, 24, noise=0.0)
    assert len(drawn) == 40 and images.shape == (40, 1, 24, 24)
    assert images.dtype == torch.float32 and masks.dtype == torch.int64
    for image, mask in zip(images[:, 0], masks, strict=True):
        assert {0, 2} <= set(mask.unique().tolist()) <= {0, 1, 2}
        assert torch.allclose(image, 0.2 + 0.6 * (mask > 0))  # alike, but for form
        rows, columns = torch.where(mask == 2)
        height, width = (x.max() - x.min() + 1 for x in (rows, columns))
        assert len(rows) == height * width  # a square is full, no disc is in it
    assert (masks == 1).flatten(1).any(1).float().mean() > 0.8


def test_a_disc_is_round():
    masks = shapes(60, 64).masks
    for mask in masks[(masks == 2).flatten(1).sum(1) < 150][:10]:
        rows, columns = torch.where(mask == 1)
        if len(rows) and rows.min() > 0 and rows.max() < 63:
            box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            assert len(rows) < 0.9 * box


def test_shapes_are_the_same_on_every_rank_and_others_for_a_seed():
    run = d2lpar.run(lambda: shapes(3, 16), world_size=2, backend="sim", seed=5)
    for images, masks in run.results:
        assert torch.equal(images, shapes(3, 16).images)
        assert torch.equal(masks, shapes(3, 16).masks)
    assert not torch.equal(shapes(3, 16, seed=1).images, shapes(3, 16).images)
    noisy, plain = shapes(3, 16), shapes(3, 16, noise=0.0)
    assert 0.2 < (noisy.images - plain.images).std() < 0.4
    assert torch.equal(noisy.masks, plain.masks)


class AsOnAGPU(TorchFunctionMode):
    """Where new tensors go to a GPU, a generator of the CPU is refused."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None and kwargs.get("device") is None:
            raise RuntimeError("Expected a 'cuda' device type for generator")
        return func(*args, **kwargs)


def test_a_rank_with_a_gpu_can_draw():
    with AsOnAGPU():
        assert len(digits()[0]) == 1437
        assert len(shapes(2)) == 2


def test_data_are_where_new_tensors_are():
    with torch.device("meta"):
        tensors = [*digits()[1], *shapes(2, 8)]
    assert {x.device.type for x in tensors} == {"meta"}
