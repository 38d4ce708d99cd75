"""Llama 3.1 8B as torchtitan trains it, with PyTorch's FSDP2: to run or to predict.

    d2lpar simulate --cluster 8xH100 --network 8x400Gb --shapes --alike bench/llama8b.py

Sizes, dtypes and what is computed again are those of torchtitan's published runs
(benchmarks/llama3_h100_202412_torchtitan.md); a number behind it is the batch of a GPU.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils import checkpoint

WIDTH, HEADS, PAIRS, HIDDEN, LAYERS, WORDS = 4096, 32, 8, 14336, 32, 128256
SIZE, TOKENS, STEPS = WIDTH // HEADS, 8192, 3
Linear = partial(nn.Linear, bias=False)


def turned(x, turns):
    """Queries or keys [B, T, heads, SIZE], turned by their positions."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class Block(nn.Module):
    """Attention with fewer heads of keys and values, and a gated MLP."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query, self.out = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
        self.key, self.value = (Linear(WIDTH, PAIRS * SIZE) for _ in range(2))
        self.gate, self.up = Linear(WIDTH, HIDDEN), Linear(WIDTH, HIDDEN)
        self.down = Linear(HIDDEN, WIDTH)

    def forward(self, x, turns):
        y, maps = self.norms[0](x), (self.query, self.key, self.value)
        q, k, v = (each(y).unflatten(-1, (-1, SIZE)) for each in maps)
        q, k = turned(q, turns), turned(k, turns)
        k, v = (y.repeat_interleave(HEADS // PAIRS, dim=2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Scores of all words after every word."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = Linear(WIDTH, WORDS)

    def forward(self, words, turns):
        x = self.table(words)
        for block in self.blocks:
            kept = partial(checkpoint.create_selective_checkpoint_contexts, keeper())
            options = {"use_reentrant": False, "preserve_rng_state": False}
            x = checkpoint.checkpoint(block, x, turns, context_fn=kept, **options)
        return self.head(self.norm(x))


def keeper():
    """Every second product is kept, attention, and what has arrived; no more."""
    products = [0, 0]

    def policy(context, operation, *args, **kwargs):
        keep = "attention" in str(operation) or "c10d" in str(operation)
        if operation is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2
        policies = checkpoint.CheckpointPolicy
        return policies.MUST_SAVE if keep else policies.PREFER_RECOMPUTE

    return policy


def main(batch):
    """Train for some steps on random words."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("meta"):
        model = Llama()
    for part in (*model.blocks, model):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    turns = torch.ones(TOKENS, SIZE // 2, dtype=torch.complex64, device="cuda")
    for _ in range(STEPS):
        words = torch.randint(WORDS, (batch, TOKENS + 1), device="cuda")
        scores = model(words[:, :-1], turns).flatten(0, 1)
        loss = F.cross_entropy(scores.float(), words[:, 1:].flatten())
        del scores  # before the backward pass, so that its memory is free
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2)
