"""Assign exercises, and grade a folder of notebooks that strangers wrote.

`process` starts the judge of one notebook; the `judge` knows cases and answers and runs
no code of the notebook; the `runner` runs that code and knows nothing. `exchange` is
what they tell each other, `sandbox`, `guard` and `limits` keep the runner in its place.
"""
