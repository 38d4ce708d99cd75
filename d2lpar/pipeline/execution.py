"""Pipelines: every rank has some layers, and micro-batches flow through all of them.

A `Pipeline` executes any valid schedule: F, B and W of a schedule become a forward
pass, a backward pass and the gradients of the weights.  Two ranks, two micro-batches:

    rank 0    0F0     0F1              0B0     0B1
                \\       \\             /       /
    rank 1       1F0     1B0    1F1     1B1

Activations travel down, and their gradients travel up; both are [rows of a
micro-batch, ...].  A `Mail` sends and receives them.  p ranks, r this rank, m
micro-batches, N rows of the whole batch.  Serial truth: the same layers on one device,
with the whole batch.
"""

from collections import defaultdict, deque
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from ..sim.labels import label
from .delayed import delay_weights
from .schedule import validate


class Pipeline:
    """Execute this rank's row of a schedule.

    stages       the modules of this rank's stages, lowest first
    loss         (outputs, targets) -> the sum of the losses of these rows
    recompute    F keeps only a stage's input, and B runs the stage again

    After `step`, each parameter has the gradient of the mean loss over N rows.
    """

    def __init__(self, schedule, stages, loss, group=None, recompute=False):
        self.stages = stages_by_number(schedule, stages, group)
        self.schedule, self.loss, self.recompute = schedule, loss, recompute
        self.row = schedule.ranks[dist.get_rank(group)]
        self.last, self.mail = schedule.stages - 1, Mail(schedule, group)
        self.inputs, self.targets, self.N, self.total = (), (), 0, 0.0
        self.kept = {}  # (stage, micro-batch): what its B needs
        self.late = {}  # (stage, micro-batch): what its W has to do
        split = self.stages.items() if schedule.splits else ()
        self.delayed = {s: delay_weights(module) for s, module in split}

    def forward(self, action):
        """Run one stage forward, and send its output to the next stage."""
        stage, _, i = action
        x = self.inputs[i] if stage == 0 else self.mail.fetch(action)
        if stage > 0:
            x.requires_grad_()  # so that backward leaves its gradient here
        out = self.outputs(action, x)
        if stage == self.last:
            out = self.loss(out, self.targets[i]) / self.N
            self.total = self.total + out.detach()
        else:
            self.mail.send(action, out)
        self.kept[stage, i] = x, out

    def outputs(self, action, x):
        """Return what the stage makes of x."""
        module = self.stages[action.stage]
        if self.recompute:
            return checkpoint(module, x, use_reentrant=False)
        return module(x)

    def backward(self, action):
        """Run one stage backward, and send the gradient of its input back."""
        stage, _, i = action
        gradient = None if stage == self.last else self.mail.fetch(action)
        x, out = self.kept.pop((stage, i))
        if out.requires_grad:
            torch.autograd.backward(out, gradient)
        if stage > 0:
            self.mail.send(action, x.grad)
        if stage in self.delayed:
            self.late[stage, i] = list(self.delayed[stage])
            self.delayed[stage].clear()

    def weights(self, action):
        """Add the gradients of the weights that this micro-batch's B put off."""
        for add_gradient in self.late.pop((action.stage, action.micro)):
            add_gradient()

    def step(self, inputs, targets, rows=None):
        """Execute all actions of this rank, and return its part of the mean loss.

        Every rank passes a batch of N rows, but only stage 0 reads the inputs
        and only the last stage the targets.  All other ranks return 0.  The
        mean is over `rows` if they are not N.
        """
        m, N = self.schedule.m, len(inputs)
        self.N, self.total = rows or N, torch.zeros(())
        if m > N:
            text = f"{N} rows cannot fill {m} micro-batches."
            raise ValueError(f"{text} Use at most one micro-batch for each row.")
        self.inputs, self.targets = inputs.tensor_split(m), targets.tensor_split(m)
        self.mail.open([len(part) for part in self.inputs])
        do = {"F": self.forward, "B": self.backward, "W": self.weights}
        for action in self.row:
            with label(str(action)):  # what a timeline calls it
                do[action.kind](action)
        self.mail.close()
        return self.total


