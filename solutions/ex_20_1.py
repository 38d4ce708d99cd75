"""20.1 The plan: choose(model, offers, batch, steps, budget, reserve)."""

import functools
from dataclasses import asdict

from d2lpar import Cluster
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import breaks, wrong
from d2lpar.planning import Model, Plan, cost, plans, predict

# spec: (network, network cards of a node, price of a GPU hour)
OFFERS = {"8xV100": ("100Gb", 1, 0.9), "8xA100": ("100Gb", 1, 1.5)}
OFFERS |= {"2x8xA100": ("100Gb", 1, 1.6), "4x8xA100": ("200Gb", 8, 1.9)}
OFFERS |= {"8xH100": ("100Gb", 1, 2.6), "2x8xH100": ("400Gb", 8, 3.1)}
OFFERS |= {"4x4xA100": ("25Gb", 1, 1.4), "1xA100": ("25Gb", 1, 1.5)}
OFFERS |= {"6xA100": ("25Gb", 1, 1.5), "4x8xH100": ("400Gb", 8, 7.0)}
# offers, how far the limit goes, gigabytes that stay free; sizes of the model
SMALL, MIDDLE, LARGE = (24, 2048), (32, 4096), (40, 5120)
GIVEN = [("8xA100", "plenty", 0, SMALL), ("8xA100", "plenty", 30, MIDDLE)]
GIVEN += [("1xA100 6xA100", "plenty", 3, SMALL), ("8xV100 8xA100", "none", 2, SMALL)]
GIVEN += [("8xA100 2x8xA100", "middle", 4, MIDDLE), ("4x4xA100", "plenty", 8, MIDDLE)]
GIVEN += [("8xA100 4x8xH100 2x8xA100", "plenty", 5, MIDDLE)]
GIVEN += [("4x8xA100 8xA100 8xH100", "middle", 10, LARGE)]
GIVEN += [("8xV100", "plenty", 29, LARGE), ("8xV100 8xA100", "plenty", 40, SMALL)]
GIVEN += [("2x8xH100 2x8xA100", "middle", 45, MIDDLE)]


