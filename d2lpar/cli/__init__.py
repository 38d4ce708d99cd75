"""What is typed: `python -m d2lpar ...`, for learners and instructors.

`main` has the commands; each loads the module that does the work when it is called.
In a clone, the commands of `authoring/` join them.
"""
