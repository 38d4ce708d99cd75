"""What a forward pass keeps, counted; the forms of sharding are in test_sharding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.shared.footprint import kept


def keep(net, x, y):
    return kept(lambda: F.cross_entropy(net(x), y), net.parameters())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("N", [1, 7])
def test_an_mlp_keeps_its_inputs_and_outputs_once(device, N):
    with torch.device(device):
        net = nn.Sequential(nn.Linear(20, 8), nn.Sigmoid(), nn.Linear(8, 5))
        x, y = torch.ones(N, 20), torch.zeros(N, dtype=torch.int64)
        loss, size = keep(net, x, y)
    # the batch, the output of the sigmoid, log-probabilities; labels; one number
    assert size == 4 * N * (20 + 8 + 5) + 8 * N + 4
    assert loss.shape == ()


def test_the_gradients_are_those_without_counting():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.arange(5) % 3
    F.cross_entropy(net(x), y).backward()
    truth = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    keep(net, x, y)[0].backward()
    assert all(map(torch.equal, (p.grad for p in net.parameters()), truth))


def test_parameters_count_unless_they_are_owned():
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(1, 3, requires_grad=True)
    assert kept(lambda: layer(x), layer.parameters())[1] == 4 * 3
    assert kept(lambda: layer(x))[1] == 4 * 3 + 4 * 6


def test_views_of_one_storage_count_once_and_whole():
    x = torch.ones(10, requires_grad=True)
    assert kept(lambda: (x[:3] * x[:3]).sum() + (x[5:] * x[5:]).sum())[1] == 40


def test_nothing_is_kept_without_gradients():
    net = nn.Linear(3, 2)
    with torch.no_grad():
        assert kept(lambda: net(torch.ones(1, 3)))[1] == 0
