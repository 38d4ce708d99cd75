"""Pipelines: every rank has some layers, and micro-batches flow through all of them.

A `Pipeline` executes any valid schedule: F, B and W of a schedule become a forward
pass, a backward pass and the gradients of the weights.  Two ranks, two micro-batches:

    rank 0    0F0     0F1              0B0     0B1
                \\       \\             /       /
    rank 1       1F0     1B0    1F1     1B1

Down go activations, up go their gradients; both are [rows of a micro-batch, ...].
p ranks, r this rank, m micro-batches, N rows of the whole batch.  Serial truth: the
same layers on one device, with the whole batch.
"""

from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from .delayed import delay_weights
from .schedule import validate


def receiver(action, stages):
    """The action on another stage that needs what this one makes, or None."""
    stage = action.stage + {"F": 1, "B": -1}.get(action.kind, stages)
    return action._replace(stage=stage) if 0 <= stage < stages else None


# Every pair of ranks has a line each way, and both know the schedule:
#
#     1F0 1F1 1B0 1B1        rank 1 sends  F0 F1 -> rank 2,  B0 B1 -> rank 0
#
# What comes is expected in the order in which its sender makes it.
def lines(schedule):
    """{(kind, from, to): actions that need what travels there, in order}."""
    found = defaultdict(list)
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            needed_by = receiver(action, schedule.stages)
            if needed_by and schedule.home[needed_by.stage] != rank:
                to = schedule.home[needed_by.stage]
                found[action.kind, rank, to].append(needed_by)
    return dict(found)


# Up and down have groups of their own, so that no message waits for one in the
# other direction:
#
#     rank 1    sends     F0 F1 F2 ..  to rank 2      B0 B1 ..  to rank 0
#               expects   F0 F1 F2 ..  from rank 0    B0 B1 ..  from rank 2
class Mail:
    """What travels between the stages, and what has come for this rank.

    here      {action: the tensor that it needs}
    open      {line: (action, tensor, Work) of the receives under way}
    shapes    {(line, stage): shape of a row, dtype}, once they are known
    sent      what is on its way: (to, place of the action there, Work, tensor)
    """

    def __init__(self, schedule, group=None):
        self.schedule, self.r = schedule, dist.get_rank(group)
        self.here, self.sent, self.shapes = {}, [], {}
        self.place = {a: k for x in schedule.ranks for k, a in enumerate(x)}
        every = lines(schedule)
        self.lines = {k: x for k, x in every.items() if k[2] == self.r}
        self.line_of = {a: k for k, x in self.lines.items() for a in x}
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.groups = {}
        for way in sorted({(kind, src < dst) for kind, src, dst in every}):
            self.groups[way] = dist.new_group(ranks)

    def group(self, line):
        """The group of this line's messages."""
        kind, src, dst = line
        return self.groups[kind, src < dst]


def begin_mail(mail, rows):
    """A step begins; `rows` of each micro-batch are known to every rank."""
    mail.rows, mail.open = rows, defaultdict(deque)
    mail.expected = {line: deque(x) for line, x in mail.lines.items()}
    for line in mail.lines:
        _expect(mail, line)


def send_on(mail, action, tensor):
    """The stage that needs it will have it."""
    needed_by = receiver(action, mail.schedule.stages)
    to = mail.schedule.home[needed_by.stage]
    line, form = (action.kind, mail.r, to), _form(mail, action, tensor)
    known = mail.shapes.get((line, action.stage))
    tensor = tensor.detach().contiguous()
    if to == mail.r:
        mail.here[needed_by] = tensor
        return
    if known not in (None, form):
        raise ValueError(_changed(action, known, form))
    mail.shapes[line, action.stage] = form
    for part in [tensor] if known else [_note(*form), tensor]:
        work = dist.isend(part, group=mail.group(line), group_dst=to)
        mail.sent.append((to, mail.place[needed_by], work, part))


def fetch(mail, action):
    """What this action needs from another stage."""
    while action not in mail.here:
        line = mail.line_of[action]
        if not mail.open[line]:
            _read_note(mail, line)
            _expect(mail, line)
        arrived, tensor, work = mail.open[line].popleft()
        work.wait()
        mail.here[arrived] = tensor
        _forget(mail, line[1], arrived)
        _expect(mail, line)
    return mail.here.pop(action)


