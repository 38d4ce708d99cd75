"""Answers to exercises, judged by what they do and how.

`checker` runs an answer on the cases of its exercise (`rubrics`), `judging` compares,
`requirements` count bytes, messages and memory, `signs` recognise mistakes, `report`
tells them in the words of `words/`.  Imports the concepts and what is below them; only
`tools` import this.
"""