def stages_by_number(schedule, modules, group=None):
    """Return {stage: module} of this rank; ValueError if they do not fit."""
    validate(schedule, copies=1)
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if schedule.p != n:
        text = f"The schedule has rows for {schedule.p} ranks, and there are"
        raise ValueError(f"{text} {n}. Make a schedule with p={n}.")
    mine = sorted({action.stage for action in schedule.ranks[r]})
    if len(modules) != len(mine):
        text = f"Rank {r} has the stages {mine}, so it needs {len(mine)}"
        raise ValueError(f"{text} modules, not {len(modules)}.")
    return dict(zip(mine, modules, strict=True))


def receiver(action, stages):
    """Return the action of another stage that needs this tensor, or None."""
    stage = action.stage + {"F": 1, "B": -1}.get(action.kind, stages)
    return action._replace(stage=stage) if 0 <= stage < stages else None


class Line(NamedTuple):
    """All activations (F) or all gradients (B) from one rank to another."""

    kind: str
    src: int
    dst: int


# Both ends of a line know the schedule, so both know what will travel on it:
#
#     1F0 1F1 1B0 1B1        rank 1 sends  F0 F1 -> rank 2,  B0 B1 -> rank 0
#
# The receiver expects the tensors in the order in which the sender makes them.
def lines(schedule):
    """Return {Line: the actions that need its tensors, in order}."""
    found, at = defaultdict(list), schedule.at
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            needed_by = receiver(action, schedule.stages)
            if needed_by and at[needed_by] != rank:
                found[Line(action.kind, rank, at[needed_by])].append(needed_by)
    return dict(found)


