"""Network partition: whole layers on different ranks.

`part` runs them, `layers` is the network as data, `balance` finds the best cuts.
"""

from .part import Part, way_back
