"""The nets that the course counts: AlexNet, VGG-16, ResNet-50 and GPT.

They are made of `torch.nn` alone, so that every parameter can be found in this file.
Built under `torch.device("meta")` they have shapes but no memory, so that a laptop can
hold a net of 175 billion parameters.  Letters: N batch, T positions in a sequence, D
width, H and W height and width of an image.
"""

import torch
from torch import nn


def alexnet(classes=1000, towers=1):
    """Build AlexNet for images [N, 3, 227, 227], as one tower or as two.

    The net of 2012 had two towers, one on each GPU: in three convolutions a
    channel sees only the channels of its own tower.  Local response
    normalisation has no parameters and is left out.  Krizhevsky et al. 2012,
    section 3.5.
    """
    return nn.Sequential(
        *[nn.Conv2d(3, 96, 11, stride=4), nn.ReLU(), nn.MaxPool2d(3, 2)],
        *[nn.Conv2d(96, 256, 5, padding=2, groups=towers), nn.ReLU()],
        nn.MaxPool2d(3, 2),  # [N, 256, 13, 13]
        *[nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()],
        *[nn.Conv2d(384, 384, 3, padding=1, groups=towers), nn.ReLU()],
        *[nn.Conv2d(384, 256, 3, padding=1, groups=towers), nn.ReLU()],
        *[nn.MaxPool2d(3, 2), nn.Flatten()],  # [N, 256 * 6 * 6]
        *[nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU()],
        *[nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()],
        nn.Linear(4096, classes),
    )


def vgg16(classes=1000):
    """Build VGG-16 for images [N, 3, 224, 224]: 13 convolutions, 3 dense.

    Simonyan and Zisserman 2015, table 1, column D.
    """
    layers, before = [], 3
    for width, depth in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers += [nn.MaxPool2d(2)]  # half as high, half as wide
    return nn.Sequential(
        *[*layers, nn.Flatten()],  # [N, 512 * 7 * 7]
        *[nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout()],
        *[nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()],
        nn.Linear(4096, classes),
    )


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, whose result is added to their input.

    The 3x3 has `width` channels and the stride; the output has 4 * `width`
    channels.  He et al. 2016, figure 5.
    """

    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            *[nn.BatchNorm2d(width), nn.ReLU()],
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *[nn.BatchNorm2d(width), nn.ReLU()],
            *[nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)],
        )
        self.short = nn.Sequential()  # the input as it is, where shapes agree
        if before != after:
            self.short.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(after))

    def forward(self, x):
        """Map [N, before, H, W] to [N, 4 width, H/stride, W/stride]."""
        return (self.main(x) + self.short(x)).relu()


def resnet50(classes=1000):
    """Build ResNet-50 for images [N, 3, 224, 224], with 16 bottlenecks.

    He et al. 2016, table 1.
    """
    layers = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)]
    layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, depth in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        for block in range(depth):
            stride = 2 if block == 0 and width > 64 else 1
            layers.append(Bottleneck(before, width, stride))
            before = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes)]
    return nn.Sequential(*layers)


def attention(q, k, v):
    """Average v over this and all earlier positions, weighted by scores.

    All tensors are [N, heads, T, size].  The scores of all pairs of positions
    are written out, [N, heads, T, T].  Vaswani et al. 2017, section 3.2.
    """
    T, size = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / size**0.5  # [N, heads, T, T]
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


class Block(nn.Module):
    """Attention, then an MLP four times as wide; each is added to its input.

    Radford et al. 2019, section 2.3.
    """

    def __init__(self, D, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.heads = heads
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        wide, back = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.mlp = nn.Sequential(wide, nn.GELU(), back)

    def attend(self, x):  # [N, T, D]
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        y = attention(*qkv.permute(2, 0, 3, 1, 4))  # [N, heads, T, D/heads]
        return self.out(y.transpose(1, 2).flatten(2))  # [N, T, D]

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder in the shape of GPT-2 and GPT-3.

    The table of token embeddings also makes the scores: one matrix is used
    twice.  Every second layer of GPT-3 has sparse attention, here all layers
    are dense, which changes no parameter.  Radford et al. 2019; Brown et al.
    2020, table 2.1.
    """

    def __init__(self, D, depth, heads, context=2048, vocabulary=50257):
        super().__init__()
        self.token = nn.Embedding(vocabulary, D)
        self.position = nn.Embedding(context, D)
        self.blocks = nn.Sequential(*[Block(D, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(D)

    def forward(self, tokens):
        """Map tokens [N, T], integers, to scores [N, T, vocabulary]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)  # [N, T, D]
        return self.norm(self.blocks(x)) @ self.token.weight.T
