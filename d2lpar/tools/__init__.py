"""What is typed: `python -m d2lpar ...`, for learners, instructors and contributors.

`cli` has the commands; each loads the module that does the work when it is asked for.
Chapters, concepts and checks do without anything in here.
"""
