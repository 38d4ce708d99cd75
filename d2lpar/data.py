"""Data without downloads: the handwritten digits that scikit-learn carries."""

from typing import NamedTuple

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
    from sklearn.datasets import load_digits  # only those who need it wait for it

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels / 16, dtype=dtype).view(-1, 1, 8, 8)[order]
    labels = torch.tensor(labels, dtype=torch.int64)[order]
    return Examples(images[:1437], labels[:1437]), Examples(
        images[1437:], labels[1437:]
    )
