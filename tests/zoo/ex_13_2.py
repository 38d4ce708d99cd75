"""13.2 The order of sends: gradients(schedule, modules, xs)."""

from collections import deque

import torch
import torch.distributed as dist

from d2lpar.pipeline import Pipeline, lines
from d2lpar.pipeline.schedule import Schedule
from zoo import right, wrong


def run_row(schedule, modules, xs, send, receive):
    """The row of this rank; send(tensor, needed by) and receive(tensor, needed by)."""
    r, last, kept = dist.get_rank(), schedule.stages - 1, {}
    for action in schedule.ranks[r]:
        stage, kind, i = action
        if kind == "F":
            x = xs[i].clone()
            if stage > 0:
                receive(x, schedule.home[stage - 1], action)
            y = modules[stage](x.requires_grad_())
            kept[stage, i] = x, y
            if stage < last:
                needed_by = action._replace(stage=stage + 1)
                send(y.detach(), schedule.home[stage + 1], needed_by)
        else:
            x, y = kept.pop((stage, i))
            dy = 2 * y.detach()
            if stage < last:
                receive(dy, schedule.home[stage + 1], action)
            y.backward(dy)
            if stage > 0:
                needed_by = action._replace(stage=stage - 1)
                send(x.grad, schedule.home[stage - 1], needed_by)
    return {s: [p.grad for p in modules[s].parameters()] for s in modules}


def tag_of(action):
    return 1000 * action.stage + 10 * action.micro + (action.kind == "B")


def with_tags(schedule, modules, xs, tag, wait=True):
    works = []

    def send(tensor, dst, needed_by):
        works.append((dist.isend(tensor, dst, tag=tag(needed_by)), tensor))

    def receive(tensor, src, action):
        dist.recv(tensor, src, tag=tag(action))

    found = run_row(schedule, modules, xs, send, receive)
    for work, _ in works if wait else ():
        work.wait()
    return found


@right
def a_tag_for_each_action(schedule, modules, xs):
    return with_tags(schedule, modules, xs, tag_of)


@right
def the_micro_batch_is_enough_of_a_tag(schedule, modules, xs):
    """What a micro-batch sends from rank to rank is needed in that order."""
    return with_tags(schedule, modules, xs, lambda action: action.micro)


@right
def in_the_order_of_the_sender(schedule, modules, xs):
    """No tags: what comes too early is kept until it is needed."""
    r, here, works = dist.get_rank(), {}, []
    expected = {}
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            stage = action.stage + (1 if action.kind == "F" else -1)
            if schedule.home.get(stage) == r:
                expected.setdefault(rank, deque()).append(action._replace(stage=stage))

    def receive(tensor, src, action):
        while action not in here:
            coming = expected[src].popleft()
            here[coming] = torch.empty_like(xs[coming.micro])
            dist.recv(here[coming], src)
        tensor.copy_(here.pop(action))

    def send(tensor, dst, needed_by):
        works.append(dist.isend(tensor, dst))

    found = run_row(schedule, modules, xs, send, receive)
    for work in works:
        work.wait()
    return found


@right
def all_receives_first(schedule, modules, xs):
    """Every receive of the step is open from the start."""
    r, open = dist.get_rank(), {}
    for (_, src, dst), needed in lines(schedule).items():
        for action in needed if dst == r else ():
            tensor = torch.empty_like(xs[action.micro])
            work = dist.irecv(tensor, src, tag=tag_of(action))
            open[action] = work, tensor

    def receive(tensor, src, action):
        work, came = open.pop(action)
        work.wait()
        tensor.copy_(came)

    works = []

    def send(tensor, dst, needed_by):
        works.append((dist.isend(tensor, dst, tag=tag_of(needed_by)), tensor))

    found = run_row(schedule, modules, xs, send, receive)
    for work, _ in works:
        work.wait()
    return found


@wrong("hangs")
def as_given(schedule, modules, xs):
    send = lambda tensor, dst, needed_by: dist.send(tensor, dst)
    receive = lambda tensor, src, action: dist.recv(tensor, src)
    return run_row(schedule, modules, xs, send, receive)


