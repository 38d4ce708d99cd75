"""16.3 The row that cannot be true: impossible(rows)."""

from zoo import right, wrong

ORDER = "degrees", "batch", "seconds", "peak"


def judged(rows, again=True, micro=True, limit=0.87, near=0.02, order=ORDER):
    found = {}
    for name, model, plan, gpus, batch, rate, seconds in rows:
        flops = model.flops(batch, plan.recompute if again else "none")
        took = flops / (rate * 1e12 * gpus)
        wrong = {
            "degrees": plan.ranks != gpus,
            "batch": batch % (plan.data * (plan.micro_batch if micro else 1)) > 0,
            "seconds": abs(seconds / took - 1) > near,
            "peak": rate > 312 * limit,
        }
        for fault in order[::-1]:
            found |= {name: fault} if wrong[fault] else {}
    return found


@right
def four_questions(rows):
    return judged(rows)


@right
def by_rates(rows):
    """Compares the rates, not the seconds, and allows 3 %."""
    found = {}
    for name, model, plan, gpus, batch, rate, seconds in rows:
        own = model.flops(batch, plan.recompute) / seconds / gpus / 1e12
        if plan.ranks != gpus:
            found[name] = "degrees"
        elif plan.micro_batches(batch) * plan.data * plan.micro_batch != batch:
            found[name] = "batch"
        elif abs(own - rate) > 0.03 * rate:
            found[name] = "seconds"
        elif rate > 0.87 * 312:
            found[name] = "peak"
    return found


@wrong("no dict")
def returns_names(rows):
    return list(judged(rows))


@wrong("no recomputation")
def forgets_recomputation(rows):
    return judged(rows, again=False)


@wrong("data batch only")
def forgets_micro_batches(rows):
    return judged(rows, micro=False)


@wrong("own peak")
def believes_the_data_sheet(rows):
    return judged(rows, limit=1)


@wrong("rounded")
def takes_digits_seriously(rows):
    return judged(rows, near=1e-7)


@wrong("peak first")
def in_the_other_order(rows):
    return judged(rows, order=ORDER[::-1])
