"""A rank that PyTorch's profiler watches."""

import torch

from ..report.profiled import kept


class Profiled:
    """Calls `profiled`; gives (what it returned, what the profiler saw)."""

    def __init__(self, profiled):
        self.profiled = profiled

    def __call__(self, *args, **kwargs):
        with torch.profiler.profile() as prof:
            value = self.profiled(*args, **kwargs)
        return value, kept(prof)
