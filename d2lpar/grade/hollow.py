"""What the checks know of the truth is not in the process that runs a submission.

There an exercise only performs; cases and what they should give come from the judge.
"""

import functools
import sys
import types

from .. import checks
from ..checks.report import Report

RUBRICS = f"{checks.__name__}.rubrics."


def hollow():
    """Nothing here makes cases or truths, and `d2lpar.check` says so."""
    import d2lpar

    for function in truths():
        function.__code__ = _gone.__code__
        function.__defaults__ = function.__kwdefaults__ = None
    d2lpar.check = _not_here


def truths():
    """Functions of the rubrics that make cases, and that nothing else needs."""
    modules = [vars(m) for name, m in sys.modules.items() if name.startswith(RUBRICS)]
    exercises = [space["exercise"] for space in modules if "exercise" in space]
    kinds = [v for space in modules for v in space.values() if _is_rubrics(v, type)]
    made = _reached([exercise.cases for exercise in exercises])
    needed = _reached([*(e.perform for e in exercises), *kinds])
    return [f for key, f in made.items() if key not in needed and not f.__closure__]


def _is_rubrics(value, kind):
    return isinstance(value, kind) and str(value.__module__).startswith(RUBRICS)


def _reached(starts):
    """{id: function of the rubrics} that these call or name, and so on."""
    found, seen, todo = {}, set(), list(starts)
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif _is_rubrics(value, type):
            parts = list(vars(value).values())
            todo += [getattr(part, "__func__", part) for part in parts]
            todo += [part.fget for part in parts if isinstance(part, property)]
        elif _is_rubrics(value, types.FunctionType):
            found[id(value)] = value
            todo += _named(value)
    return found


def _named(function):
    """What its code names, in its own module and in those of rubrics that it names."""
    names = set(_names(function.__code__))
    there = [function.__globals__[n] for n in names if n in function.__globals__]
    modules = [vars(m) for m in there if isinstance(m, types.ModuleType)]
    modules = [m for m in modules if m["__name__"].startswith(RUBRICS)]
    return there + [space[n] for space in modules for n in names if n in space]


def _names(code):
    """What this code, and the functions in it, may look up."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _gone(*arguments, **keywords):
    raise PermissionError("an answer does not ask the checks for the truth")


def _not_here(name, function, hint=False, seed=0):
    """The instructor's cell is the one that counts."""
    return Report(name, "not graded here", done=False)
