"""A small training with PyTorch's own DDP, as one writes it for torchrun.

`d2lpar simulate --cluster 4xA100 --timeline pictures/train.png pictures/train.py` runs
it on four simulated GPUs and draws the picture beside it anew.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH, DEPTH = 3, 256, 1024, 6


def main():
    """Train for a few steps on random numbers."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), bucket_cap_mb=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(BATCH, WIDTH, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
