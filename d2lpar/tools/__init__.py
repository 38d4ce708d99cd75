"""What is typed: `python -m d2lpar ...`, for learners, instructors and contributors.

`cli` has the commands; each loads the module that does the work when it is asked for.
Concepts and checks import nothing of it; chapters the benches and the loader of d2l.
"""
