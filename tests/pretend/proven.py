"""Run what `d2lpar doctor --prove` runs, in the worlds whose names begin as told."""

import json
import sys

from d2lpar.cli import gpu_report

if __name__ == "__main__":
    names, every = tuple(sys.argv[1:]), gpu_report.worlds()
    rows = gpu_report.prove([w for w in every if w.name.startswith(names)])
    states = [state for _, _, state, *_ in rows]
    failed = {f"{w.name}: {x}": text for w, x, s, _, text in rows if s == "FAILED"}
    told = {"passed": states.count("passed"), "failed": failed}
    print("\n" + json.dumps(told | {"report": gpu_report.report(rows)}))
