"""Ranks that are processes: of this machine, or those that a launcher has started.

`processes` and `torchrun` start and watch them, `worker` is the life of one of them,
`gloo` and `nccl` carry out its calls. Imports nothing from `sim`.
"""
