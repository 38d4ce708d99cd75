"""Mutants of a program: each is the program with one small fault in it."""

import ast
from functools import partial


def both_ways(pairs):
    """{a: b, b: a} for the kinds of nodes in "a-b"."""
    kinds = [[getattr(ast, name) for name in pair.split("-")] for pair in pairs.split()]
    return dict(kinds) | {b: a for a, b in kinds}


OPERATORS = both_ways(
    "Lt-LtE Gt-GtE Eq-NotEq Is-IsNot In-NotIn And-Or Add-Sub Mult-Div"
)
OPERATORS |= {ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
OPERATORS |= {ast.BitXor: ast.BitOr, ast.BitOr: ast.BitAnd}
NEGATED = OPERATORS | both_ways("Lt-GtE Gt-LtE")
NAMES = [("min", "max"), ("minimum", "maximum"), ("argmin", "argmax")]
NAMES += [("all", "any"), ("floor", "ceil"), ("float32", "float64")]
OTHER_NAME = dict(NAMES) | {b: a for a, b in NAMES}
# calls that give way to what they are called with
METHODS = set("clone contiguous detach item double long sqrt t".split())
FUNCTIONS = set("reversed sorted float ceil".split())
CONDITIONS = {(kind, "test") for kind in (ast.If, ast.While, ast.IfExp)}
CONDITIONS |= {(ast.comprehension, "ifs")}
BOUNDS = {(ast.Slice, "lower"), (ast.Slice, "upper")}


def mutants(source, lines):
    """{((line, column), words): source} of all mutants that differ in these lines.

    They are in the order of lines.  The words are "`before` -> `after`".
    """
    tree, found = ast.parse(source), {}
    seen = {ast.unparse(tree)}
    for node, parent, field, put in list(_places(tree)):
        if getattr(node, "lineno", 0) not in lines:
            continue
        for other in _others(node, parent, field, tree):
            put(other)
            text = ast.unparse(tree)
            put(node)
            if text not in seen:
                seen.add(text)
                where = node.lineno, node.col_offset + 1
                found[where, f"{_words(node)} -> {_words(other)}"] = text
    return dict(sorted(found.items()))


def _places(tree):
    """(node, parent, field, put): `put(other)` puts another in the node's place.

    Without `strict=`, which never changes what is right.
    """
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if getattr(parent, "arg", "") == "strict":
                continue
            if isinstance(value, list):
                for i, node in enumerate(value):
                    yield node, parent, field, partial(value.__setitem__, i)
            elif isinstance(value, ast.AST):
                yield value, parent, field, partial(setattr, parent, field)


def _words(node):
    """The first line of its code."""
    if isinstance(node, ast.Pass):
        return "nothing"
    first, *more = ast.unparse(node).split("\n")
    return f"`{first}{' ...' * bool(more)}`"


def _changed(node, **fields):
    return type(node)(**(dict(ast.iter_fields(node)) | fields))


def _others(node, parent, field, tree):
    """Nodes that may stand in the place of this one."""
    if (type(parent), field) in CONDITIONS:
        yield _negated(node)
    if (type(parent), field) in BOUNDS or (_is_range(parent) and field == "args"):
        yield from _off_by_one(node)
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                other = OPERATORS[type(op)]()
                yield _changed(node, ops=[*ops[:i], other, *ops[i + 1 :]])
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield _changed(node, op=OPERATORS[type(op)]())
            if isinstance(op, ast.Sub | ast.Div):
                yield _changed(node, left=right, right=left)
            if isinstance(op, ast.FloorDiv):  # rounded up
                down = _changed(node, left=ast.UnaryOp(ast.USub(), left))
                yield ast.UnaryOp(ast.USub(), down)
        case ast.BoolOp(op=op):
            yield _changed(node, op=OPERATORS[type(op)]())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value or 1.0)
        case ast.Name(id=name) if name in OTHER_NAME:
            yield _changed(node, id=OTHER_NAME[name])
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield _changed(node, attr=OTHER_NAME[name])
        case ast.Call(keywords=keywords):
            for i, keyword in enumerate(keywords):
                if keyword.arg != "strict":
                    yield _changed(node, keywords=[*keywords[:i], *keywords[i + 1 :]])
            yield from _without_call(node)
        case ast.With(body=body):
            yield ast.If(ast.Constant(True), body, [])
        case ast.AugAssign(target=target, op=op, value=value):
            if type(op) in OPERATORS:
                yield _changed(node, op=OPERATORS[type(op)]())
            yield ast.Assign([target], value, lineno=0)
    if isinstance(node, ast.stmt) and _can_go(node, tree):
        yield ast.Pass()


def _negated(test):
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Compare(ops=[op]):
            return _changed(test, ops=[NEGATED[type(op)]()])
    return ast.UnaryOp(ast.Not(), test)


def _is_range(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "range"


def _off_by_one(bound):
    """Not where the bound has a number, which is changed anyway."""
    parts = bound, *ast.iter_child_nodes(bound)
    if not any(isinstance(part, ast.Constant) for part in parts):
        yield ast.BinOp(bound, ast.Add(), ast.Constant(1))
        yield ast.BinOp(bound, ast.Sub(), ast.Constant(1))


def _without_call(call):
    match call.func:
        case ast.Attribute(value=value, attr=name) if name in METHODS:
            yield value
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in FUNCTIONS:
            yield call.args[0]


def _can_go(node, tree):
    """Not what brings a new name or the value; what is in a block goes by itself."""
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.Expr(value=ast.Constant()):
            return False
        case ast.If(body=[_], orelse=[]) | ast.For(body=[_]) | ast.While(body=[_]):
            return False
        case ast.Return():
            return sum(isinstance(other, ast.Return) for other in ast.walk(tree)) > 1
        case ast.Assign(targets=targets):
            parts = [part for target in targets for part in ast.walk(target)]
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            return not names.isdisjoint(_names_above(node, tree))
    return True


def _names_above(node, tree):
    """Names that have a value before this line."""
    for other in ast.walk(tree):
        if isinstance(other, ast.arg):
            yield other.arg
        elif isinstance(other, ast.Name) and isinstance(other.ctx, ast.Store):
            if other.lineno < node.lineno:
                yield other.id
