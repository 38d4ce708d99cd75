"""Start a function on every rank, in one of three worlds.

`run` chooses the world.  `processes` and `torchrun` start and watch ranks that are
processes, `worker` is the life of one of them, `gloo` and `nccl` carry out its calls.
`script` runs a learner's own script.  Imports from `sim`, `report` and `shared`.
"""
