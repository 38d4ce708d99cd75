"""20.1 The plan."""

import functools
from dataclasses import asdict

from ...planning import Model, Plan, cost, plans, predict
from ...sim.cluster import Cluster
from ..judging import Case, Exercise, Requirement
from ..signs import breaks, wrong

# spec: (network, network cards of a node, price of a GPU hour)
OFFERS = {"8xV100": ("100Gb", 1, 0.9), "8xA100": ("100Gb", 1, 1.5)}
OFFERS |= {"2x8xA100": ("100Gb", 1, 1.6), "4x8xA100": ("200Gb", 8, 1.9)}
OFFERS |= {"8xH100": ("100Gb", 1, 2.6), "2x8xH100": ("400Gb", 8, 3.1)}
OFFERS |= {"4x4xA100": ("25Gb", 1, 1.4)}
# offers, how far the limit goes, gigabytes that stay free; sizes of the model
SMALL, MIDDLE, LARGE = (24, 2048), (32, 4096), (40, 5120)
GIVEN = [("8xA100", "plenty", 0, SMALL), ("8xA100", "plenty", 30, MIDDLE)]
GIVEN += [("8xA100 2x8xA100", "middle", 4, MIDDLE), ("4x4xA100", "plenty", 8, MIDDLE)]
GIVEN += [("4x8xA100 8xA100 8xH100", "middle", 10, LARGE)]
GIVEN += [("8xV100 8xA100", "none", 2, SMALL), ("8xV100", "plenty", 29, LARGE)]
GIVEN += [("2x8xH100 2x8xA100", "middle", 45, MIDDLE)]
SLOWER = 1.05  # times the best


