"""A learner's program, as a type checker and an editor see it; nobody runs it."""

from pathlib import Path
from typing import Any, assert_type

import d2lpar


def hello(times: int) -> str:
    return "hello " * times


run = d2lpar.run(hello, 2, world_size=4, backend="sim", timeout=5)
assert_type(run, d2lpar.Run)
assert_type(run.results, list[Any])
assert_type(run.elapsed, float)
assert_type(run.bytes_sent, list[int])
assert_type(run.rounds, int | None)
assert_type(run.peak_memory, list[int] | None)
assert_type(d2lpar.now(), float)

cluster = d2lpar.Cluster.of("2x8xA100", network="100Gb", share=0.8)
assert_type(cluster, d2lpar.Cluster)
assert_type(cluster.slow(3, 2.0), d2lpar.Cluster)
assert_type(d2lpar.Cluster.ideal(4, alpha=0), d2lpar.Cluster)
d2lpar.defaults(world_size=4, cluster=cluster)

if run.timeline is not None:
    assert_type(run.timeline, d2lpar.Timeline)
    assert_type(run.timeline.between(0, 1).busy(0), float)
    run.timeline.to_chrome_trace(Path("trace.json"))
    run.timeline.plot(title="hello")
d2lpar.compare(ring=run).play(exposed=True)

report = d2lpar.check("00.1", hello, hint=True)
assert_type(report, d2lpar.Report)
assert_type(report.score, float)
assert_type(report.timeline, d2lpar.Timeline | None)

try:
    d2lpar.run(hello)
except d2lpar.RankError as error:
    assert_type(error.rank, int | None)
    assert_type(error.run, d2lpar.Run | None)

d2lpar.run(hello, world_size="4")  # type: ignore[arg-type]
print(d2lpar.run(hello).ellapsed)  # type: ignore[attr-defined]
d2lpar.compare(ring=hello)  # type: ignore[arg-type]
d2lpar.Cluster.of(8)  # type: ignore[arg-type]
d2lpar.check("00.1")  # type: ignore[call-arg]
