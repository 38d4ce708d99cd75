"""13.3 One weight on two stages: train(schedule, stage, batches, lr, limit)."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import naive_allreduce, ring_allreduce
from d2lpar.messages import exchange
from d2lpar.pipeline import Pipeline
from zoo import right, wrong


def loss_of(out, y):
    return (out - y).square().sum()


def trained(schedule, stage, batches, lr, limit, add_up, norm_of):
    pipeline, params = Pipeline(schedule, [stage], loss_of), list(stage.parameters())
    for x, y in batches:
        stage.zero_grad()
        pipeline.step(x, y)
        add_up(stage)
        scale = min(1.0, limit / norm_of(stage).item())
        for p in params:
            p.data -= lr * scale * p.grad
    return [p.detach() for p in params]


def both_ends(stage):
    """Each end has the sum."""
    n, r = dist.get_world_size(), dist.get_rank()
    if n > 1 and r in (0, n - 1):
        other = torch.empty_like(stage.w.grad)
        exchange(stage.w.grad, n - 1 - r, other, n - 1 - r)
        stage.w.grad += other


def own(stage):
    return sum(p.grad.square().sum() for p in stage.parameters()).view(1)


def of_all(stage, allreduce=ring_allreduce, once=True):
    n, r = dist.get_world_size(), dist.get_rank()
    square = own(stage)
    if once and 0 < r == n - 1:
        square = square - stage.w.grad.square().sum()
    allreduce(square)
    return square.sqrt()


@right
def exchanged_between_the_ends(*given):
    return trained(*given, both_ends, of_all)


@right
def added_up_on_the_last_rank(*given):
    """There and back: the last rank adds, the first one gets its bits."""

    def add_up(stage):
        n, r = dist.get_world_size(), dist.get_rank()
        if n > 1 and r == 0:
            dist.send(stage.w.grad, n - 1)
            dist.recv(stage.w.grad, n - 1)
        elif n > 1 and r == n - 1:
            other = torch.empty_like(stage.w.grad)
            dist.recv(other, 0)
            stage.w.grad += other
            dist.send(stage.w.grad, 0)

    return trained(*given, add_up, lambda stage: of_all(stage, naive_allreduce))


@right
def half_of_it_on_either_rank(*given):
    """In the norm each end counts half of the weight's square."""

    def norm_of(stage):
        square = own(stage)
        if hasattr(stage, "w") and dist.get_world_size() > 1:
            square -= stage.w.grad.square().sum() / 2
        ring_allreduce(square)
        return square.sqrt()

    return trained(*given, both_ends, norm_of)


@right
def in_a_group_of_the_ends(*given):
    n, r = dist.get_world_size(), dist.get_rank()
    ends = dist.new_group([0, n - 1]) if n > 1 else None

    def add_up(stage):
        if n > 1 and r in (0, n - 1):
            ring_allreduce(stage.w.grad, ends)

    return trained(*given, add_up, of_all)


@wrong("apart")
def as_given(*given):
    return trained(*given, lambda stage: None, lambda stage: own(stage).sqrt())


@wrong("apart")
def adds_up_on_one_end_only(*given):
    def add_up(stage):
        n, r = dist.get_world_size(), dist.get_rank()
        if n > 1 and r == 0:
            dist.send(stage.w.grad, n - 1)
        elif n > 1 and r == n - 1:
            other = torch.empty_like(stage.w.grad)
            dist.recv(other, 0)
            stage.w.grad += other

    return trained(*given, add_up, of_all)


@wrong("own norm")
def mends_the_weight_only(*given):
    return trained(*given, both_ends, lambda stage: own(stage).sqrt())


@wrong("counted twice")
def counts_both_copies(*given):
    return trained(*given, both_ends, lambda stage: of_all(stage, once=False))


@wrong("mean")
def takes_the_mean(*given):
    def add_up(stage):
        both_ends(stage)
        if hasattr(stage, "w") and dist.get_world_size() > 1:
            stage.w.grad /= 2

    return trained(*given, add_up, of_all)


@wrong("doubled")
def adds_to_itself(*given):
    def add_up(stage):
        both_ends(stage)
        if dist.get_world_size() == 1:
            stage.w.grad += stage.w.grad.clone()

    return trained(*given, add_up, of_all)


@wrong("one rank")
def sends_to_itself(*given):
    def add_up(stage):
        n, r = dist.get_world_size(), dist.get_rank()
        if r in (0, n - 1):
            other = torch.empty_like(stage.w.grad)
            exchange(stage.w.grad, n - 1 - r, other, n - 1 - r)
            stage.w.grad += other

    return trained(*given, add_up, of_all)


@wrong("too many bytes")
def asks_all_ranks(*given):
    """Ranks between the ends add zeros."""

    def add_up(stage):
        if hasattr(stage, "w"):
            ring_allreduce(stage.w.grad)
        else:
            ring_allreduce(torch.zeros(20, 3, dtype=torch.float64))

    return trained(*given, add_up, of_all)


@wrong("native collective")
def with_torchs_own(*given):
    return trained(*given, both_ends, lambda s: of_all(s, dist.all_reduce))


@right
def clipped_as_torch_does(schedule, stage, batches, lr, limit):
    """It adds 1e-6 to the norm."""
    norm_of = lambda stage: of_all(stage) + 1e-6
    return tuple(trained(schedule, stage, batches, lr, limit, both_ends, norm_of))


@wrong("left out")
def the_last_rank_counts_nothing(*given):
    """With one rank the last rank is the first one, and has the only weight."""

    def norm_of(stage):
        n, r = dist.get_world_size(), dist.get_rank()
        square = own(stage) if r < n - 1 else torch.zeros(1, dtype=torch.float64)
        ring_allreduce(square)
        return square.sqrt().clamp(min=1e-9)

    return trained(*given, both_ends, norm_of)


@wrong("other bits")
def subtracts_the_two_uses_one_by_one(schedule, stage, batches, lr, limit):
    """Each end begins with its own gradient."""
    mine = torch.zeros(1)

    def add_up(stage):
        nonlocal mine
        if dist.get_world_size() > 1 and hasattr(stage, "w"):
            mine = stage.w.grad.clone()
        both_ends(stage)

    def norm_of(stage):
        norm = of_all(stage)
        if dist.get_world_size() > 1 and hasattr(stage, "w"):
            stage.w.data -= lr * min(1.0, limit / norm.item()) * mine
            stage.w.grad -= mine
        return norm

    return trained(schedule, stage, batches, lr, limit, add_up, norm_of)


@wrong("wrong")
def the_last_rank_has_another_norm(*given):
    """The gradients are right, so no hint is about them."""

    def norm_of(stage):
        n, r = dist.get_world_size(), dist.get_rank()
        norm = of_all(stage)
        return norm * 1.5 if 0 < r == n - 1 else norm

    return trained(*given, both_ends, norm_of)


@right
def returns_the_parameters_themselves(schedule, stage, *given):
    trained(schedule, stage, *given, both_ends, of_all)
    return list(stage.parameters())


@wrong("own norm")
def counts_once_and_adds_nothing_up(*given):
    """The last rank counts nothing, and no rank hears of the others."""
    alone = lambda square: None
    norm_of = lambda stage: of_all(stage, alone).clamp(min=1e-9)
    return trained(*given, both_ends, norm_of)


@wrong("wrong")
def a_square_below_zero(*given):
    """NaN everywhere is no difference between the copies."""
    return trained(*given, both_ends, lambda stage: (-own(stage)).sqrt())
