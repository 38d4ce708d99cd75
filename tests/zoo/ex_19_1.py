"""19.1 The odd bit out: odd_bit(x)."""

import torch
import torch.distributed as dist

from zoo import right, wrong


def two_sums(x):
    words = x.view(torch.int32).long()
    return torch.stack([words.sum(), (words * torch.arange(len(x))).sum()])


def gathered(mine):
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [tuple(each.tolist()) for each in every]


def judge(sums, trusted=None):
    usual = trusted or max(sums, key=sums.count)
    for r, each in enumerate(sums):
        if each != usual:
            return r, (each[1] - usual[1]) // (each[0] - usual[0])
    return None


@right
def majority(x):
    return judge(gathered(two_sums(x)))


@right
def median_of_sums(x):
    """No majority: the middle of all sums is a right one."""
    sums = gathered(two_sums(x))
    usual = sorted(sums)[len(sums) // 2]
    odd = [r for r, each in enumerate(sums) if each != usual]
    if not odd:
        return None
    first = sums[odd[0]]
    return torch.tensor([odd[0], (first[1] - usual[1]) // (first[0] - usual[0])])


@wrong("trusts rank 0")
def compares_with_rank_0(x):
    sums = gathered(two_sums(x))
    return judge(sums, sums[0])


@wrong("from one")
def weights_from_one(x):
    words = x.view(torch.int32).long()
    weights = torch.arange(1, len(x) + 1)
    return judge(gathered(torch.stack([words.sum(), (words * weights).sum()])))


@wrong("only the odd")
def keeps_it_to_itself(x):
    found = judge(gathered(two_sums(x)))
    return found if found and found[0] == dist.get_rank() else None


@wrong("other way")
def index_first(x):
    found = judge(gathered(two_sums(x)))
    return found and found[::-1]


@wrong("always one")
def blames_somebody(x):
    return judge(gathered(two_sums(x))) or (0, 0)


@wrong("too many bytes")
def sends_everything(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x.contiguous())
    words = [tuple(each.view(torch.int32).tolist()) for each in every]
    usual = max(words, key=words.count)
    for r, each in enumerate(words):
        for i, (a, b) in enumerate(zip(each, usual, strict=True)):
            if a != b:
                return r, i
    return None


@wrong("wrong")
def adds_floats(x):
    sums = gathered(torch.stack([x.double().sum(), x.double().square().sum()]))
    usual = max(sums, key=sums.count)
    odd = [r for r, each in enumerate(sums) if each != usual]
    return (odd[0], 0) if odd else None
