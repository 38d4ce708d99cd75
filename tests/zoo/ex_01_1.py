"""01.1 Mend the stopwatch: seconds(gpu, job)."""

from zoo import right, wrong


def one(gpu, job):
    gpu.synchronize()
    start = gpu.clock()
    gpu.launch(job)
    gpu.synchronize()
    return gpu.clock() - start


@right
def the_least_of_ten(gpu, job):
    return min([one(gpu, job) for _ in range(11)][1:])


@right
def the_least_of_all(gpu, job):
    """The first is the slowest, so it needs no special care."""
    return min(one(gpu, job) for _ in range(20))


@wrong("no number")
def prints_it(gpu, job):
    print("about", one(gpu, job))


@wrong("asks")
def as_it_was_given(gpu, job):
    start = gpu.clock()
    for _ in range(10):
        gpu.launch(job)
    return (gpu.clock() - start) / 10


@wrong("asks")
def synchronises_too_late(gpu, job):
    times = []
    for _ in range(10):
        gpu.synchronize()
        start = gpu.clock()
        gpu.launch(job)
        times.append(gpu.clock() - start)
        gpu.synchronize()
    return min(times)


@wrong("first")
def one_call_is_enough(gpu, job):
    return one(gpu, job)


@wrong("first")
def the_longest(gpu, job):
    return max(one(gpu, job) for _ in range(10))


@wrong("disturbed")
def mean_after_a_warm_up(gpu, job):
    times = [one(gpu, job) for _ in range(11)][1:]
    return sum(times) / len(times)


@wrong("disturbed")
def many_at_once(gpu, job):
    one(gpu, job)
    start = gpu.clock()
    for _ in range(10):
        gpu.launch(job)
    gpu.synchronize()
    return (gpu.clock() - start) / 10


@wrong("too many")
def a_hundred(gpu, job):
    return min([one(gpu, job) for _ in range(100)])


@right
def two_to_warm_up_and_three_in_a_row(gpu, job):
    return min([one(gpu, job) for _ in range(5)][2:])


@right
def all_that_is_allowed(gpu, job):
    return min([one(gpu, job) for _ in range(20)][17:])


@wrong("too many")
def one_launch_too_many(gpu, job):
    return min([one(gpu, job) for _ in range(21)])


@wrong("no launch")
def starts_the_clock_after_the_launch(gpu, job):
    times = []
    for _ in range(10):
        gpu.synchronize()
        gpu.launch(job)
        start = gpu.clock()
        gpu.synchronize()
        times.append(gpu.clock() - start)
    return min(times)


@wrong("wrong")
def in_microseconds(gpu, job):
    return 1e6 * the_least_of_all(gpu, job)


@right
def the_launch_and_the_job_apart(gpu, job):
    times = []
    for _ in range(6):
        gpu.synchronize()
        start = gpu.clock()
        gpu.launch(job)
        asked = gpu.clock() - start
        gpu.synchronize()
        times.append((gpu.clock() - start - asked, asked))
    return sum(min(times))


def peeked(gpu):
    """What the device plays, read instead of measured; `d2lpar grade` refuses that."""
    known = gpu._do.__self__.gi_frame.f_locals
    return known["ask"] + known["job"]


@wrong("too few")
def reads_and_launches_nothing(gpu, job):
    return peeked(gpu)


@wrong("not measured")
def reads_and_launches_for_the_count(gpu, job):
    for _ in range(10):
        gpu.launch(job)
        gpu.clock()
    return peeked(gpu)
