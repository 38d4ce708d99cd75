"""The three worlds in which a function runs on ranks, and what is known of a run.

`launch` starts ranks in one of them; `cluster` says how fast GPUs and links are. A rank
sees one form of every operation (`calls`) and keeps one record (`engine`, `ledger`),
whether it is a thread (`sim`) or a process (`real`). `script` executes a learner's own
script on a rank. What is private to torch stands in `torch_private`. Imports from
`show` and `errors` only; `launch` stands above the rest.
"""
