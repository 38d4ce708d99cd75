"""Pipelines: every rank has some layers, and micro-batches flow through all of them.

`schedule` says who does what in which order, `execution` does it; `delayed` splits the
backward pass in two.
"""

from .execution import Mail, Pipeline, lines, receiver, stages_by_number