def cases(rng, wanted="seconds"):
    """One offer and several; room and money that decide, suffice, or do not.

    wanted    what is to be small: the "seconds" of a step within a budget, or
              the "money" of a run within some hours
    """
    for names, room, free, (layers, hidden) in GIVEN:
        layers -= 2 * int(rng.integers(4))
        hidden = hidden * int(rng.integers(3, 5)) // 4
        model = Model(layers, hidden, hidden // 128, 51200, 2048)
        batch = 32 * int(rng.integers(2, 6))
        steps = 1000 * int(rng.integers(5, 40))
        offers = tuple(offer(rng, spec) for spec in rng.permutation(names.split()))
        free, given = free * 10**9, (model, offers, batch, steps)
        limit = limit_of(given, free, room, wanted)
        facts = {"given": (*given, limit, free), "wanted": wanted}
        names = " or ".join(cluster.name for cluster, _ in offers)
        text = f"{layers} layers of {hidden}, {batch} rows, {names}, {room}"
        text += f", {free // 10**9} GB free"
        expected, facts["best"] = best(*facts["given"], wanted)
        yield Case(1, text, [facts["given"]], [expected], facts)


def offer(rng, spec):
    """The cluster, and a price that is up to a fifth off the usual one."""
    network, cards, price = OFFERS[str(spec)]
    cluster = Cluster.of(str(spec), network=network, cards=cards)
    return cluster, round(price * rng.uniform(0.8, 1.2), 2)


@functools.cache
def fastest(model, cluster, batch, free):
    """The first plan that leaves so many bytes free, or None."""
    share = free / cluster.gpu.memory
    return next(iter(plans(model, cluster, batch, reserve=share)), None)


def found(model, offers, batch, steps, free):
    """[(seconds, money, hours, number of the offer, plan)] of each offer's best."""
    for k, (cluster, price) in enumerate(offers):
        one = fastest(model, cluster, batch, free)
        if one is not None:
            money = cost(one, steps, price)[1]
            yield one.seconds, money, one.seconds * steps / 3600, k, one.plan


def limit_of(given, free, room, wanted):
    """A budget (or hours): for all offers, for none, or without the best one."""
    ranked = sorted(found(*given, free), key=lambda x: x[wanted == "money"])
    limits = [x[1 if wanted == "seconds" else 2] for x in ranked] or [1000.0]
    if room == "middle":
        less = [x for x in limits[1:] if x < limits[0]]
        return round((limits[0] * max(less)) ** 0.5, 2) if less else 2 * limits[0]
    return round({"none": 0.5 * min(limits), "plenty": 20 * max(limits)}[room], 2)


def best(model, offers, batch, steps, limit, free, wanted):
    """((number of the offer, degrees), what it takes), or (None, 1)."""
    every = found(model, offers, batch, steps, free)
    there = [x for x in every if x[1 if wanted == "seconds" else 2] <= limit]
    if not there:
        return None, 1.0
    one = min(there, key=lambda x: x[wanted == "money"])
    return (one[3], asdict(one[4])), one[wanted == "money"]


# What is wrong with a plan


def judged(came, case):
    """(reason, or "" if the plan will do; Plan, Cluster; what it takes)."""
    model, offers, batch, steps, limit, free = case.facts["given"]
    try:
        k, degrees = came
        if isinstance(k, bool) or k < 0:
            return "form", None, None, 0.0
        (cluster, price), plan = offers[range(len(offers))[k]], Plan(**degrees)
    except (TypeError, ValueError, IndexError, KeyError):
        return "form", None, None, 0.0
    if plan.ranks != cluster.n:
        return "ranks", plan, cluster, 0.0
    if batch % (plan.data * plan.micro_batch):
        return "batch", plan, cluster, 0.0
    if plan.obstacle(model, batch):
        return "divides", plan, cluster, 0.0
    one = predict(model, cluster, plan, batch)
    money, hours = cost(one, steps, price)[1], one.seconds * steps / 3600
    public = case.facts["wanted"] == "seconds"
    takes = one.seconds if public else money
    if one.memory > cluster.gpu.memory - free:
        return "memory", plan, cluster, takes
    if (money if public else hours) > limit:
        return "limit", plan, cluster, takes
    return "", plan, cluster, takes


def agrees(came, wanted, case):
    """A plan that will do where there is one, else None."""
    if wanted is None or came is None:
        return came is wanted
    return judged(came, case)[0] == ""


def times_the_best(attempt):
    came = attempt.came[0]
    if came is None or judged(came, attempt.case)[0]:
        return 1.0
    return judged(came, attempt.case)[3] / attempt.case.facts["best"]


FAST = Requirement(
    "beside the best plan",
    times_the_best,
    lambda case: SLOWER,
    exactly=False,
    show="{:.3f} times".format,
)


def because(reason):
    return lambda a: (
        wrong(a) and a.came[0] is not None and judged(a.came[0], a.case)[0] == reason
    )


def across(attempt):
    """It is slow, and its tensor ranks sit in several nodes."""
    if not breaks(FAST)(attempt):
        return False
    _, plan, cluster, _ = judged(attempt.came[0], attempt.case)
    return plan.tensor > (cluster.per_node or plan.tensor)


def recomputes(attempt):
    """It is slow, and it would be as good as the best without recomputing so much."""
    if not breaks(FAST)(attempt) or attempt.came[0][1].get("recompute") != "full":
        return False
    (k, degrees), case = attempt.came[0], attempt.case
    less = [(k, degrees | {"recompute": how}) for how in ("none", "selective")]
    found = [judged(each, case) for each in less]
    return any(
        not reason and takes <= SLOWER * case.facts["best"]
        for reason, *_, takes in found
    )


exercise = Exercise(
    "20.1",
    cases,
    [FAST],
    {
        **{each: because(each) for each in ("form", "ranks", "batch", "divides")},
        "memory": because("memory"),
        "limit": because("limit"),
        "gives up": lambda a: wrong(a) and a.came[0] is None,
        "across nodes": across,
        "recomputes": recomputes,
        "slow": breaks(FAST),
    },
    agrees=agrees,
    processes=(),
)