@wrong("hangs")
def waits_at_once(schedule, modules, xs):
    send = lambda t, dst, by: dist.isend(t, dst, tag=tag_of(by)).wait()
    receive = lambda t, src, action: dist.recv(t, src, tag=tag_of(action))
    return run_row(schedule, modules, xs, send, receive)


@wrong("crossed")
def without_tags(schedule, modules, xs):
    works = []
    send = lambda tensor, dst, needed_by: works.append(dist.isend(tensor, dst))
    receive = lambda tensor, src, action: dist.recv(tensor, src)
    found = run_row(schedule, modules, xs, send, receive)
    for work in works:
        work.wait()
    return found


@wrong("crossed")
def a_tag_for_up_and_down(schedule, modules, xs):
    return with_tags(schedule, modules, xs, lambda action: "FB".index(action.kind))


@wrong("no wait")
def never_waits(schedule, modules, xs):
    return with_tags(schedule, modules, xs, tag_of, wait=False)


@wrong("late")
def a_micro_batch_at_a_time(schedule, modules, xs):
    """An order in which nothing can go wrong, and nobody works beside another."""
    rank = {kind: k for k, kind in enumerate("FB")}
    key = lambda a: (a.micro, rank[a.kind], a.stage * (1 if a.kind == "F" else -1))
    rows = tuple(tuple(sorted(row, key=key)) for row in schedule.ranks)
    return with_tags(Schedule(rows), modules, xs, tag_of)


@wrong("chatty")
def asks_before_it_sends(schedule, modules, xs):
    """A note goes ahead of each tensor."""
    works, note = [], torch.zeros(1)

    def send(tensor, dst, needed_by):
        for part in (note, tensor):
            works.append((dist.isend(part, dst, tag=tag_of(needed_by)), tensor))

    def receive(tensor, src, action):
        for part in (note.clone(), tensor):
            dist.recv(part, src, tag=tag_of(action))

    found = run_row(schedule, modules, xs, send, receive)
    for work, _ in works:
        work.wait()
    return found


@wrong("chatty")
def the_chapters_pipeline(schedule, modules, xs):
    """Its notes are messages, too."""
    batch = torch.cat(xs)
    loss = lambda out, y: out.square().sum() * len(batch)  # it takes the mean
    stages = [modules[s] for s in sorted(modules)]
    Pipeline(schedule, stages, loss).step(batch, batch)
    return {s: [p.grad for p in modules[s].parameters()] for s in modules}


@wrong("missing")
def only_the_first_stage(schedule, modules, xs):
    found = with_tags(schedule, modules, xs, tag_of)
    return dict(list(found.items())[:1])


@right
def a_tuple_of_gradients(schedule, modules, xs):
    found = with_tags(schedule, modules, xs, tag_of)
    return {s: tuple(gradients) for s, gradients in reversed(found.items())}


@wrong("wrong")
def half_of_the_gradient(schedule, modules, xs):
    """It is wrong where orders cross, too, but not for that reason."""
    found = with_tags(schedule, modules, xs, tag_of)
    return {s: [x / 2 for x in gradients] for s, gradients in found.items()}


@wrong("missing")
def the_sum_of_each_stage(schedule, modules, xs):
    found = with_tags(schedule, modules, xs, tag_of)
    return {s: gradients[0] for s, gradients in found.items()}


@wrong("hangs")
def sends_forward_and_waits(schedule, modules, xs):
    """Only gradients are on their way while the rank goes on."""
    works = []

    def send(tensor, dst, needed_by):
        works.append(dist.isend(tensor, dst, tag=tag_of(needed_by)))
        if needed_by.kind == "F":
            works[-1].wait()

    receive = lambda t, src, action: dist.recv(t, src, tag=tag_of(action))
    found = run_row(schedule, modules, xs, send, receive)
    for work in works:
        work.wait()
    return found


@wrong("hangs")
def never_receives(schedule, modules, xs):
    """A send that went on would not help: nobody takes what it sends."""
    sends = []
    send = lambda t, dst, by: sends.append(dist.isend(t, dst, tag=tag_of(by)))
    found = run_row(schedule, modules, xs, send, lambda t, src, action: None)
    for work in sends:
        work.wait()
    return found
