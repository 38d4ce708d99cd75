"""Mistakes that only a GPU shows, and right programs that look like them.

Run as a script, prints a JSON object: {name: the error's text, or None}.
"""

import io
import json
import os
import pickle
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pretended import gpus
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import d2lpar

GPU = "cuda:1"


def x():
    return torch.ones(4, 4, device=GPU, requires_grad=True)


class Masked(nn.Module):
    """Attention with a mask: made where the scores are, or on the host."""

    def __init__(self, **where):
        super().__init__()
        self.where = where

    def forward(self, scores):
        mask = torch.full((4, 4), float("-inf"), **self.where).triu(1)
        return (scores + mask).softmax(-1)


class Scaled(torch.autograd.Function):
    """A backward pass with weights of its own."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, grad):
        return grad @ torch.eye(4)


def draws_with_the_hosts_generator():
    return torch.randn(3, device=GPU, generator=torch.Generator().manual_seed(0))


def writes_to_the_host():
    return torch.zeros(4, 4).add_(x().detach())


def stays_behind():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net[0].to(GPU)
    return net(x())


def times_what_still_runs():
    gpus.HASTY.clear()
    begin = time.perf_counter()
    x() @ x()
    time.perf_counter() - begin
    line = gpus.HASTY[0][1] - times_what_still_runs.__code__.co_firstlineno
    raise RuntimeError(f"a clock was read {line} lines down, {len(gpus.HASTY)} time")


def nccl_on_the_host():
    alone = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1)
    alone.allreduce([x().detach().to("cuda:0")]).wait()
    alone.allreduce([torch.ones(3)])


def nccl_on_anothers_gpu():
    dist.ProcessGroupNCCL(dist.HashStore(), 0, 1).allreduce([x().detach()])


def cuda_after_a_fork():
    x()  # this process has used CUDA
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, told(x).encode())
        os._exit(0)
    os.wait()
    raise RuntimeError(os.read(read, 1000).decode())


WRONG = {
    "a mask of the host": lambda: Masked()(x()),
    "a tensor made in the backward pass": lambda: Scaled.apply(x()).sum().backward(),
    "labels of the host": lambda: F.cross_entropy(x(), torch.zeros(4).long()),
    "a layer that stays behind": stays_behind,
    "two GPUs": lambda: x() @ torch.ones(4, 4, device="cuda:0"),
    "indices of a GPU for the host": lambda: torch.ones(4)[
        torch.ones(4, device=GPU) > 0
    ],
    "numpy of a GPU": lambda: x().detach().numpy(),
    "an array of a GPU": lambda: np.asarray(x().detach()),
    "a GPU too many": lambda: torch.zeros(3, device="cuda:7"),
    "a generator of the host": draws_with_the_hosts_generator,
    "writing to the host": writes_to_the_host,
    "NCCL on the host": nccl_on_the_host,
    "NCCL on another rank's GPU": nccl_on_anothers_gpu,
    "CUDA after a fork": cuda_after_a_fork,
    "a clock without waiting": times_what_still_runs,
}


def trains():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(GPU)
    optimizer = torch.optim.Adam(net.parameters())
    loss = F.cross_entropy(net(x()), torch.zeros(4, device=GPU).long())
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    assert {p.grad.device for p in net.parameters()} == {torch.device(GPU)}


def comes_back():
    file = io.BytesIO()
    torch.save({"x": x()}, file)
    file.seek(0)
    assert torch.load(file)["x"].is_cuda
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].is_cpu
    assert pickle.loads(pickle.dumps(x())).device == torch.device(GPU)


def counts_memory():
    before = torch.cuda.memory_allocated(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    big = torch.zeros(1000, device=GPU)
    assert torch.cuda.memory_allocated(GPU) == before + 4000
    del big
    assert torch.cuda.memory_allocated(GPU) == before
    assert torch.cuda.max_memory_allocated(GPU) == before + 4000


def waits_for_the_gpu():
    gpus.HASTY.clear()
    torch.cuda.synchronize(0)
    begin = time.perf_counter()
    x() @ x()
    torch.cuda.synchronize(1)
    time.perf_counter() - begin
    assert not gpus.HASTY


def computes_for_the_host():
    big = torch.ones(10_000_000)  # larger than what a GPU computes here
    copy = big.to("cpu", copy=True)
    big += 1
    assert copy.eq(1).all() and big.eq(2).all()


def holds_while_it_sends():
    """The most bytes that a rank's GPU holds after any of many sums and messages."""
    sums, most = torch.ones(1000), 0
    for _ in range(30):
        dist.all_reduce(sums.clone(), async_op=True).wait()
        dist.all_reduce(sums.clone())
        ends = [dist.P2POp(dist.isend, sums.clone(), 1 - dist.get_rank())]
        ends += [dist.P2POp(dist.irecv, sums.clone(), 1 - dist.get_rank())]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        del ends, work
        most = max(most, torch.cuda.memory_allocated())
    return most


def frees_what_was_sent():
    run = d2lpar.run(holds_while_it_sends, world_size=2, backend="nccl")
    # Its threads may hold the last messages for a moment; all of them are 480 kB.
    assert max(run.results) < 10 * 4000, run.results


def draws_other_numbers():
    torch.manual_seed(0)
    there = torch.randn(5, device=GPU)
    torch.manual_seed(0)
    here = torch.randn(5)
    assert (there.cpu() != here).all()


RIGHT = {
    "training": trains,
    "files": comes_back,
    "memory": counts_memory,
    "a clock": waits_for_the_gpu,
    "a large tensor of the host": computes_for_the_host,
    "random numbers": draws_other_numbers,
    "memory of messages": frees_what_was_sent,
    "a mask where the scores are": lambda: Masked(device=GPU)(x()),
    "a number of the host": lambda: x() * torch.tensor(2.0),
    "indices of the host": lambda: x()[torch.tensor([0, 1])],
    "a copy between devices": lambda: torch.zeros(4, 4).copy_(x().detach()).numpy(),
    "numpy of a copy": lambda: x().detach().cpu().numpy(),
    "a copy of a collective": lambda: AsyncCollectiveTensor(x().detach()).cpu().numpy(),
}


def told(function):
    """What the error says, or None."""
    for gpu in gpus.all_gpus():
        gpus.wait(gpu)
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    gpus.WATCHED[:] = [__file__]
    found = {name: told(function) for name, function in (WRONG | RIGHT).items()}
    print(json.dumps(found))
