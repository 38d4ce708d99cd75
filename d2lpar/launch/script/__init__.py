"""A script that was written for torchrun, as the function of a rank.

`program` executes it, `belongings` gives ranks that are threads modules of their own,
`played_gpus` and `played_cuda` let it believe that each rank has a GPU, and `adapted`
replaces what a rank cannot do, such as starting processes that load data.
"""
