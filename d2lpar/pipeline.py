"""Pipelines: every rank has some layers, and micro-batches flow through all of them.

A `Pipeline` executes any valid schedule: F, B and W of `schedule.py` become a forward
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
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .schedule import validate


def receiver(action, stages):
    """The action on another stage that needs what this one makes, or None."""
    stage = action.stage + {"F": 1, "B": -1}.get(action.kind, stages)
    return action._replace(stage=stage) if 0 <= stage < stages else None


# Every pair of ranks has a line for each direction, and both know the schedule:
#
#     1F0 1F1 1B0 1B1        rank 1 sends  F0 F1 -> rank 2,  B0 B1 -> rank 0
#
# What comes is expected in the order in which its sender makes it.
def lines(schedule):
    """{(kind, from, to): the actions that need what travels there, in its order}."""
    found = defaultdict(list)
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            needed_by = receiver(action, schedule.stages)
            if needed_by and schedule.home[needed_by.stage] != rank:
                to = schedule.home[needed_by.stage]
                found[action.kind, rank, to].append(needed_by)
    return dict(found)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


class Mail:
    """What travels between the stages, and what has come for this rank.

    Lines up and down use groups of their own, so that no message ever waits
    for one in the other direction.  The first message of a line is preceded by
    a note of its shape.  Two receives per line are open ahead of time, so that
    messages travel while their rank computes.
    """

    def __init__(self, schedule, group=None):
        self.schedule, self.r = schedule, dist.get_rank(group)
        self.here, self.sent, self.shapes = {}, [], {}
        every = lines(schedule)
        kinds = sorted({(kind, src < dst) for kind, src, dst in every})
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.groups = {kind: dist.new_group(ranks) for kind in kinds}
        self.lines = {k: needed for k, needed in every.items() if k[2] == self.r}
        self.line_of = {a: line for line, needed in self.lines.items() for a in needed}

    def begin(self, rows):
        """A step begins; `rows` of each micro-batch are known to every rank."""
        self.rows = rows
        self.expected = {line: deque(needed) for line, needed in self.lines.items()}
        self.open = defaultdict(deque)  # line -> (action, tensor, Work)
        for line in self.lines:
            self._expect(line)

    def send(self, action, tensor):
        """The stage that needs it will have it."""
        needed_by = receiver(action, self.schedule.stages)
        to = self.schedule.home[needed_by.stage]
        if to == self.r:
            self.here[needed_by] = tensor
            return
        tensor, line = tensor.contiguous(), (action.kind, self.r, to)
        group = self._group(line)
        if (line, action.stage) not in self.shapes:
            self.shapes[line, action.stage] = tensor.shape[1:]
            note = [DTYPES.index(tensor.dtype), tensor.dim() - 1, *tensor.shape[1:]]
            note = torch.tensor(note + [0] * (10 - len(note)))
            self.sent.append((dist.isend(note, group=group, group_dst=to), note))
        self.sent.append((dist.isend(tensor, group=group, group_dst=to), tensor))

    def fetch(self, action):
        """What this action needs from another stage."""
        while action not in self.here:
            line = self.line_of[action]
            if not self.open[line]:
                self._read_note(line)
                self._expect(line)
            arrived, tensor, work = self.open[line].popleft()
            work.wait()
            self.here[arrived] = tensor
            self._expect(line)
        return self.here.pop(action)

    def end(self):
        """All that this rank has sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()

    def _expect(self, line):
        """Two receives of this line are open, as far as their shapes are known."""
        expected, open = self.expected[line], self.open[line]
        while expected and len(open) < 2:
            if (line, expected[0].stage) not in self.shapes:
                return
            action = expected.popleft()
            shape, dtype = self.shapes[line, action.stage]
            tensor = torch.empty(self.rows[action.micro], *shape, dtype=dtype)
            group = self._group(line)
            work = dist.irecv(tensor, group=group, group_src=line[1])
            open.append((action, tensor, work))

    def _read_note(self, line):
        """The shape of what comes first on this line for this stage."""
        note = torch.empty(10, dtype=torch.int64)
        dist.recv(note, group=self._group(line), group_src=line[1])
        kind, count, *sizes = note.tolist()
        stage = self.expected[line][0].stage
        self.shapes[line, stage] = sizes[:count], DTYPES[kind]

    def _group(self, line):
        kind, src, dst = line
        return self.groups[kind, src < dst]


