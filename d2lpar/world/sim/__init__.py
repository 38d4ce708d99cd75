"""The simulated cluster: ranks are threads of this process, time is virtual.

`simulator` gives the turns, `matching` pairs sends with receives, `network` says when
what arrives, `native` how long a library's collectives take.
Imports nothing from `real`.
"""
