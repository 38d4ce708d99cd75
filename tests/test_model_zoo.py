"""The nets of chapter 02 against published counts, shapes and torch's own parts."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.shared.model_zoo import GPT, Block, Bottleneck, alexnet, resnet50, vgg16


def count(net):
    return sum(p.numel() for p in net.parameters())


def on_meta(build, *args, **kwargs):
    with torch.device("meta"):
        return build(*args, **kwargs)


# Published: Krizhevsky et al. 2012 say 60 million for two towers; torchvision's tables
# give the others to the unit, and 1.56 billion is Hugging Face's gpt2-xl.
COUNTS = [
    (partial(alexnet), 62_378_344),
    (partial(alexnet, towers=2), 60_965_224),
    (partial(vgg16), 138_357_544),
    (partial(resnet50), 25_557_032),
    (partial(GPT, 768, 12, 12, context=1024), 124_439_808),
    (partial(GPT, 1600, 48, 25, context=1024), 1_557_611_200),
]


@pytest.mark.parametrize("build, published", COUNTS, ids=[c for _, c in COUNTS])
def test_parameters_are_counted_to_the_unit(build, published):
    assert count(on_meta(build)) == published


@pytest.mark.parametrize("build", [alexnet, vgg16, resnet50])
def test_the_number_of_classes_changes_the_last_layer_only(build):
    ten, thousand = on_meta(build, 10), on_meta(build)
    each = thousand[-1].in_features + 1
    assert count(thousand) - count(ten) == 990 * each
    side = 227 if build is alexnet else 224
    x = torch.empty(2, 3, side, side, device="meta")
    assert ten(x).shape == (2, 10)


def test_heights_are_those_of_the_papers():
    x = torch.empty(1, 3, 224, 224, device="meta")
    heights = {resnet50: (112, 56, 28, 14, 7), vgg16: (224, 112, 56, 28, 14, 7)}
    for build, wanted in heights.items():
        y, seen = x, []
        for layer in on_meta(build):
            y = layer(y)
            if y.dim() == 4 and y.shape[-1] > 1 and y.shape[-1] not in seen:
                seen.append(y.shape[-1])
        assert tuple(seen) == wanted


def test_nets_have_their_depth():
    weighted = nn.Conv2d | nn.Linear

    def depth(net):
        layers = [m for m in net.modules() if isinstance(m, weighted)]
        shortcuts = [m for m in net.modules() if isinstance(m, Bottleneck)]
        return len(layers) - sum(len(m.short) > 0 for m in shortcuts)

    assert depth(on_meta(resnet50)) == 50
    assert depth(on_meta(vgg16)) == 16
    assert depth(on_meta(alexnet)) == 8


def test_a_bottleneck_adds_its_input():
    block = Bottleneck(16, 4, stride=1).double().eval()
    for p in block.main[-1].parameters():
        nn.init.zeros_(p)
    x = torch.randn(2, 16, 5, 5, dtype=torch.float64)
    assert len(block.short) == 0
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize("N, T, D, heads", [(1, 1, 8, 2), (2, 5, 12, 3), (3, 7, 8, 1)])
def test_attention_equals_torchs(N, T, D, heads):
    block = Block(D, heads).double()
    x = torch.randn(N, T, D, dtype=torch.float64, requires_grad=True)

    def theirs(x):
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in block.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return block.out(y.transpose(1, 2).flatten(2))

    wanted = [x, *block.qkv.parameters(), *block.out.parameters()]
    ours = torch.autograd.grad(block.attend(x).square().sum(), wanted)
    truth = torch.autograd.grad(theirs(x).square().sum(), wanted)
    assert (block.attend(x) - theirs(x)).abs().max() < 1e-12
    for a, b in zip(ours, truth, strict=True):
        assert (a - b).abs().max() < 1e-10


def test_a_gpt_does_not_see_later_positions_and_ties_its_table():
    torch.manual_seed(0)
    net = GPT(16, depth=2, heads=4, context=8, vocabulary=11)
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (tokens[:, 5:] + 1) % 11
    before, after = net(tokens), net(changed)
    assert before.shape == (2, 8, 11)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5], after[:, 5])
    assert [n for n, p in net.named_parameters() if p.shape == (11, 16)] == [
        "token.weight"
    ]
