"""Parameter servers: some ranks keep the parameters, the others compute gradients.

One step of two workers and one server; S is the size of the parameters:

                server 0              worker 1           worker 2
    pull        parameters ->         <-  S bytes        <-  S bytes
    compute                           own batch          own batch
    push        optimizer step        S bytes  ->        S bytes  ->

A worker only pulls, computes and pushes.  When the server answers is the server's rule:

    rule              an update has                who waits
    synchronous       all gradients of a step      all, for the slowest
    asynchronous      one gradient, maybe stale    nobody
    with a bound      one gradient                 who is too far ahead
    with backups      the first gradients          nobody, for the last

Without a server, `local_sgd` averages parameters now and then, and `TopK` makes
messages shorter.  n ranks, k servers.  Ranks 0 to k-1 serve, the others work.
"""

import torch
import torch.distributed as dist

from .scatter import all_gather

NOTE = 1  # tag of the short messages that announce a gradient


class Flat:
    """The trained parameters of a model are views of `values`, in one tensor.

    So are their gradients, of `grads`; both are [D].  Tied weights stand there
    once, frozen ones do not.  A gradient stays 0 where the loss does not
    depend on a parameter.  ValueError: none is trained, or dtypes are mixed.
    """

    def __init__(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        if len({p.dtype for p in trained}) != 1:
            kinds = ", ".join(sorted({str(p.dtype) for p in trained}))
            raise ValueError(
                f"One flat tensor holds parameters of one dtype, not of "
                f"{kinds or 'none: no parameter requires a gradient'}."
            )
        self.trained = trained
        self.values = torch.cat([p.detach().flatten() for p in trained])
        self.grads = torch.zeros_like(self.values)
        sizes = [p.numel() for p in trained]
        views = self.values.split(sizes), self.grads.split(sizes)
        for p, value, grad in zip(trained, *views, strict=True):
            p.data = value.view(p.shape)
            p.grad = grad.view(p.shape)

    def check(self):
        """Nothing, or ValueError where a gradient is not in `grads` any more."""
        first, end = self.grads.data_ptr(), self.grads.nbytes
        for p in self.trained:
            if p.grad is None or not 0 <= p.grad.data_ptr() - first < max(end, 1):
                raise ValueError(
                    "A task has replaced p.grad, so its gradient would be lost: "
                    "leave zero_grad out, gradients are 0 when a task begins."
                )


# Two servers.  Each part of the parameters has its own.
#
#     pull     0 -> part 0     1 -> part 1
#     push     note, part 0 -> 0     note, part 1 -> 1
def work(model, task, servers=1, group=None):
    """The servers have had the gradients of all tasks of this worker.

    `task(k)` is a forward and a backward pass with the k-th batch.  It returns
    (rows of the batch, whether there is another task).  Returns the number of
    tasks.  A task: S bytes come, and S leave, and a note of 16 to each server.
    """
    _place(servers, group)
    flat = Flat(model)
    values, grads = (x.tensor_split(servers) for x in (flat.values, flat.grads))
    done, more = 0, True
    while more:
        pulls = [
            dist.irecv(part, group=group, group_src=i) for i, part in enumerate(values)
        ]
        _wait(pulls)
        flat.grads.zero_()
        rows, more = task(done)
        flat.check()
        note = torch.tensor([rows, int(more)])
        pushes = []
        for i, part in enumerate(grads):
            pushes.append(dist.isend(note, group=group, group_dst=i, tag=NOTE))
            pushes.append(dist.isend(part, group=group, group_dst=i))
        _wait(pushes)
        done += 1
    return done


class Server:
    """A part of the parameters, its optimizer, and a book of who has which version.

    shard      [D/k], the parameters of this server, with its gradient
    version    the number of updates so far
    clock      {worker: gradients that came from it}
    given      {worker: version of the parameters that it has}
    workers    those that still have tasks; each server begins with another

    `make_optimizer(parameters)` makes a torch optimizer that treats every
    element alone: SGD, Adam.  Li et al. 2014, section 3.
    """

    def __init__(self, model, make_optimizer, servers=1, group=None):
        n, r = _place(servers, group, serves=True)
        parts = Flat(model).values.tensor_split(servers)
        self.shard = torch.nn.Parameter(parts[r].clone())
        self.shard.grad = torch.zeros_like(self.shard)
        self.optimizer = make_optimizer([self.shard])
        ranks = range(servers, n)
        turn = r % len(ranks)
        self.workers = [*ranks[turn:], *ranks[:turn]]
        self.clock = dict.fromkeys(self.workers, 0)
        self.given, self.version, self.group = {}, 0, group

    def give(self, worker):
        """The worker has the parameters as they are now: S/k bytes."""
        shard = self.shard.detach()
        dist.send(shard, group=self.group, group_dst=worker)
        self.given[worker] = self.version

    def take(self, gradient, worker=None):
        """`gradient` has come; (worker, rows, age).  Without a name: whoever is first.

        The age is the number of updates since the worker had its parameters.
        """
        note = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(note, group=self.group, group_src=worker, tag=NOTE)
        worker = dist.get_group_rank(self.group or dist.group.WORLD, source)
        dist.recv(gradient, group=self.group, group_src=worker)
        rows, more = note.tolist()
        self.clock[worker] += 1
        if not more:
            self.workers.remove(worker)
        return worker, rows, self.version - self.given[worker]

    def update(self):
        """One optimizer step with the gradient that the shard has."""
        self.optimizer.step()
        self.version += 1


# Workers 1 and 2, and what the server does, line by line:
#
#     give 1   give 2   take 1   take 2   update
#     give 1   give 2   take 1   take 2   update
def synchronous(server):
    """Every update has the gradients of all workers: a step of one large batch.

    A generator: it yields [ages] after each update.  Gradients are weighted by
    their rows, and added in one fixed order, so the bits repeat.
    """
    total = server.shard.grad
    incoming = torch.empty_like(total)
    while server.workers:
        present, seen = list(server.workers), 0
        for worker in present:
            server.give(worker)
        total.zero_()
        for worker in present:
            _, rows, _ = server.take(incoming, worker)
            total.add_(incoming, alpha=rows)  # sum over the rows so far
            seen += rows
        total /= max(seen, 1)
        server.update()
        yield [0] * len(present)


# Worker 2 is slow; nobody waits for it:
#
#     give 1   give 2   take 1   update   give 1   take 1   update   give 1
#     take 2   update   give 2                     its gradient has age 2
def asynchronous(server, bound=None):
    """Every gradient is an update of its own, in the order in which they come.

    `bound` s: nobody begins a task who has done over s more than the slowest.
    Then n workers make ages of at most (n-1)(2s+1).  Yields [age].
    Dean et al. 2012; the bound: Ho et al. 2013.
    """
    if bound is not None and bound < 0:
        raise ValueError(f"A bound is 0 steps or more, or None, not {bound}.")
    idle = list(server.workers)
    while server.workers:
        slowest = min(server.clock[worker] for worker in server.workers)
        for worker in list(idle):
            if bound is None or server.clock[worker] - slowest <= bound:
                server.give(worker)
                idle.remove(worker)
        worker, _, age = server.take(server.shard.grad)
        server.update()
        if worker in server.workers:
            idle.append(worker)
        yield [age]


# Workers 1 to 3, one spare.  3 is late: its gradient is for an older version.
#
#     give 1 2 3   take 1   take 2   update
#     give 1 2     take 3, drop it, give 3   take 1   take 2   update
def with_backups(server, spare=1):
    """Every update has the first gradients of its step, of all workers but `spare`.

    What comes later is dropped, so no gradient is ever stale.  Yields [0, ...]
    with one number per gradient.  Chen et al. 2016, section 3.
    """
    wanted = len(server.workers) - spare
    if spare < 0 or wanted < 1:
        raise ValueError(f"{wanted + spare} workers cannot spare {spare} of them.")
    total, idle = server.shard.grad, list(server.workers)
    incoming = torch.empty_like(total)
    while server.workers:
        for worker in idle:
            server.give(worker)
        idle, seen, fresh = [], 0, 0
        total.zero_()
        while fresh < wanted and set(server.workers) - set(idle):
            worker, rows, age = server.take(incoming)
            if age == 0:
                total.add_(incoming, alpha=rows)  # sum over the rows so far
                seen, fresh = seen + rows, fresh + 1
                idle += [worker] if worker in server.workers else []
            elif worker in server.workers:
                server.give(worker)
        if fresh:
            total /= max(seen, 1)
            server.update()
            yield [0] * fresh


def average_parameters(flat, allreduce=dist.all_reduce, group=None):
    """`flat.values` of every rank is the mean over ranks; D elements are reduced."""
    allreduce(flat.values, group=group)
    flat.values /= dist.get_world_size(group)


# Every 2 steps; + is a step of the own optimizer, = the mean over ranks:
#
#     rank 0    + + = + + = +  =
#     rank 1    + + = + + = +  =
def local_sgd(model, optimizer, task, every=1, allreduce=dist.all_reduce, group=None):
    """All ranks have trained alone, and averaged every so many steps and at the end.

    `task(k)` as for `work`; all ranks have as many.  `every=None`: one average
    at the end, which is ParallelSGD (Zinkevich et al. 2010).  Returns the
    number of averages.  Stich 2019; every=1 with SGD is the synchronous step.
    """
    if every is not None and every < 1:
        raise ValueError(f"An average comes every 1 step or more, not {every}.")
    flat = Flat(model)
    done, averages, more = 0, 0, True
    while more:
        flat.grads.zero_()
        _, more = task(done)
        flat.check()
        optimizer.step()
        done += 1
        if not more or (every and done % every == 0):
            average_parameters(flat, allreduce, group)
            averages += 1
    return averages


class TopK:
    """Of each gradient the k largest entries leave; the rest waits for the next.

    What has left and what waits is together all that ever came: nothing is
    lost, only late.  `memory=False` throws the rest away.  Stich et al. 2018.
    """

    def __init__(self, k, memory=True):
        self.k, self.memory, self.rest = k, memory, None

    def __call__(self, gradient):
        """(values [k], places [k] as int32) of the largest entries of [D]."""
        if not 1 <= self.k <= gradient.numel():
            raise ValueError(
                f"k is from 1 to {gradient.numel():,}, the entries of the "
                f"gradient, not {self.k}."
            )
        if self.rest is None or not self.memory:
            self.rest = torch.zeros_like(gradient)
        self.rest += gradient
        places = self.rest.abs().topk(self.k).indices
        values = self.rest[places]
        self.rest[places] = 0
        return values, places.to(torch.int32)


def topk_average(gradient, topk, group=None):
    """`gradient` of every rank is the mean over ranks of what their TopK let go.

    A rank sends (n-1) k values and as many places: 8 bytes each in float32.
    `gradient` is [D]; all ranks end with the same bits.
    """
    n = dist.get_world_size(group)
    mine = topk(gradient)
    values, places = ([torch.empty_like(x) for _ in range(n)] for x in mine)
    all_gather(values, mine[0], group)
    all_gather(places, mine[1], group)
    gradient.zero_()
    for value, place in zip(values, places, strict=True):
        gradient.index_add_(0, place, value)  # partial sum of the ranks so far
    gradient /= n


def server_group():
    """A group in which a receive from any source is possible.

    NCCL has none: there it is a second group, of Gloo, whose tensors are in the
    host's memory.  Elsewhere None, the group of all.  All ranks call it.
    """
    nccl = "nccl" in dist.get_backend()
    return dist.new_group(backend="gloo") if nccl else None


def _place(servers, group, serves=False):
    """(ranks in the group, this rank's number); the rank has the role it plays."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if not 1 <= servers < n:
        raise ValueError(
            f"Of {n} ranks at least one serves and one works: {servers} cannot serve."
        )
    if (0 <= r < servers) != serves:
        role = "serves" if serves else "works"
        raise ValueError(
            f"Rank {r} {role}, but ranks 0 to {servers - 1} are the servers."
        )
    return n, r


def _wait(works):
    for each in works:
        each.wait()