class Pipeline:
    """This rank's stages, driven by a schedule.

    stages       the modules of this rank's stages, lowest first
    loss         (outputs, targets) -> the sum of the losses of these rows
    recompute    a forward pass keeps its input only, and runs again in backward

    After `step` the gradient of every parameter is that of the mean loss over
    all N rows.  ValueError where schedule, ranks and stages do not fit.
    """

    def __init__(self, schedule, stages, loss, group=None, recompute=False):
        validate(schedule)
        n, r = dist.get_world_size(group), dist.get_rank(group)
        if schedule.p != n:
            raise ValueError(f"A schedule for {schedule.p} ranks cannot drive {n}.")
        mine = sorted(stage for stage, rank in schedule.home.items() if rank == r)
        if len(stages) != len(mine):
            raise ValueError(
                f"Rank {r} has the stages {mine}: it needs {len(mine)} modules, "
                f"not {len(stages)}."
            )
        self.stages = dict(zip(mine, stages, strict=True))
        self.schedule, self.loss, self.recompute = schedule, loss, recompute
        self.row, self.last = schedule.ranks[r], schedule.stages - 1
        self.mail, self.kept, self.late = Mail(schedule, group), {}, {}
        self.delayed = {}
        if schedule.splits:
            self.delayed = {s: delay_weights(x) for s, x in self.stages.items()}

    def step(self, inputs, targets):
        """All actions of this rank, with a batch that every rank knows.

        Only stage 0 reads the inputs, only the last stage the targets, and all
        ranks the number of rows N.  Returns this rank's part of the mean loss:
        0 but on the last stage's rank.
        """
        N, m = len(inputs), self.schedule.m
        if m > N:
            raise ValueError(f"{N} rows cannot fill {m} micro-batches.")
        self.inputs, self.targets = inputs.tensor_split(m), targets.tensor_split(m)
        self.N, self.total = N, torch.zeros(())
        self.mail.begin([len(part) for part in self.inputs])
        do = {"F": self.forward, "B": self.backward, "W": self.weights}
        for action in self.row:
            do[action.kind](action)
        self.mail.end()
        return self.total

    def forward(self, action):
        """The stage's output is on its way to the next; what backward needs stays."""
        stage, _, i = action
        x = self.inputs[i] if stage == 0 else self.mail.fetch(action).requires_grad_()
        out = self.outputs(stage, x)
        if stage == self.last:
            out = self.loss(out, self.targets[i]) / self.N
            self.total = self.total + out.detach()
        else:
            self.mail.send(action, out.detach())
        self.kept[stage, i] = x, out

    def outputs(self, stage, x):
        """What the stage makes of x."""
        if self.recompute:
            return checkpoint(self.stages[stage], x, use_reentrant=False)
        return self.stages[stage](x)

    def backward(self, action):
        """The parameters have their gradient, the stage before its output's."""
        stage, _, i = action
        x, out = self.kept.pop((stage, i))
        gradient = None if stage == self.last else self.mail.fetch(action)
        if out.requires_grad:
            torch.autograd.backward(out, gradient)
        if stage > 0:
            self.mail.send(action, x.grad)
        if stage in self.delayed:
            self.late[stage, i] = list(self.delayed[stage])
            self.delayed[stage].clear()

    def weights(self, action):
        """The parameters have the gradients that backward has put off."""
        for add_gradient in self.late.pop((action.stage, action.micro)):
            add_gradient()


# A product has two backward products, and only one of them is urgent:
#
#     forward    y = x w.T          to the next stage
#     B          dx = dy w          to the stage before, which waits for it
#     W          dw = dy.T x        nobody waits
class Delayed(torch.autograd.Function):
    """A product of x and a weight; the weight's gradient is put off.

    `product` is (of, by_x, by_weight): of(x, weight), and its gradients
    by_...(dy, x, weight).  A function that adds the weight's gradient to
    `weight.grad` is appended to `delayed`.  Qi et al. 2024, section 2.
    """

    @staticmethod
    def forward(ctx, x, weight, product, delayed):
        ctx.product, ctx.delayed, ctx.weight = product, delayed, weight
        ctx.save_for_backward(x, weight)  # of which a checkpoint makes copies
        return product[0](x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _, by_x, by_weight = ctx.product
        if ctx.needs_input_grad[1]:
            ctx.delayed.append(lambda: _add(ctx.weight, by_weight(dy, x, weight)))
        dx = by_x(dy, x, weight) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


def _add(weight, gradient):
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


LINEAR = (
    F.linear,  # x [N, D], weight [O, D] -> [N, O]
    lambda dy, x, weight: dy @ weight,  # [N, D]
    lambda dy, x, weight: dy.flatten(0, -2).T @ x.flatten(0, -2),  # [O, D]
)


def convolution(layer):
    """The product of a Conv2d, with its stride, padding and so on."""
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return (
        lambda x, weight: F.conv2d(x, weight, None, *how),
        lambda dy, x, weight: nn.grad.conv2d_input(x.shape, weight, dy, *how),
        lambda dy, x, weight: nn.grad.conv2d_weight(x, weight.shape, dy, *how),
    )


def delay_weights(module):
    """The list to which backward passes of this module append, from now on.

    The weights of nn.Linear and nn.Conv2d wait there; biases and all other
    parameters are small, and have their gradient at once.
    """
    delayed = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = _forward(layer, LINEAR, (), delayed)
        elif isinstance(layer, nn.Conv2d) and _is_plain(layer):
            layer.forward = _forward(layer, convolution(layer), (1, 1), delayed)
    return delayed


def _is_plain(conv):
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _forward(layer, product, tail, delayed):
    """The layer's forward, whose product puts off the weight's gradient."""

    def forward(x):
        y = Delayed.apply(x, layer.weight, product, delayed)
        return y if layer.bias is None else y + layer.bias.view(-1, *tail)

    return forward