# A tensor stays until its message has left.  What comes back says that it has.
# On rank 0, with  1F0 1B0 1F1 1B1  on rank 1:
#
#     the gradient of 1B0 is here  ->  the activation for 1F0 has left
def _forget(mail, rank, arrived):
    """What that rank had needed before it made this has left, and is free."""
    back = {"F": -1, "B": 1}[arrived.kind]
    now = mail.place[arrived._replace(stage=arrived.stage + back)]
    on_its_way = []
    for message in mail.sent:
        to, place, work, _ = message
        if to == rank and place < now:
            work.wait()
        else:
            on_its_way.append(message)
    mail.sent = on_its_way


def end_mail(mail):
    """All that this rank has sent has left."""
    for _, _, work, _ in mail.sent:
        work.wait()
    mail.sent.clear()


def _expect(mail, line):
    """Two receives of this line are open, as far as their shapes are known."""
    expected, open = mail.expected[line], mail.open[line]
    while expected and len(open) < 2:
        if (line, expected[0].stage) not in mail.shapes:
            return
        action = expected.popleft()
        shape, dtype = mail.shapes[line, action.stage]
        tensor = torch.empty(mail.rows[action.micro], *shape, dtype=dtype)
        work = dist.irecv(tensor, group=mail.group(line), group_src=line[1])
        open.append((action, tensor, work))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def _form(mail, action, tensor):
    """(shape of a row, dtype); an error in words where it cannot travel."""
    if not torch.is_tensor(tensor):
        text = f"{action} makes a {type(tensor).__name__}, and one tensor goes"
        raise TypeError(f"{text} to the next stage.")
    shape, rows = tuple(tensor.shape), mail.rows[action.micro]
    if not 1 <= len(shape) <= 9 or shape[0] != rows:
        text = f"{action} makes a tensor of shape {list(shape)}; wanted are"
        more = "as many as the micro-batch has, and at most 9 dimensions."
        raise ValueError(f"{text} {rows} rows, {more}")
    if tensor.dtype not in DTYPES:
        text = f"{action} makes {tensor.dtype}; between stages travel"
        raise TypeError(f"{text} {', '.join(map(str, DTYPES))}.")
    return shape[1:], tensor.dtype


def _changed(action, known, form):
    """The sentence for rows that have got another form."""
    old, new = (f"{list(shape)} in {dtype}" for shape, dtype in (known, form))
    text = f"{action} makes rows of {new}, and before they were {old}:"
    more = "the next stage expects these. Other shapes need a new Pipeline."
    return f"{text} {more}"


def _note(shape, dtype):
    """Ten numbers: dtype, dimensions, sizes but for the rows."""
    note = [DTYPES.index(dtype), len(shape), *shape]
    return torch.tensor(note + [0] * (10 - len(note)))


def _read_note(mail, line):
    """The shape of what comes first on this line for this stage is known."""
    note = torch.empty(10, dtype=torch.int64)
    dist.recv(note, group=mail.group(line), group_src=line[1])
    kind, count, *sizes = note.tolist()
    stage = mail.expected[line][0].stage
    mail.shapes[line, stage] = tuple(sizes[:count]), DTYPES[kind]


def run_module(pipeline, action, x):
    """What the stage makes of x."""
    module = pipeline.stages[action.stage]
    if pipeline.recompute:
        return checkpoint(module, x, use_reentrant=False)
    return module(x)


def run_forward(pipeline, action):
    """The output is on its way to the next stage; what B needs stays."""
    stage, _, i = action
    x = pipeline.inputs[i] if stage == 0 else fetch(pipeline.mail, action)
    if stage > 0:
        x.requires_grad_()  # so that backward leaves its gradient here
    out = pipeline.outputs(action, x)
    if stage == pipeline.last:
        out = pipeline.loss(out, pipeline.targets[i]) / pipeline.N
        pipeline.total = pipeline.total + out.detach()
    else:
        send_on(pipeline.mail, action, out)
    pipeline.kept[stage, i] = x, out


def run_backward(pipeline, action):
    """The parameters have their gradient, the stage before its output's."""
    stage, _, i = action
    gradient = None if stage == pipeline.last else fetch(pipeline.mail, action)
    x, out = pipeline.kept.pop((stage, i))
    if out.requires_grad:
        torch.autograd.backward(out, gradient)
    if stage > 0:
        send_on(pipeline.mail, action, x.grad)
    if stage in pipeline.delayed:
        pipeline.late[stage, i] = list(pipeline.delayed[stage])
        pipeline.delayed[stage].clear()


