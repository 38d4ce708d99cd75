"""The lists of actions that torch's pipeline schedules make."""

from types import SimpleNamespace

import torch


def action_lists(kind, p, m, stages):
    """Return torch's list for every rank, as texts such as 2F0, 2I0 and 2W0.

    `kind` is a name of torch, such as Interleaved1F1B, and `stages` are those of
    rank 0.  No process group is needed, because the lists depend on numbers alone.
    Raises ValueError with torch's own sentence where torch refuses the numbers.
    """
    from torch.distributed.pipelining import schedules

    made = schedules.get_schedule_class(kind)
    whole = {"num_stages": p * len(stages), "group_size": p, "group_rank": 0}
    whole |= {"group": None, "has_backward": False, "submod": None}
    fakes = [SimpleNamespace(stage_index=s, **whole) for s in stages]
    single = issubclass(made, schedules.PipelineScheduleSingle)
    schedule = made(fakes[0] if single else fakes, m, loss_fn=torch.sum)
    lists = schedule._get_pipeline_order() if single else schedule.pipeline_order
    return [[str(a) for a in lists[r] if a is not None] for r in range(p)]
