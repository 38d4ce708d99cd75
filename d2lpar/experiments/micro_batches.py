"""Chapter 07: steps on one GPU, and of replicas on all GPUs."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..data_parallel import shard, train_step
from ..shared.model_zoo import GPT, resnet50
from .measuring import Case, experiment, half


def language_model(width, depth, length, rows):
    """A GPT in 16 bits, tokens [rows, length] and an optimizer."""
    model = GPT(width, depth, width // 128, length, vocabulary=1024)
    model.to(dtype=half())
    tokens = torch.zeros(rows, length, dtype=torch.long)
    return model, tokens, torch.optim.SGD(model.parameters(), lr=0.01)


def token_loss(scores, tokens):
    """The sum of the losses of all tokens."""
    scores, tokens = scores.flatten(0, 1), tokens.flatten()
    return F.cross_entropy(scores, tokens, reduction="sum")


@experiment(small={"width": 128, "length": 8, "rows": 8})
def micro_batches(width=2048, depth=1, length=512, rows=64):
    """A training step of a GPT, whose rows come in one part or in several."""

    def prepare(m):
        model, tokens, optimizer = language_model(width, depth, length, rows)

        def step():
            optimizer.zero_grad()
            for part in tokens.chunk(m):
                loss = token_loss(model(part), part) / rows
                loss.backward()
            optimizer.step()

        return step

    return {f"m = {m}": partial(prepare, m) for m in (1, 2, 4, 8)}


@experiment(small={"rows": 2, "side": 64})
def layouts(rows=64, side=224):
    """Train a ResNet-50 in float32, in 16 bits, and with the channels last."""

    def prepare(dtype, layout):
        model = resnet50().to(dtype=dtype, memory_format=layout)
        x = torch.randn(rows, 3, side, side, dtype=dtype)
        x = x.contiguous(memory_format=layout)
        labels = torch.zeros(rows, dtype=torch.long)

        def step():
            model.zero_grad()
            F.cross_entropy(model(x), labels).backward()

        return step

    usual, last = torch.contiguous_format, torch.channels_last
    return {
        "float32": partial(prepare, torch.float32, usual),
        "16 bits": partial(prepare, half(), usual),
        "16 bits, channels last": partial(prepare, half(), last),
    }


@experiment(small={"width": 128, "length": 8, "rows": 8}, ranks=None)
def replica_steps(width=4096, depth=1, length=512, rows=16):
    """A step with `rows` rows for each rank, ours and PyTorch's."""

    def prepare(make):
        torch.manual_seed(0)
        every = rows * dist.get_world_size()
        model, tokens, optimizer = language_model(width, depth, length, every)
        return make(model, tokens, optimizer)

    def ours(allreduce, model, x, optimizer):
        args = model, token_loss, (x, x), optimizer, allreduce
        return partial(train_step, *args)

    nothing = lambda tensor, group=None: None
    return {
        "every GPU alone": partial(prepare, partial(ours, nothing)),
        "ours": partial(prepare, partial(ours, dist.all_reduce)),
        "DDP": Case(partial(prepare, with_ddp), simulated=False),
    }


def with_ddp(model, tokens, optimizer):
    """The same step by PyTorch's DistributedDataParallel."""
    model, x = nn.parallel.DistributedDataParallel(model), shard(tokens)

    def step():
        optimizer.zero_grad()
        (token_loss(model(x), x) / len(x)).backward()
        optimizer.step()

    return step
