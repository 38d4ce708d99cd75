"""What exercises of chapter 13 share."""

import torch
from torch import nn

from ...launch.run import sleep


class Layer(nn.Module):
    """tanh of a linear layer; on a rank its F and its B take these seconds."""

    def __init__(self, weight, bias, seconds=(0.0, 0.0)):
        super().__init__()
        self.linear, self.seconds = nn.Linear(*weight.shape).double(), seconds
        self.linear.weight.data, self.linear.bias.data = weight, bias

    def forward(self, x):
        forward, backward = self.seconds
        sleep(forward)
        out = torch.tanh(self.linear(x))
        if out.requires_grad:
            out.register_hook(lambda gradient: sleep(backward))
        return out
