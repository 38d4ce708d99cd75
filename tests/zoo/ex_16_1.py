"""16.1 The utilisation of what?: comparable(model, printed, convention, ...)."""

from zoo import right, wrong


def by(model, convention, recompute, head=True, scores=None, causal="scores"):
    s = model.sequence
    if convention == "hardware":
        return model.flops(1, recompute)
    if convention == "causal":
        whole = causal == "scores"
        return model.flops(1, causal=True) if whole else model.flops(1) / 2
    if convention.startswith("parameters"):
        count = model.parameters - (0 if head else model.vocabulary * model.hidden)
        added = convention.endswith("scores") if scores is None else scores
        return 6 * count * s + added * 12 * model.layers * s * s * model.q
    return model.flops(1)


def share(model, printed, convention, recompute, peaks, **slips):
    flops = by(model, convention, recompute, **slips)
    return printed * model.flops(1) / flops * peaks[0] / peaks[1]


@right
def one_ratio(*given):
    return share(*given)


@right
def from_tokens_per_second(model, printed, convention, recompute, peaks):
    rows = printed * peaks[0] / by(model, convention, recompute)
    return model.flops(1) * rows / peaks[1]


@wrong("as printed")
def believes_it(model, printed, *rest):
    return printed


@wrong("percent")
def in_percent(*given):
    return 100 * share(*given)


@wrong("upside down")
def the_other_way(model, printed, convention, recompute, peaks):
    ratio = by(model, convention, recompute) / model.flops(1)
    return printed * ratio * peaks[0] / peaks[1]


@wrong("other peak")
def never_looks_at_peaks(model, printed, convention, recompute, peaks):
    return share(model, printed, convention, recompute, (1, 1))


@wrong("peak upside down")
def peaks_the_other_way(model, printed, convention, recompute, peaks):
    return share(model, printed, convention, recompute, peaks[::-1])


@wrong("all again")
def always_full(model, printed, convention, recompute, peaks):
    return share(model, printed, convention, "full", peaks)


@wrong("nothing again")
def never_again(model, printed, convention, recompute, peaks):
    return share(model, printed, convention, "none", peaks)


@wrong("no head")
def a_table_less(*given):
    return share(*given, head=False)


@wrong("never scores")
def parameters_alone(*given):
    return share(*given, scores=False)


@wrong("always scores")
def scores_everywhere(*given):
    return share(*given, scores=True)


@wrong("half of everything")
def half(*given):
    return share(*given, causal="all")
