"""Data without downloads: the handwritten digits that scikit-learn carries."""

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
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels / 16, dtype=dtype).view(-1, 1, 8, 8)[order]
    labels = torch.tensor(labels, dtype=torch.int64)[order]
    return Examples(images[:1437], labels[:1437]), Examples(
        images[1437:], labels[1437:]
    )


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
