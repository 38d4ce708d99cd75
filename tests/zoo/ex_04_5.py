"""04.5 Whoever is free: hand_out(tasks, work)."""

import math
import threading

import torch
import torch.distributed as dist

from zoo import right, wrong


def place():
    return dist.get_world_size(), dist.get_rank()


def number(x):
    return torch.tensor([x], dtype=torch.float64)


def serve(work):
    """A worker: task in, result out, until there is no number."""
    ball = number(0.0)
    while True:
        dist.recv(ball, 0)
        if math.isnan(ball.item()):
            return
        dist.send(number(work(ball.item())), 0)


def stop(workers):
    for worker in workers:
        dist.send(number(math.nan), worker)


@right
def stops_each_as_soon_as_nothing_is_left(tasks, work):
    """The number of the task travels with it, in a message of its own kind."""
    n, r = place()
    if r > 0:
        pair = torch.zeros(2, dtype=torch.float64)
        while True:
            dist.recv(pair, src=0, tag=7)
            if pair[0] < 0:
                return None
            pair[1] = work(pair[1].item())
            dist.send(pair, dst=0, tag=8)
    queue = [torch.tensor([i, x], dtype=torch.float64) for i, x in enumerate(tasks)]
    queue.reverse()
    over = torch.tensor([-1.0, 0.0], dtype=torch.float64)
    results, busy = {}, 0
    for worker in range(1, n):
        busy += bool(queue)
        dist.send(queue.pop() if queue else over, worker, tag=7)
    while busy:
        pair = torch.zeros(2, dtype=torch.float64)
        worker = dist.recv(pair, tag=8)
        results[int(pair[0])] = pair[1].item()
        busy -= not queue
        dist.send(queue.pop() if queue else over, worker, tag=7)
    return [results[i] for i in range(len(tasks))]


