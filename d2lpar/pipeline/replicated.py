"""Pipelines whose stages have two copies, for schedules that go both ways.

In DualPipe the micro-batches enter at both ends, so each stage is on two ranks:

    rank 0    stage 0, and stage 3 for what comes from rank 3
    rank 3    stage 3, and stage 0 for what enters here

Serial truth: the same layers on one device, with the whole batch.
"""

import torch
import torch.distributed as dist

from .execution import Pipeline


# Two copies of each stage.  Ranks 1 and 2 of four, eight micro-batches:
#
#     rank 1    stage 1 sees 0 1 2 3, stage 2 sees 4 5 6 7
#     rank 2    stage 1 sees 4 5 6 7, stage 2 sees 0 1 2 3
class Replicated(Pipeline):
    """Execute a schedule whose stages have two copies, as in DualPipe.

    Both copies must begin with the same weights.  `step` ends with the sum of
    their gradients, so each parameter has the gradient of the mean loss over N
    rows on both ranks, and equal optimizers keep the copies equal.
    """

    copies = 2

    def __init__(self, schedule, stages, loss, group=None, recompute=False):
        super().__init__(schedule, stages, loss, group, recompute)
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        owners = {stage: set() for stage in self.stages}
        for action, rank in schedule.at.items():
            owners.get(action.stage, set()).add(ranks[rank])
        sets = {tuple(sorted(found)) for found in owners.values()}
        how = {"use_local_synchronization": True}  # only the owners take part
        made = {found: dist.new_group(found, **how) for found in sorted(sets)}
        self.owners = {s: made[tuple(sorted(x))] for s, x in owners.items()}

    def step(self, inputs, targets, rows=None):
        """Do the same as a Pipeline, and sum the gradients over the copies."""
        mine = [(s, p) for s, x in self.stages.items() for p in x.parameters()]
        mine = [(stage, p) for stage, p in mine if p.requires_grad]
        before = [p.grad for _, p in mine]  # of earlier steps, summed already
        for _, p in mine:
            p.grad = None
        total = Pipeline.step(self, inputs, targets, rows)
        for (stage, p), old in zip(mine, before, strict=True):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=self.owners[stage])
            p.grad = p.grad if old is None else old + p.grad
        return total