def run_weights(pipeline, action):
    """The parameters have the gradients that backward has put off."""
    for add_gradient in pipeline.late.pop((action.stage, action.micro)):
        add_gradient()


def run_step(pipeline, inputs, targets):
    """All actions of this rank, with a batch that every rank knows.

    Only stage 0 reads the inputs, only the last stage the targets, and all
    ranks the number of rows N.  Returns this rank's part of the mean loss: 0
    but on the last stage's rank.
    """
    N, m = len(inputs), pipeline.schedule.m
    if m > N:
        raise ValueError(f"{N} rows cannot fill {m} micro-batches.")
    pipeline.N, pipeline.total = N, torch.zeros(())
    pipeline.inputs = inputs.tensor_split(m)
    pipeline.targets = targets.tensor_split(m)
    begin_mail(pipeline.mail, [len(part) for part in pipeline.inputs])
    do = {"F": pipeline.forward, "B": pipeline.backward, "W": pipeline.weights}
    for action in pipeline.row:
        do[action.kind](action)
    end_mail(pipeline.mail)
    return pipeline.total


class Pipeline:
    """This rank's stages, driven by a schedule.

    stages       the modules of this rank's stages, lowest first
    loss         (outputs, targets) -> the sum of the losses of these rows
    recompute    F keeps a stage's input only, and B runs the stage again

    After `step` each parameter has the gradient of the mean loss over N rows.
    """

    forward, backward, weights = run_forward, run_backward, run_weights
    outputs, step = run_module, run_step

    def __init__(self, schedule, stages, loss, group=None, recompute=False):
        self.stages = _by_number(schedule, stages, group)
        self.schedule, self.loss, self.recompute = schedule, loss, recompute
        self.row = schedule.ranks[dist.get_rank(group)]
        self.last, self.mail = schedule.stages - 1, Mail(schedule, group)
        self.kept, self.late, self.delayed = {}, {}, {}
        parts = self.stages.items() if schedule.splits else ()
        self.delayed = {s: delay_weights(x) for s, x in parts}


def _by_number(made, stages, group):
    """{stage: its module} of this rank; ValueError where they do not fit."""
    validate(made)
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if made.p != n:
        raise ValueError(f"A schedule for {made.p} ranks cannot drive {n}.")
    mine = sorted(stage for stage, rank in made.home.items() if rank == r)
    if len(stages) != len(mine):
        needed = f"it needs {len(mine)} modules, not {len(stages)}."
        raise ValueError(f"Rank {r} has the stages {mine}: {needed}")
    return dict(zip(mine, stages, strict=True))


def stashed_outputs(pipeline, action, x):
    """What the stage makes of x, with a copy of its weights that stays."""
    stage, _, i = action
    module = pipeline.stages[stage]
    version = {}
    for name, p in module.named_parameters():
        version[name] = p.detach().clone().requires_grad_(p.requires_grad)
    pipeline.versions[stage, i] = version
    return functional_call(module, version, (x,))


def backward_and_step(pipeline, action):
    """The gradient is that of the stashed weights; the newest make a step."""
    run_backward(pipeline, action)
    stage, _, i = action
    version = pipeline.versions.pop((stage, i))
    for name, p in pipeline.stages[stage].named_parameters():
        p.grad = version[name].grad
    pipeline.optimizers[stage].step()


# Weights that change after every B.  Rank 0 of two, micro-batches 0, 1, 2:
#
#     F0    F1    B0    F2    B1    B2
#     v0    v0    v0    v1    v0    v1     the version that F used, B uses, too
#                   v1          v2    v3   the weights after it
class PipeDream(Pipeline):
    """The same, and each B is followed by a step of its stage's optimizer.

    `optimizer(parameters)` makes one.  A micro-batch goes back with the
    weights with which it went out: a stage keeps a copy until then.  Its
    gradient is right for them, and they are not the newest (Narayanan et al.
    2019, section 3.3).
    """

    outputs, backward = stashed_outputs, backward_and_step

    def __init__(self, schedule, stages, loss, optimizer, group=None):
        super().__init__(schedule, stages, loss, group)
        if schedule.splits:
            raise ValueError("PipeDream steps after B, so W cannot be apart.")
        self.versions = {}  # {(stage, micro): {name: a copy of the weight}}
        parts = self.stages.items()
        self.optimizers = {s: optimizer(x.parameters()) for s, x in parts}
