"""Parameter servers: some ranks keep the parameters, the others compute gradients.

One step of two workers and one server, where S is the size of the parameters:

                server 0              worker 1           worker 2
    pull        parameters ->         <-  S bytes        <-  S bytes
    compute                           own batch          own batch
    push        optimizer step        S bytes  ->        S bytes  ->

A worker only pulls, computes and pushes.  The server's rule decides when it answers:

    rule              an update uses               who waits
    synchronous       all gradients of a step      every worker, for the slowest
    asynchronous      one gradient, maybe stale    no worker
    with a bound      one gradient                 workers that are too far ahead
    with backups      the first gradients          no worker for the last ones

Without a server, `average_parameters` replaces all replicas by their mean.  n ranks,
k servers.  Ranks 0 to k-1 serve, the others work.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

NOTE = 1  # tag of the short messages that announce a gradient


class Flat:
    """Put the trained parameters of a model into one tensor, `values` [D].

    The parameters become views of it, and their gradients views of `grads`
    [D].  Tied weights are in it once, frozen ones are not.  A gradient stays 0
    where the loss does not depend on a parameter.  Raises ValueError if no
    parameter is trained, or if their dtypes differ.
    """

    def __init__(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        if len(kinds := {str(p.dtype) for p in trained}) != 1:
            found = ", ".join(sorted(kinds)) or "no trained parameter"
            raise ValueError(f"The parameters need one dtype. Found: {found}.")
        self.trained = trained
        self.values = torch.cat([p.detach().flatten() for p in trained])
        self.grads = torch.zeros_like(self.values)
        sizes = [p.numel() for p in trained]
        views = self.values.split(sizes), self.grads.split(sizes)
        for p, value, grad in zip(trained, *views, strict=True):
            p.data, p.grad = value.view(p.shape), grad.view(p.shape)


def gradient_of(flat, task, k):
    """Compute the gradient of task k into `flat.grads`; return its answer.

    Raises ValueError if the task has put its gradients elsewhere.
    """
    flat.grads.zero_()
    answer = task(k)
    start = flat.grads.data_ptr()
    addresses = range(start, start + flat.grads.nbytes + 1)
    for p in flat.trained:
        if p.grad is None or p.grad.data_ptr() not in addresses:
            raise ValueError(
                "The task has replaced p.grad, so its gradient would be lost. "
                "Leave zero_grad out: gradients are 0 when a task begins."
            )
    return answer


# Two servers, each with a part of the parameters:
#
#     pull     <- 0: part 0            <- 1: part 1
#     push     note, part 0 -> 0       note, part 1 -> 1
def work(model, task, servers=1, group=None):
    """Compute this worker's tasks, and send their gradients to the servers.

    `task(k)` runs forward and backward with the k-th batch, and returns (rows
    of the batch, whether there is another task).  Returns the number of tasks.
    In each task S bytes come and S leave, with a note of 16 to each server.
    """
    role(servers, group)
    flat = Flat(model)
    values = flat.values.tensor_split(servers)  # servers x [D/k]
    grads = flat.grads.tensor_split(servers)
    pulls, done = _pulls(values, group), 0
    while pulls:
        _wait(pulls)
        rows, more = gradient_of(flat, task, done)
        note = torch.tensor([rows, int(more)])
        pushes, pulls = _pushes(note, grads, group), []
        for i, push in enumerate(pushes):
            _wait(push)
            # server i may answer before the other servers have this push
            pulls += _pulls(values[i : i + 1], group, i) if more else []
        done += 1
    return done


def _pulls(parts, group, first=0):
    numbered = enumerate(parts, first)
    return [dist.irecv(part, group=group, group_src=i) for i, part in numbered]


def _pushes(note, parts, group):
    works = []  # two for each server
    for i, part in enumerate(parts):
        note_sent = dist.isend(note, group=group, group_dst=i, tag=NOTE)
        works.append((note_sent, dist.isend(part, group=group, group_dst=i)))
    return works


def _wait(works):
    for each in works:
        each.wait()


@dataclass
class Server:
    """A part of the parameters, its optimizer, and who has which version.

    shard      [D/k], the parameters of this server, with their gradient
    workers    that still have tasks; each server begins with a different one
    clock      {worker: number of gradients that came from it}
    given      {worker: version of the parameters that it has}
    version    the number of updates so far
    """

    shard: torch.nn.Parameter
    optimizer: torch.optim.Optimizer
    workers: list
    clock: dict
    given: dict
    version: int = 0
    group: object = None


def serve(model, make_optimizer, servers=1, group=None):
    """Make the `Server` of this rank's part of the parameters.

    A rule drives it.  `make_optimizer(parameters)` makes a torch optimizer
    that treats each element by itself, as SGD and Adam do.  Li et al. 2014,
    section 3.
    """
    n, r = role(servers, group, serves=True)
    shard = Flat(model).values.tensor_split(servers)[r].clone()  # [D/k]
    shard = torch.nn.Parameter(shard)
    shard.grad = torch.zeros_like(shard)
    workers = list(range(servers, n))
    turn = r % len(workers)
    workers = workers[turn:] + workers[:turn]
    clock, given = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    optimizer = make_optimizer([shard])
    return Server(shard, optimizer, workers, clock, given, group=group)


def give(server, worker):
    """Send a worker the parameters as they are now: S/k bytes."""
    shard = server.shard.detach()
    dist.send(shard, group=server.group, group_dst=worker)
    server.given[worker] = server.version


def take(server, gradient, worker=None):
    """Receive a gradient into `gradient`, and return (worker, rows, age).

    It comes from `worker`, or from whichever worker is first.  Its age is the
    number of updates since this worker was given its parameters.
    """
    group, note = server.group, torch.zeros(2, dtype=torch.int64)
    source = dist.recv(note, group=group, group_src=worker, tag=NOTE)
    worker = dist.get_group_rank(group or dist.group.WORLD, source)
    dist.recv(gradient, group=group, group_src=worker)
    rows, more = note.tolist()
    server.clock[worker] += 1
    if not more:
        server.workers.remove(worker)
    return worker, rows, server.version - server.given[worker]


def update(server):
    """Make one optimizer step with the gradient that the shard has."""
    server.optimizer.step()
    server.version += 1


# Workers 1 and 2, and what the server does, line by line:
#
#     give 1   give 2   take 1   take 2   update
#     give 1   give 2   take 1   take 2   update
def synchronous(server):
    """Update with the gradients of all workers, as one large batch would.

    A generator that yields [ages] after each update.  Gradients are weighted
    by their rows and added in a fixed order, so the bits repeat.
    """
    total = server.shard.grad
    incoming = torch.empty_like(total)
    while server.workers:
        present, seen = list(server.workers), 0
        for worker in present:
            give(server, worker)
        total.zero_()
        for worker in present:
            _, rows, _ = take(server, incoming, worker)
            total.add_(incoming, alpha=rows)  # sum over the rows so far
            seen += rows
        total /= max(seen, 1)
        update(server)
        yield [0] * len(present)


# Worker 2 is slow, and no worker waits for it:
#
#     give 1   give 2   take 1   update   give 1   take 1   update   give 1
#     take 2   update   give 2                     its gradient has age 2
def asynchronous(server, bound=None):
    """Update with each gradient by itself, in the order in which they come.

    With a `bound` s, no worker begins a task that has done over s more than
    the slowest.  The ages of n workers are then at most (n-1)(2s+1).  Yields
    [age].  Dean et al. 2012; the bound: Ho et al. 2013.
    """
    if bound is not None and bound < 0:
        raise ValueError(f"bound must be None or at least 0, not {bound}.")
    idle = list(server.workers)
    while server.workers:
        slowest = min(server.clock[worker] for worker in server.workers)
        for worker in list(idle):
            if bound is None or server.clock[worker] - slowest <= bound:
                give(server, worker)
                idle.remove(worker)
        worker, _, age = take(server, server.shard.grad)
        update(server)
        if worker in server.workers:
            idle.append(worker)
        yield [age]


# Workers 1 to 3, one spare.  Worker 3 is late: its gradient is too old.
#
#     give 1 2 3   take 1   take 2   update
#     give 1 2     take 3, drop it, give 3   take 1   take 2   update
def with_backups(server, spare=1):
    """Update with the first gradients of a step, from all but `spare` workers.

    Later ones are dropped, so none is ever stale.  Yields [0, ...], a number
    for each gradient.  Chen et al. 2016, section 3.
    """
    idle, total = list(server.workers), server.shard.grad
    wanted, incoming = len(idle) - spare, torch.empty_like(total)
    if spare < 0 or wanted < 1:
        text = f"{len(idle)} workers cannot spare {spare}. At least one must"
        raise ValueError(f"{text} work, and spare must be at least 0.")
    while server.workers:
        for worker in idle:
            give(server, worker)
        idle, rows = [], []
        total.zero_()
        while len(rows) < wanted and set(server.workers) - set(idle):
            count = _fresh(server, incoming, idle)
            if count is not None:
                total.add_(incoming, alpha=count)  # sum over the rows so far
                rows.append(count)
        if rows:
            total /= max(sum(rows), 1)
            update(server)
            yield [0] * len(rows)


def _fresh(server, incoming, idle):
    """Return the rows of a gradient for this version; None if it is late."""
    worker, rows, age = take(server, incoming)
    if age > 0 and worker in server.workers:
        give(server, worker)  # it continues with this version
    elif worker in server.workers:
        idle.append(worker)
    return rows if age == 0 else None


def average_parameters(flat, allreduce=dist.all_reduce, group=None):
    """Replace `flat.values` by the mean over all ranks: one all-reduce.

    Calling it every few steps is local SGD.  Stich 2019.
    """
    allreduce(flat.values, group=group)
    flat.values /= dist.get_world_size(group)


def role(servers, group, serves=False):
    """Check this rank's role, and return (size of the group, this rank)."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if not 1 <= servers < n:
        raise ValueError(
            "At least one rank must serve and one must work, but "
            f"{servers} of {n} ranks would serve."
        )
    if (0 <= r < servers) != serves:
        does = "serves" if serves else "works"
        raise ValueError(
            f"Rank {r} {does}, but ranks 0 to {servers - 1} are the servers."
        )
    return n, r
