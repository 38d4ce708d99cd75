"""01.2 Who does what?: plan(start, ops, cpu, gpu, link)."""

from itertools import product

from zoo import right, wrong


def work(op, machine):
    (f, m, _), (peak, rate, launch) = op, machine
    return max(f / peak, m / rate) + launch


def seconds(places, start, ops, cpu, gpu, link):
    total, here, held = 0.0, "C", start
    for place, op in zip(places, ops, strict=True):
        if place != here:
            total += link[0] + held / link[1]
        total += work(op, cpu if place == "C" else gpu)
        here, held = place, op[2]
    return total + (link[0] + held / link[1]) * (here == "G")


@right
def tries_everything(start, ops, cpu, gpu, link):
    given = start, ops, cpu, gpu, link
    every = product("CG", repeat=len(ops))
    return min((seconds(p, *given), "".join(p)) for p in every)


@right
def from_the_end(start, ops, cpu, gpu, link):
    """The rest of the way, seen from either place; a list of letters."""

    def rest(i, here, held):
        move = link[0] + held / link[1]
        if i == len(ops):
            return (move * (here == "G"), [])
        found = []
        for place, machine in (("C", cpu), ("G", gpu)):
            after, places = rest(i + 1, place, ops[i][2])
            time = after + work(ops[i], machine) + move * (place != here)
            found.append((time, [place, *places]))
        return min(found)

    return rest(0, "C", start)


@wrong("form")
def only_the_seconds(start, ops, cpu, gpu, link):
    return tries_everything(start, ops, cpu, gpu, link)[0]


@wrong("no way back")
def stays_there(start, ops, cpu, gpu, link):
    def total(places):
        way = seconds(places, start, ops, cpu, gpu, link)
        return way - (link[0] + ops[-1][2] / link[1]) * (places[-1] == "G")

    every = product("CG", repeat=len(ops))
    return min((total(p), "".join(p)) for p in every)


@wrong("free moves")
def the_faster_machine(start, ops, cpu, gpu, link):
    total = sum(min(work(op, cpu), work(op, gpu)) for op in ops)
    return total, "".join("CG"[work(op, gpu) < work(op, cpu)] for op in ops)


@wrong("other seconds")
def seconds_of_the_work_only(start, ops, cpu, gpu, link):
    places = tries_everything(start, ops, cpu, gpu, link)[1]
    pairs = zip(places, ops, strict=True)
    return sum(work(op, cpu if p == "C" else gpu) for p, op in pairs) * 1.01, places


@wrong("all or nothing")
def one_place_for_all(start, ops, cpu, gpu, link):
    given = start, ops, cpu, gpu, link
    return min((seconds(c * len(ops), *given), c * len(ops)) for c in "CG")


@wrong("each alone")
def moves_as_often_as_one_likes(start, ops, cpu, gpu, link):
    places = the_faster_machine(start, ops, cpu, gpu, link)[1]
    return seconds(places, start, ops, cpu, gpu, link), places


@wrong("there and back")
def every_result_comes_home(start, ops, cpu, gpu, link):
    places, held = "", start
    for op in ops:
        away = work(op, gpu) + 2 * link[0] + (held + op[2]) / link[1]
        places += "CG"[away < work(op, cpu)]
        held = op[2]
    return seconds(places, start, ops, cpu, gpu, link), places


@wrong("greedy")
def what_is_best_now(start, ops, cpu, gpu, link):
    places, here, held = "", "C", start
    for op in ops:
        move = link[0] + held / link[1]
        c = work(op, cpu) + move * (here == "G")
        g = work(op, gpu) + move * (here == "C")
        here, held = ("C" if c <= g else "G"), op[2]
        places += here
    return seconds(places, start, ops, cpu, gpu, link), places


@wrong("not the least")
def here_and_there(start, ops, cpu, gpu, link):
    places = ("GC" * len(ops))[: len(ops)]
    return seconds(places, start, ops, cpu, gpu, link), places


@right
def the_gpu_where_both_take_equally_long(start, ops, cpu, gpu, link):
    given = start, ops, cpu, gpu, link
    every = ["".join(p) for p in product("GC", repeat=len(ops))]
    return min((seconds(p, *given), i, p) for i, p in enumerate(every))[::2]


@wrong("raises")
def looks_behind_the_end(start, ops, cpu, gpu, link):
    """An IndexError is not a wrong form."""
    return tries_everything(
        start, [ops[i] for i in range(len(ops) + 1)], cpu, gpu, link
    )


@wrong("form")
def says_cpu_and_gpu(start, ops, cpu, gpu, link):
    time, places = tries_everything(start, ops, cpu, gpu, link)
    return time, [{"C": "cpu", "G": "gpu"}[p] for p in places]


@wrong("form")
def small_letters(start, ops, cpu, gpu, link):
    time, places = tries_everything(start, ops, cpu, gpu, link)
    return time, places.lower()


@wrong("one visit")
def goes_there_once(start, ops, cpu, gpu, link):
    """It tries every stretch on the GPU, and never a second one."""
    L, found = len(ops), []
    for a in range(L + 1):
        for b in range(a, L + 1):
            places = "C" * a + "G" * (b - a) + "C" * (L - b)
            found.append((seconds(places, start, ops, cpu, gpu, link), places))
    return min(found)
