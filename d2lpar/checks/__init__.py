"""Answers to exercises, judged by what they do and how.

Each exercise is a file beside its solution, `solutions/ex_NN_K.py`, written with
`exercise` and found by `solutions`.  `checker` runs an answer on the cases of its
exercise, `judging` compares, `requirements` count bytes, messages and memory, `signs`,
`hints` and `relations` recognise mistakes, `report` tells them.  Imports the concepts
and what is below them.
"""
