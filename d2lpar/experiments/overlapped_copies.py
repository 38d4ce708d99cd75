"""Chapter 08: copies beside a backward pass, and data parallel steps on all GPUs."""

from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..overlap import BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP, Replica
from .measuring import Case, experiment, half


@experiment(small={"width": 64, "rows": 8})
def copied_beside(width=4096, rows=8192, layers=6, times=16):
    """A step on one GPU, whose gradients are copied after it or beside it."""
    inside = lambda gpus: times * 4 * width**2 / gpus.gpu.memory_rate
    outward = lambda gpus: 2 * width**2 / gpus.host_rate  # seconds of a layer
    often = partial(on_the_gpu, times)

    def prepare(copier, beside):
        x = torch.randn(rows, width, dtype=half(), requires_grad=True)
        return with_copies(square_layers(layers, width), x, copier, beside)

    def case(copier, seconds, beside=False):
        def predict(gpus):
            f = gpus.compute_seconds(0, 2 * rows * width**2, 0, half())
            return copied_seconds(layers, f, seconds(gpus), beside)

        return Case(partial(prepare, copier, beside), predict)

    return {
        "no copies": case(lambda p: int, lambda gpus: 0.0),
        "on the GPU, after": case(often, inside),
        "on the GPU, beside": case(often, inside, beside=True),
        "to the host, after": case(to_the_host, outward),
        "to the host, beside": case(to_the_host, outward, beside=True),
    }


def square_layers(count, width, bias=False):
    """Return so many layers of width by width in a row, in 16 bits."""
    like = {"bias": bias, "dtype": half()}
    layers = [nn.Linear(width, width, **like) for _ in range(count)]
    return nn.Sequential(*layers)


def copied_seconds(layers, f, c, beside):
    """Return the closed form: f forward, 2 f backward, c for the copies."""
    together = max(layers * 2 * f + c, 2 * f + layers * c)
    return layers * f + (together if beside else layers * (2 * f + c))


def on_the_gpu(times, p):
    """Return a function that copies the gradient of p on its GPU, so often."""
    there = torch.empty_like(p)
    return lambda: [there.copy_(p.grad) for _ in range(times)]


def to_the_host(p):
    """Return a function that copies the gradient of p to pinned memory."""
    there = torch.empty(p.shape, dtype=p.dtype, device="cpu", pin_memory=True)
    return lambda: there.copy_(p.grad, non_blocking=True)


def with_copies(model, x, copier, beside):
    """Return a step: forward, backward, and copies on a second stream."""
    side = torch.cuda.Stream()
    copies = {p: copier(p) for p in model.parameters()}

    def send(p):
        side.wait_stream(torch.cuda.current_stream())  # p.grad is complete
        with torch.cuda.stream(side):
            copies[p]()

    for p in copies if beside else ():
        p.register_post_accumulate_grad_hook(send)

    def step():
        model.zero_grad()
        model(x).sum().backward()
        for p in () if beside else copies:
            send(p)
        torch.cuda.current_stream().wait_stream(side)  # as work.wait() does

    return step


@experiment(small={"width": 32, "rows": 4, "layers": 2}, ranks=None)
def gradients_averaged(width=4096, rows=2048, layers=8):
    """A step of data parallel training, by how the gradients are sent."""

    def prepare(wrap):
        torch.manual_seed(0)
        ddp = wrap(square_layers(layers, width, bias=True))
        x = torch.randn(rows, width, dtype=half())

        def step():
            ddp.zero_grad()
            ddp(x).sum().backward()
            if isinstance(ddp, Replica):
                ddp.finish()

        return step

    kinds = {"nothing sent": lambda model: model, "naive": NaiveDDP}
    kinds |= {"flat": FlatDDP, "bucketed": BucketedDDP}
    kinds |= {"overlapped": OverlappedDDP}
    cases = {name: partial(prepare, wrap) for name, wrap in kinds.items()}
    torchs = partial(DistributedDataParallel, gradient_as_bucket_view=True)
    return cases | {"torch's": Case(partial(prepare, torchs), simulated=False)}