def made(least, rng):
    """One offer and several; room and a limit that decide, suffice, or do not."""
    for names, room, free, (layers, hidden) in GIVEN:
        layers -= 2 * int(rng.integers(4))
        hidden = hidden * int(rng.integers(3, 5)) // 4
        model = Model(layers, hidden, hidden // 128, 51200, 2048)
        batch, steps = 32 * int(rng.integers(2, 6)), 1000 * int(rng.integers(5, 40))
        offers = tuple(offer(rng, spec) for spec in rng.permutation(names.split()))
        free, asked = free * 10**9, (model, offers, batch, steps)
        found = dict(enumerate(fastest(model, c, batch, free) for c, _ in offers))
        found = {k: one for k, one in found.items() if one}
        takes = {k: figures(one, steps, offers[k], least) for k, one in found.items()}
        limit = limit_of(sorted(takes.values()), room)
        able = [(first, k) for k, (first, second) in takes.items() if second <= limit]
        best = min(able, default=None)
        facts = {"least": least, "takes": takes, "free": free, "best": best}
        text = f"{layers} layers of {hidden}, {batch} rows, "
        text += " or ".join(cluster.name for cluster, _ in offers)
        text += f", {room}, {free // 10**9} GB free"
        degrees = best and (best[1], asdict(found[best[1]].plan))
        yield Case(1, text, [(*asked, limit, free)], [degrees], facts)


def offer(rng, spec):
    """The cluster, and a price that is up to a fifth off the usual one."""
    network, cards, price = OFFERS[str(spec)]
    cluster = Cluster.of(str(spec), network=network, cards=cards)
    return cluster, round(price * rng.uniform(0.8, 1.2), 2)


@functools.cache
def fastest(model, cluster, batch, free):
    """The best Prediction of what leaves so many bytes free, or None."""
    share = free / cluster.gpu.memory
    able = plans(model, cluster, batch, reserve=share) if share < 1 else []
    return able[0] if able else None


def figures(one, steps, offer, least):
    """(what is to be small, what has a limit) of a Prediction."""
    money, hours = cost(one, steps, offer[1])[1], one.seconds * steps / 3600
    return (one.seconds, money) if least == "seconds" else (money, hours)


def limit_of(ranked, room):
    """For all offers, for none, or for others than the best one."""
    limits = [second for _, second in ranked] or [1000.0]
    if room == "middle":
        less = [each for each in limits[1:] if each < limits[0]]
        return round((limits[0] * max(less)) ** 0.5, 2) if less else 2 * limits[0]
    return round({"none": 0.5 * min(limits), "plenty": 20 * max(limits)}[room], 2)


def judged(came, case):
    """(what is wrong with it or "", what it takes)."""
    model, offers, batch, steps, limit, free = case.inputs[0]
    if came is None:
        return "gives up", 0.0
    try:
        k, degrees = came
        if isinstance(k, bool) or k < 0:
            return "form", 0.0
        (cluster, _), plan = offers[k], Plan(**degrees)
    except (TypeError, ValueError, IndexError, KeyError):
        return "form", 0.0
    if plan.ranks != cluster.n or plan.obstacle(model, batch):
        return "cannot run", 0.0
    one = predict(model, cluster, plan, batch)
    takes, limited = figures(one, steps, offers[k], case.facts["least"])
    if one.memory > cluster.gpu.memory - free:
        return "memory", takes
    return "limit" * (limited > limit), takes


def agrees(came, wanted, case):
    """A plan that will do where there is one, else None."""
    if wanted is None or came is None:
        return came is wanted
    return judged(came, case)[0] == ""


def times_the_best(attempt):
    """What it takes, over what the best plan takes."""
    reason, takes = judged(attempt.came[0], attempt.case)
    return 1.0 if reason else takes / attempt.case.facts["best"][0]


ROW, SHOW = "beside the best plan", "{:.3f} times".format
FAST = Requirement(ROW, times_the_best, lambda case: 1.05, exactly=False, show=SHOW)
ex = Exercise("20.1", agrees=agrees, processes=())
ex.cases(functools.partial(made, "seconds"))
ex.require(FAST)

takes = lambda case: case.facts["takes"]
memory = lambda case: {cluster.gpu.memory for cluster, _ in case.inputs[0][1]}
cheap = lambda case: min(takes(case).values(), key=lambda both: both[1])[0]
ex.boundaries(
    reserve_above_a_gpu=lambda case: min(memory(case)) < case.facts["free"],
    mixed_memory=lambda case: len(memory(case)) > 1 and case.expected[0],
    nothing_fits=lambda case: not takes(case),
    nothing_affordable=lambda case: takes(case) and not case.expected[0],
    dear_is_best=lambda c: c.expected[0] and cheap(c) > 1.05 * c.facts["best"][0],
)

# Mistakes of its own


def mistake(reason, edits):
    """The plan of some call is wrong for this reason."""
    because = lambda a: wrong(a) and judged(a.came[0], a.case)[0] == reason
    return ex.mistake(reason, because, edits)


RETURN, FOUND = "return k, degrees", "found.append((one.seconds"
more = lambda text: {RETURN: f"{RETURN} | {text}"}
mistake("form", {"vars(one.plan)": "one.plan"}).says("""
    It does not return the number of an offer and the degrees of a plan.
    Hint: Return a pair such as (0, {"data": 4, "tensor": 2}), with keywords of `Plan`.
""")
ex.wrong("form", {RETURN: "return k - len(offers), degrees"})
mistake("cannot run", more('{"micro_batch": 7}')).says("""
    Its offer cannot run this plan: the product of the degrees is not its number of
    GPUs, or model or batch cannot be divided like this.
    Hint: Compare `plan.ranks` with `cluster.n`, and ask `plan.obstacle(model, batch)`.
""")
ex.wrong("cannot run", {RETURN: 'return k, {"tensor": offers[k][0].n}'})
mistake("memory", {"reserve=share": "reserve=0"}).says("""
    The plan does not fit: some GPU would have less memory left than must stay free.
    Hint: `predict(...).memory` is what the fullest GPU holds. How much may it hold?
""")
mistake("limit", {"if money <= budget:": "if True:"}).says("""
    The run costs more than the budget.
    Hint: A cheaper offer may be slower, and still be the best that you can pay.
""")
mistake("gives up", {"in enumerate(offers)": "in [*enumerate(offers)][:1]"}).says("""
    It returns None although there is a plan that fits and can be paid for.
    Hint: Less micro-batch, more ZeRO, more recomputing and more model ranks all save
    memory. Has every offer been tried?
""")
ex.mistake("slow", breaks(FAST), {FOUND: "found.append((money"}).says("""
    The plan can be run and paid for, but another one is more than five percent better.
    Hint: What is to be small? Compare the predictions of all plans, as the search of
    chapter 16 does, and the best plans of all offers that stay within the limit.
""")
slowest = "[x for x in best[::-1] if cost(x, steps, price)[1] <= budget][:1]"
ex.wrong("slow", {"best[:1]": slowest})
ex.wrong("raises", {" if share < 1 else []": ""})
changed = "{x: v for x, v in degrees.items() if v != getattr(Plan(), x)}"
ex.right({RETURN: f"return [k, {changed}]"})

ex.variation(
    "b",
    varied="a deadline in hours, not a budget, and the least money, not the least time",
    differs="It takes the limit for a budget and looks for the fastest plan, as in the "
    "public exercise; here the limit is a deadline, and the cheapest run is wanted.",
    says={
        "limit": """The run takes more hours than the deadline allows.
            Hint: Seconds of a step times steps, in hours. A dearer offer may be the
            only one that is in time."""
    },
    reads={"can be paid for": "is done in time", "and paid for": "in time"},
    cases=functools.partial(made, "money"),
)
of_all = lambda offers: [(cluster, price * cluster.n) for cluster, price in offers]
ex.variation(
    "c",
    varied="the price is that of all GPUs of an offer together",
    differs="It takes the price for that of a single GPU, as in the public exercise; "
    "here it is that of all GPUs of the offer.",
    given=lambda n, model, offers, *more: (model, of_all(offers), *more),
)
