"""Are the copies of DDP's model still equal where their optimizers have stepped?

A few numbers of every parameter are kept after each step, those after the last step
are compared.
"""

import weakref

import torch
import torch.distributed as dist

from ...sim.torch_private import raw_tensors

FEW = 64  # numbers of a parameter


class Replicas:
    """The DDP modules of a rank, as long as they live."""

    def __init__(self):
        self._modules, self.samples = [], {}

    def add(self, ddp):
        self._modules.append(weakref.ref(ddp))

    def stepped(self):
        """Keep what the parameters are now."""
        for number, reference in enumerate(self._modules):
            ddp = reference()
            if ddp is not None:
                ranks = tuple(dist.get_process_group_ranks(ddp.process_group))
                with torch.no_grad(), raw_tensors():
                    self.samples[number] = ranks, dict(_sampled(ddp.module))


def _sampled(module):
    for name, parameter in module.named_parameters():
        flat = getattr(parameter, "_local_tensor", parameter).detach().reshape(-1)
        yield name, flat[:: max(1, flat.numel() // FEW)].clone()


def apart(results):
    """A sentence where replicas differ; a rank that failed has the result None."""
    samples = [used and used.samples for used in results]
    for rank, mine in enumerate(samples):
        for number, (ranks, here) in (mine or {}).items():
            there = (samples[ranks[0]] or {}).get(number, (ranks, here))[1]
            for name, value in here.items():
                other = there.get(name, value)
                if not torch.allclose(value, other, rtol=0, atol=0, equal_nan=True):
                    return [
                        f"DDP's replicas have drifted apart: after the last step rank "
                        f"{rank} has another {name} than rank {ranks[0]}. Were all "
                        "gradients averaged, and did all ranks step alike?"
                    ]
    return []
