"""Chapter 02: a training step with numbers of four bytes, and of two."""

from functools import partial

import torch
import torch.nn.functional as F

from ..shared.model_zoo import GPT
from .measuring import Case, experiment, half


@experiment(small={"N": 2, "T": 8, "D": 32, "depth": 1, "V": 50})
def steps_by_type(N=8, T=512, D=1024, depth=6, V=50257):
    """A step of a GPT with Adam: in float32, ours and PyTorch's."""

    def prepare(make, dtype):
        net, tokens = GPT(D, depth, 16, T, V), torch.randint(V, (N, T))

        def loss():
            scores = net(tokens).flatten(0, 1)  # [N T, vocabulary]
            return F.cross_entropy(scores.float(), tokens.flatten())

        return make(net, loss, dtype)

    modern = half() == torch.bfloat16  # a GPU of 2020 or later
    cases = {"float32": partial(prepare, master_step, torch.float32)}
    for dtype in [torch.bfloat16] * modern + [torch.float16]:
        name, theirs = str(dtype)[6:], partial(prepare, autocast_step, dtype)
        cases[f"{name}, copies"] = partial(prepare, master_step, dtype)
        cases[f"{name}, autocast"] = Case(theirs, simulated=False)
    return cases


def master_step(net, loss, dtype, factor=1024):
    """Return a step of `net` in this type, with master copies in float32."""
    own = [p.detach().clone() for p in net.parameters()]
    own = own if dtype != torch.float32 else list(net.parameters())
    net.to(dtype)
    adam = torch.optim.Adam(own, lr=1e-5)

    def step():
        net.zero_grad()
        (factor * loss()).backward()
        for mine, p in zip(own, net.parameters(), strict=True):
            mine.grad = p.grad.to(mine.dtype).div_(factor)
        adam.step()
        with torch.no_grad():
            for mine, p in zip(own, net.parameters(), strict=True):
                p.copy_(mine)  # rounds

    return step


def autocast_step(net, loss, dtype):
    """Return the same step as PyTorch has it, with a scaler for float16."""
    device = next(net.parameters()).device.type
    adam = torch.optim.Adam(net.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    def step():
        adam.zero_grad()
        with torch.autocast(device, dtype):
            C = loss()
        scaler.scale(C).backward()
        scaler.step(adam)
        scaler.update()

    return step
