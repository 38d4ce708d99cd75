"""Plan a training run: predict it, search all plans, explain the best one, price it.

    model, cluster, plan, batch  ->  predict  ->  seconds, bytes, and their parts
    rows of published runs       ->  calibrate  ->  shares: one number for each GPU
    model, cluster, batch        ->  plans  ->  every plan that fits, best first
    two predictions              ->  explain  ->  why one is slower, in a sentence

`model` counts, `memory`, `links` and `times` have the parts of a step, `predictions`
puts them together, `search` tries all plans.  `rows` has published runs, and `experts`
models with a mixture of experts.
"""

from .model import Model, Plan, bus_bandwidth, mfu
from .predictions import Prediction, calibrate, predict, usual_shares
from .search import cost, explain, plans
from .times import Shares
