"""20.1 The plan: choose(model, offers, batch, steps, budget, reserve)."""

import functools
from dataclasses import asdict

from d2lpar.planning import Plan, cost, plans, predict
from zoo import right, wrong


@functools.cache
def fitting(model, cluster, batch, reserve):
    """All plans that leave so many bytes free, best first."""
    return plans(model, cluster, batch, reserve=reserve / cluster.gpu.memory)


def every(model, offers, batch, steps, reserve):
    """(seconds, money, offer, plan) of each offer's best plan."""
    for k, (cluster, price) in enumerate(offers):
        for one in fitting(model, cluster, batch, reserve)[:1]:
            yield one.seconds, cost(one, steps, price)[1], k, one.plan


def fastest(found):
    *_, k, plan = min(found, key=lambda one: one[0])
    return k, asdict(plan)


def paid(model, offers, batch, steps, budget, reserve):
    found = every(model, offers, batch, steps, reserve)
    return [one for one in found if one[1] <= budget]


@right
def of_all_offers(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    return fastest(found) if found else None


@right
def by_predict_alone(model, offers, batch, steps, budget, reserve):
    """A search of its own, which names only what differs from a plain plan."""
    best = None
    for k, (cluster, price) in enumerate(offers):
        for kind in grid(cluster.n):
            plan = Plan(**kind)
            if plan.obstacle(model, batch):
                continue
            one = predict(model, cluster, plan, batch)
            enough = one.memory <= cluster.gpu.memory - reserve
            if enough and cost(one, steps, price)[1] <= budget:
                if best is None or one.seconds < best[0]:
                    best = one.seconds, [k, kind]
    return best and best[1]


def grid(n):
    powers = [2**i for i in range(n.bit_length()) if n % 2**i == 0]
    for tensor in powers:
        for pipeline in powers:
            if n % (tensor * pipeline):
                continue
            kind = {"tensor": tensor, "pipeline": pipeline}
            kind |= {"data": n // tensor // pipeline}
            kind |= {"sequence_parallel": tensor > 1}
            for b in (1, 2, 4, 8):
                for v in (1, 2, 3, 4) if pipeline > 1 else (1,):
                    for zero in (1, 3):
                        for how in ("none", "selective", "full"):
                            more = {"micro_batch": b, "interleave": v}
                            yield kind | more | {"zero": zero, "recompute": how}


@wrong("memory")
def takes_all_memory(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, 0)
    return fastest(found) if found else None


@wrong("limit")
def the_fastest_of_all(model, offers, batch, steps, budget, reserve):
    found = list(every(model, offers, batch, steps, reserve))
    return fastest(found) if found else None


@wrong("gives up")
def only_the_fastest_offer(model, offers, batch, steps, budget, reserve):
    found = sorted(every(model, offers, batch, steps, reserve), key=lambda one: one[0])
    return fastest(found[:1]) if found and found[0][1] <= budget else None


@wrong("form")
def the_plan_itself(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    if not found:
        return None
    *_, k, plan = min(found, key=lambda one: one[0])
    return k, plan


@wrong("form")
def counted_from_the_end(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    if not found:
        return None
    k, degrees = fastest(found)
    return k - len(offers), degrees


@wrong("ranks")
def for_one_node(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    if not found:
        return None
    k, degrees = fastest(found)
    return k, degrees | {"data": 2 * degrees["data"]}


@wrong("batch")
def any_micro_batch(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    if not found:
        return None
    k, degrees = fastest(found)
    return k, degrees | {"micro_batch": 7}


@wrong("divides")
def more_tensor_than_heads(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, budget, reserve)
    if not found:
        return None
    k, _ = fastest(found)
    n = offers[k][0].n
    return k, {"pipeline": n, "interleave": model.layers}


@wrong("across nodes")
def all_tensor(model, offers, batch, steps, budget, reserve):
    """Where a cluster has several small nodes, tensor ranks fill all of them."""
    found = paid(model, offers, batch, steps, 1e3 * budget, reserve)
    there = paid(model, offers, batch, steps, budget, reserve)
    cluster = offers[0][0]
    if there and found and cluster.per_node == 4:
        degrees = {"tensor": 8, "data": cluster.n // 8, "sequence_parallel": True}
        return 0, degrees | {"micro_batch": 4, "zero": 3}
    return fastest(there) if there else None


@wrong("recomputes")
def recomputes_everything(model, offers, batch, steps, budget, reserve):
    found = paid(model, offers, batch, steps, 0.6 * budget, reserve)
    there = paid(model, offers, batch, steps, budget, reserve)
    if not there:
        return None
    k, degrees = fastest(there)
    return k, degrees | ({"recompute": "full"} if found else {})


@wrong("slow")
def the_first_that_fits(model, offers, batch, steps, budget, reserve):
    """The last of the list instead of the first."""
    for k, (cluster, price) in enumerate(offers):
        for one in reversed(fitting(model, cluster, batch, reserve)):
            if cost(one, steps, price)[1] <= budget:
                return k, asdict(one.plan)
    return None