class Mail:
    """Send what this rank's actions make, and fetch what they need.

    rows        of each micro-batch in this step
    expected    {line: actions whose tensors no receive is posted for yet}
    posted      {line: (action, tensor, Work) of the receives under way}
    arrived     {action: the tensor that it needs}
    leaving     (action that needs it, Work, tensor) of the sends under way
    forms       {(line, stage): (shape of a row, dtype)}, once they are known
    """

    def __init__(self, schedule, group=None):
        self.rank, self.stages = dist.get_rank(group), schedule.stages
        self.at, every = schedule.at, lines(schedule)
        self.lines = {k: x for k, x in every.items() if k.dst == self.rank}
        self.line_of = {a: k for k, x in self.lines.items() for a in x}
        self.position = {a: k for x in schedule.ranks for k, a in enumerate(x)}
        self.rows, self.expected, self.posted = [], {}, {}
        self.arrived, self.leaving, self.forms = {}, [], {}
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        ways = sorted({(k.kind, k.src < k.dst) for k in every})
        how = {"use_local_synchronization": len(ranks) < dist.get_world_size()}
        self.groups = {way: dist.new_group(ranks, **how) for way in ways}

    def open(self, rows):
        """Begin a step, in which micro-batch i has rows[i] rows."""
        self.rows = rows
        self.expected = {line: deque(x) for line, x in self.lines.items()}
        self.posted = {line: deque() for line in self.lines}
        for line in self.lines:
            self.post_receives(line)

    def send(self, action, tensor):
        """Start to send a tensor to the stage that needs it, without waiting.

        Between two stages of one rank nothing travels.
        """
        needed_by = receiver(action, self.stages)
        to = self.at[needed_by]
        form = form_of(action, tensor, self.rows[action.micro])
        tensor = tensor.detach().contiguous()
        if to == self.rank:
            self.arrived[needed_by] = tensor
            return
        line = Line(action.kind, self.rank, to)
        known = self.forms.get((line, action.stage))
        if known not in (None, form):
            raise ValueError(form_changed(action, known, form))
        self.forms[line, action.stage] = form
        for part in [tensor] if known else [note_of(*form), tensor]:
            work = dist.isend(part, group=self.group_of(line), group_dst=to)
            self.leaving.append((needed_by, work, part))

    def fetch(self, action):
        """Wait for what this action needs from another stage, and return it."""
        while action not in self.arrived:
            line = self.line_of[action]
            if not self.posted[line]:
                self.read_note(line)
                self.post_receives(line)
            came, tensor, work = self.posted[line].popleft()
            work.wait()
            self.arrived[came] = tensor
            self.release(came)
            self.post_receives(line)
        return self.arrived.pop(action)

    def close(self):
        """Wait until everything that this rank has sent has left."""
        for _, work, _ in self.leaving:
            work.wait()
        self.leaving.clear()

    # Messages of a group keep their order.  Each direction has its own group,
    # so that no activation has to wait for a gradient:
    #
    #     rank 1    sends     F0 F1 F2 ..  to rank 2      B0 B1 ..  to rank 0
    #               expects   F0 F1 F2 ..  from rank 0    B0 B1 ..  from rank 2
    def group_of(self, line):
        """Return the group of this line's messages."""
        return self.groups[line.kind, line.src < line.dst]

    def post_receives(self, line):
        """Keep two receives of a line posted, as far as their shapes are known."""
        expected, posted = self.expected[line], self.posted[line]
        while expected and len(posted) < 2:
            if (line, expected[0].stage) not in self.forms:
                return
            action = expected.popleft()
            shape, dtype = self.forms[line, action.stage]
            tensor = torch.empty(self.rows[action.micro], *shape, dtype=dtype)
            group = self.group_of(line)
            work = dist.irecv(tensor, group=group, group_src=line.src)
            posted.append((action, tensor, work))

    # A tensor stays until its message has left, and what comes back says that
    # it has.  On rank 0, with  1F0 1B0 1F1 1B1  on rank 1:
    #
    #     the gradient of 1B0 is here  ->  the activation for 1F0 has left
    def release(self, came):
        """Free the tensors that the sender of this one had needed before."""
        made_by = came._replace(stage=came.stage + {"F": -1, "B": 1}[came.kind])
        rank, now = self.at[made_by], self.position[made_by]
        leaving, self.leaving = self.leaving, []
        for needed_by, work, tensor in leaving:
            there = self.at[needed_by] == rank
            if there and self.position[needed_by] < now:
                work.wait()
            else:
                self.leaving.append((needed_by, work, tensor))

    def read_note(self, line):
        """Receive the note that says which tensors this line's next stage gets."""
        note = note_of((), DTYPES[0])  # its numbers will be replaced
        dist.recv(note, group=self.group_of(line), group_src=line.src)
        kind, count, *sizes = note.tolist()
        stage = self.expected[line][0].stage
        self.forms[line, stage] = tuple(sizes[:count]), DTYPES[kind]


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def note_of(shape, dtype):
    """Return ten numbers: the dtype, how many sizes a row has, and which."""
    meta = torch.get_default_device().type == "meta"  # holds no numbers
    note = [DTYPES.index(dtype), len(shape), *shape, *[0] * (8 - len(shape))]
    return torch.tensor(note, device="cpu" if meta else None)


def form_of(action, tensor, rows):
    """Return (shape of a row, dtype); raise an error if it cannot travel."""
    if not torch.is_tensor(tensor):
        came = type(tensor).__name__
        text = f"{action} made a {came}, and only a tensor can"
        raise TypeError(f"{text} travel to another stage. Return one tensor.")
    shape = tuple(tensor.shape)
    if not 1 <= len(shape) <= 9 or shape[0] != rows:
        text = f"{action} made a tensor of shape {list(shape)}. It must have"
        more = "rows, as many as the micro-batch, and at most 9 dimensions."
        raise ValueError(f"{text} {rows} {more}")
    if tensor.dtype not in DTYPES:
        text = f"{action} made {tensor.dtype}, but only these dtypes travel:"
        raise TypeError(f"{text} {', '.join(map(str, DTYPES))}.")
    return shape[1:], tensor.dtype


def form_changed(action, known, form):
    """Return the sentence for rows whose shape or dtype has changed."""
    old, new = (f"{list(shape)} in {dtype}" for shape, dtype in (known, form))
    text = f"{action} made rows of {new}, but before they were {old}, and"
    more = "the next stage expects these. Other shapes need a new Pipeline."
    return f"{text} {more}"
