"""What breaks in a long run, what it costs, and checkpoints that survive it.

`reliability` has intervals and goodput, and finds silent errors; `saving` and
`mesh_saving` write checkpoints, `several_nodes` measures them on throttled links.
"""

from .reliability import Goodput, goodput, interval, load, nodes, save
