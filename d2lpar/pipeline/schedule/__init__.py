"""Pipeline schedules as data: made by rule or by hand, checked, and timed.

A schedule is a list of actions for every rank, in order.  `2F0` is one action: stage 2,
forward, micro-batch 0.

    F    forward
    B    backward: the gradient of the input, and that of the weights
    W    the gradient of the weights, in schedules that separate it from B

1F1B on three ranks, four micro-batches:

    rank 0    0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
    rank 1    1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
    rank 2    2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3

A rank may have several stages, and in DualPipe a stage has two copies: then the number
of the micro-batch says on which of two ranks it runs.

The same lists are drawn, checked, timed and executed.  p ranks, m micro-batches, v
stages on a rank.  Each rank takes its actions in order; an action begins when its rank
is free and what it needs is there.
"""

from .actions import RULES, Action, Schedule, ScheduleError, needs, parse, table
from .blocks import blocks, idle
from .folded import dualpipe, dualpipe_v, zb_v
from .makers import (
    MAKERS,
    alternate,
    breadth_first,
    gpipe,
    interleaved,
    make,
    naive,
    one_f_one_b,
    zero_bubble,
)
from .rules import play, validate
from .simulation import Simulation, in_flight, simulate
from .torch_lists import differences, from_torch