@right
def sends_do_not_block(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    results, doing, works, todo = list(tasks), {}, [], 0

    def give(worker):
        nonlocal todo
        if todo < len(tasks):
            works.append(dist.isend(number(tasks[todo]), worker))
            doing[worker] = todo
            todo += 1
        else:
            works.append(dist.isend(number(math.nan), worker))

    for worker in range(1, n):
        give(worker)
    while doing:
        ball = number(0.0)
        worker = dist.recv(ball)
        results[doing.pop(worker)] = ball.item()
        give(worker)
    for each in works:
        each.wait()
    return results


@right
def in_two_functions(tasks, work):
    """The worker is told in int32 whether there is a task, in the same message."""
    n, r = place()

    def ask(code):
        return torch.tensor([code, 0.0], dtype=torch.float64)

    if r:
        box = ask(0)
        dist.recv(box, 0)
        while box[0] == 1:
            dist.send(torch.DoubleTensor([work(float(box[1]))]), 0)
            dist.recv(box, 0)
        return None
    owner, results = [], [None] * len(tasks)
    for i, task in enumerate(tasks):
        if i < n - 1:
            worker = i + 1
        else:
            worker = collect_one(owner, results)
        box = ask(1)
        box[1] = task
        dist.send(box, worker)
        owner.append(worker)
    while None in results:
        collect_one(owner, results)
    for worker in range(n - 1, 0, -1):
        dist.send(ask(0), worker)
    return results


def collect_one(owner, results):
    """A result is in its place: of the open task of the worker that sent it."""
    ball = number(0.0)
    worker = dist.recv(ball)
    i = max(i for i, who in enumerate(owner) if who == worker)
    results[i] = ball.item()
    return worker


def master(tasks, n, receive, place_of=None):
    """Rank 0, with one thing that can be wrong: from whom it receives."""
    results, doing = [None] * len(tasks), {}
    for i, task in enumerate(tasks[: n - 1]):
        dist.send(number(task), i + 1)
        doing[i + 1] = i
    todo, order = len(doing), 0
    while doing:
        ball = number(0.0)
        worker = receive(ball, doing)
        i = doing.pop(worker)
        results[i if place_of is None else order] = ball.item()
        order += 1
        if todo < len(tasks):
            dist.send(number(tasks[todo]), worker)
            doing[worker] = todo
            todo += 1
    return results


def from_any(ball, doing):
    return dist.recv(ball)


@wrong("rank order")
def hears_them_in_turn(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)

    def oldest(ball, doing):
        worker = min(doing, key=doing.get)
        dist.recv(ball, worker)
        return worker

    results = master(tasks, n, oldest)
    stop(range(1, n))
    return results


@wrong("equal shares")
def dealt_like_cards(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    shares = {w: list(range(w - 1, len(tasks), n - 1)) for w in range(1, n)}
    results, doing = [None] * len(tasks), {}
    for worker, share in shares.items():
        if share:
            doing[worker] = share.pop(0)
            dist.send(number(tasks[doing[worker]]), worker)
    while doing:
        ball = number(0.0)
        worker = dist.recv(ball)
        results[doing.pop(worker)] = ball.item()
        if shares[worker]:
            doing[worker] = shares[worker].pop(0)
            dist.send(number(tasks[doing[worker]]), worker)
    stop(range(1, n))
    return results


@wrong("arrival order")
def as_they_come(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    results = master(tasks, n, from_any, place_of="order")
    stop(range(1, n))
    return results


@wrong("no stop")
def nobody_says_stop(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    return master(tasks, n, from_any)


@wrong("few tasks")
def a_task_for_everyone(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    for worker in range(1, n):
        assert tasks[worker - 1] > 0
    results = master(tasks, n, from_any)
    stop(range(1, n))
    return results


@wrong("few tasks")
def waits_for_all_workers(tasks, work):
    n, r = place()
    if r > 0:
        return serve(work)
    results, doing = [None] * len(tasks), {}
    for i, task in enumerate(tasks[: n - 1]):
        dist.send(number(task), i + 1)
        doing[i + 1] = i
    for i in range(len(doing), len(tasks) + n - 1):
        ball = number(0.0)
        worker = dist.recv(ball)
        results[doing[worker]] = ball.item()
        if i < len(tasks):
            dist.send(number(tasks[i]), worker)
            doing[worker] = i
    stop(range(1, n))
    return results


@wrong("rounded")
def in_single_precision(tasks, work):
    n, r = place()
    if r > 0:
        return serve(lambda task: torch.tensor(work(task)).item())
    results = master(tasks, n, from_any)
    stop(range(1, n))
    return results


@wrong("rank 0 works")
def does_it_all_itself(tasks, work):
    if dist.get_rank() == 0:
        return [work(task) for task in tasks]
    return None


@wrong("asks for work")
def workers_ask_first(tasks, work):
    n, r = place()
    if r > 0:
        dist.send(number(math.nan), 0)
        return serve(work)
    results, doing, todo, stopped = [None] * len(tasks), {}, 0, 0
    for worker in range(1, n):
        dist.recv(number(0.0), worker)
    while stopped < n - 1:
        if todo < min(n - 1, len(tasks)):
            worker = todo + 1
        elif doing:
            ball = number(0.0)
            worker = dist.recv(ball)
            results[doing.pop(worker)] = ball.item()
        if todo < len(tasks):
            dist.send(number(tasks[todo]), worker)
            doing[worker] = todo
            todo += 1
        elif not doing:
            stop(range(1, n))
            stopped = n - 1
    return results


@wrong("native collective")
def gathered_by_torch(tasks, work):
    n, r = place()
    everything = [tasks]
    dist.broadcast_object_list(everything, src=0)
    mine = [work(task) for task in everything[0][r::n]]
    parts = [None] * n if r == 0 else None
    dist.gather_object(mine, parts, dst=0)
    if r == 0:
        return [parts[i % n][i // n] for i in range(len(tasks))]
    return None


@wrong("costly")
def rank_0_takes_a_share(tasks, work):
    """the slow worker 1 gets its first task with a minus and echoes
    it; rank 0 computes that one itself."""
    n, r = dist.get_world_size(), dist.get_rank()
    ball = torch.zeros(1, dtype=torch.float64)
    if r:
        while True:
            dist.recv(ball, 0)
            if ball.item() == 0:
                return None
            if ball.item() > 0:
                ball[0] = work(ball.item())
            dist.send(ball, 0)
    m = len(tasks)
    results, owner, nxt = [None] * m, {}, 0
    mine = None
    for w in range(1, n):
        if nxt < m:
            if w == 1 and n > 2 and m > n:
                mine = nxt
                dist.send(ball.fill_(-tasks[nxt]), w)
            else:
                dist.send(ball.fill_(tasks[nxt]), w)
            owner[w] = nxt
            nxt += 1
        else:
            dist.send(ball.fill_(0), w)
    if mine is not None:
        results[mine] = work(tasks[mine])
    while owner:
        w = dist.recv(ball)
        i = owner.pop(w)
        if results[i] is None:
            results[i] = ball.item()
        if nxt < m and not (w == 1 and mine is not None):
            owner[w] = nxt
            dist.send(ball.fill_(tasks[nxt]), w)
            nxt += 1
        else:
            dist.send(ball.fill_(0), w)
    return results


@wrong("costly")
def work_in_a_thread_of_its_own(tasks, work):
    """So no rank is charged for it."""

    def unseen(task):
        box = []
        thread = threading.Thread(target=lambda: box.append(work(task)))
        thread.start()
        thread.join()
        return box[0]

    return stops_each_as_soon_as_nothing_is_left(tasks, unseen)


@wrong("hangs")
def a_result_of_0_is_none_yet(tasks, work):
    """a result may be any number; 0 does not say that it is missing."""
    n, r = place()
    if r > 0:
        return serve(work)
    results, doing, todo = [0.0] * len(tasks), {}, 0
    while todo < min(n - 1, len(tasks)):
        dist.send(number(tasks[todo]), todo + 1)
        doing[todo + 1] = todo
        todo += 1
    while 0.0 in results:
        ball = number(0.0)
        worker = dist.recv(ball)
        results[doing.pop(worker)] = ball.item()
        if todo < len(tasks):
            dist.send(number(tasks[todo]), worker)
            doing[worker] = todo
            todo += 1
    stop(range(1, n))
    return results


@wrong("costly")
def the_number_of_a_task_travels_before_it(tasks, work):
    """right, with m messages more than are needed."""
    n, r = place()
    ball = number(0.0)
    if r > 0:
        while True:
            dist.recv(ball, 0)
            if math.isnan(ball.item()):
                return None
            dist.recv(ball, 0)
            dist.send(number(work(ball.item())), 0)
    results, doing = [None] * len(tasks), {}

    def hear():
        worker = dist.recv(ball)
        results[doing.pop(worker)] = ball.item()
        return worker

    for i, task in enumerate(tasks):
        worker = i + 1 if i < n - 1 else hear()
        doing[worker] = i
        dist.send(number(i), worker)
        dist.send(number(task), worker)
    while doing:
        hear()
    stop(range(1, n))
    return results


@wrong("hangs")
def rank_0_wants_to_hear_of_the_end(tasks, work):
    """a worker that has been told to stop says nothing more; m does not matter."""
    n, r = place()
    if r > 0:
        return serve(work)
    results = master(tasks, n, from_any)
    stop(range(1, n))
    for _ in range(1, n):
        dist.recv(number(0.0))
    return results
