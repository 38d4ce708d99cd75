"""Data without downloads: handwritten digits, and pictures of shapes."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch


class Examples(NamedTuple):
    """Pictures and what they show.

    images    [N, 1, 8, 8], from 0 (paper) to 1 (ink)
    labels    [N], the digit 0 to 9 as an integer
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self):
        """The number of examples, not of fields."""
        return len(self.labels)


def digits(dtype=torch.float32):
    """(train, test): 1,437 and 360 real digits, in one fixed random order.

    Every call and every rank has the same.  Source: Alpaydin and Kaynak 1998,
    the test part of the UCI set, as scikit-learn ships it.
    """
    pixels, labels = _table()
    with torch.device("cpu"):  # so that a GPU has the same order
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        images = torch.tensor(pixels / 16, dtype=dtype).view(-1, 1, 8, 8)[order]
        labels = torch.tensor(labels, dtype=torch.int64)[order]
    images, labels = _placed(images, labels)
    return Examples(images[:1437], labels[:1437]), Examples(
        images[1437:], labels[1437:]
    )


def _placed(*tensors):
    """The tensors, where new ones would be."""
    return [tensor.to(torch.get_default_device()) for tensor in tensors]


def _table():
    """(pixels, labels) as scikit-learn gives them.

    From its file where that is where it always was: every rank process would wait
    for the import of the whole of scikit-learn, which is longer than most runs.
    """
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    file = package / "datasets" / "data" / "digits.csv.gz"
    if not file.exists():
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]


class Segments(NamedTuple):
    """Pictures, and for each pixel what it shows.

    images    [N, 1, S, S], about 0 to 1, with noise
    masks     [N, S, S], 0 for the ground, 1 for a disc, 2 for a square
    """

    images: torch.Tensor
    masks: torch.Tensor

    def __len__(self):
        """The number of pictures, not of fields."""
        return len(self.masks)


def shapes(N, S=32, seed=0, noise=0.3, dtype=torch.float32):
    """N noisy pictures of S x S pixels, each with a disc and a square.

    Both are equally bright, so a pixel alone does not tell them apart.  The square
    may cover the disc.  Every call and every rank has the same for a seed.
    """
    with torch.device("cpu"):  # so that a GPU has the same
        images, masks = _drawn(N, S, torch.Generator().manual_seed(seed), noise)
    return Segments(*_placed(images[:, None].to(dtype), masks))


def _drawn(N, S, made, noise):
    rows, columns = torch.meshgrid(torch.arange(S), torch.arange(S), indexing="ij")
    masks = torch.zeros(N, S, S, dtype=torch.int64)
    places = 0.2 + 0.6 * torch.rand(N, 2, 2, generator=made)  # parts of S
    sizes = 0.1 + 0.12 * torch.rand(N, 2, generator=made)
    for mask, ((y, x), (v, u)), (radius, half) in zip(
        masks, S * places, S * sizes, strict=True
    ):
        mask[(rows - y) ** 2 + (columns - x) ** 2 <= radius**2] = 1
        mask[((rows - v).abs() <= half) & ((columns - u).abs() <= half)] = 2
    images = 0.2 + 0.6 * (masks > 0) + noise * torch.randn(N, S, S, generator=made)
    return images, masks
