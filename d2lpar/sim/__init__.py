"""The simulated cluster: ranks are threads of this process, time is virtual.

`simulator` gives the turns, `matching` pairs sends with receives, `network` says when
what arrives, `native` how long a library's collectives take; `cluster` and
`hardware` describe machines, and `meter` counts what a rank computes.  What is private
to torch is in `torch_private`.  Imports from `report` and `shared` only.
"""
