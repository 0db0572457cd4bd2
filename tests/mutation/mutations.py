"""Single mutations of a Python file, each a fault that a person could have made.

Nothing is changed that no test could see: docstrings, annotations, messages, imports and assertions that only narrow a
type. A node's text is replaced in place, so a mutant differs from its file in a few lines.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip

# Tests run on a CPU, and tell neither how fast nor in how much memory. `strict` guards against a bug of the caller.
_UNSEEN_KEYWORDS = {"device", "fused", "non_blocking", "strict"}
# NumPy's numbers do as Python's do, most of what `int` is given is whole, and a list does as a tuple does.
_UNSEEN_CALLS = {"cpu", "float", "int", "tuple"}
_ORDERLESS_CALLS = {"max", "min"}  # in whichever order their arguments stand
# Without one of these nothing runs at all, or (`dataclass`) only mistakes of a programmer go unnoticed.
_NEEDED_DECORATORS = {"cache", "classmethod", "contextmanager", "dataclass", "property", "staticmethod"}


@dataclass(frozen=True)
class Mutant:
    """A file with one fault in it."""

    file: str
    line: int
    source: str
    diff: str
    """The lines taken away and put in, without context or indentation: the same wherever they stand in the file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n{self.diff}"


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of their lines."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    mutants = [_mutant(file, source, node, text) for node, text in _mutations(tree, imported)]
    different = {mutant.source: mutant for mutant in mutants}
    return sorted(different.values(), key=lambda mutant: mutant.line)


def _mutant(file: str, source: str, node: Any, text: str) -> Mutant:
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    before, after = lines[: node.lineno - 1], lines[node.end_lineno :]
    old = lines[node.lineno - 1 : node.end_lineno]
    new = old[0][: node.col_offset] + text.encode() + old[-1][node.end_col_offset :]
    removed = [f"-{line.strip().decode()}" for line in old]
    added = [f"+{line.strip()}" for line in new.decode().splitlines()]
    return Mutant(file, node.lineno, b"".join([*before, new, *after]).decode(), "\n".join([*removed, *added]))


def _mutations(node: ast.AST, imported: set[str]) -> Iterator[tuple[Any, str]]:
    """Nodes at or below ``node`` with the text of what takes their place."""
    for place, other in _changes(node, imported):
        text = other if isinstance(other, str) else ast.unparse(other)
        needs_brackets = isinstance(other, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda | ast.UnaryOp)
        yield place, f"({text})" if needs_brackets else text
    for child in _seen(node):
        yield from _mutations(child, imported)


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """The children of ``node`` in which a fault could be seen."""
    unseen: list[ast.AST | None] = []
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.arg():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(value=ast.Subscript(value=ast.Name(id="Callable"))):
            return
        case ast.AnnAssign():
            unseen = [node.annotation]
        case ast.FunctionDef():
            unseen = [node.returns, *node.decorator_list]
        case ast.ClassDef():
            unseen = [*node.bases, *node.keywords, *node.decorator_list]
        case ast.Call():
            unseen = [keyword for keyword in node.keywords if keyword.arg in _UNSEEN_KEYWORDS]
    yield from (child for child in ast.iter_child_nodes(node) if child not in unseen)


def _changes(node: ast.AST, imported: set[str]) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    match node:
        case ast.Constant():
            yield from ((node, repr(other)) for other in _other_constants(node.value))
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield node, _with(node, ops=_replaced(node.ops, index, _other(operator)))
        case ast.BinOp():
            yield from ((node, other) for other in (node.left, node.right))
            if type(node.op) in _OTHER:
                yield node, _with(node, op=_other(node.op))
        case ast.BoolOp():
            yield node, _with(node, op=_other(node.op))
            for rest in _each_left_out(node.values):
                yield node, _with(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp() if not isinstance(node.operand, ast.Constant):  # -1 is often another name of axis 1
            yield node, node.operand
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.comprehension() | ast.For():
            yield node.iter, f"list({ast.unparse(node.iter)})[:1]"
            yield from ((condition, "True") for condition in getattr(node, "ifs", []))
        case ast.List(ctx=ast.Load()) | ast.Set() if len(node.elts) > 1:
            yield from ((node, _with(node, elts=rest)) for rest in _each_left_out(node.elts))
        case ast.Dict() if len(node.keys) > 1:
            for keys, values in zip(_each_left_out(node.keys), _each_left_out(node.values), strict=True):
                yield node, _with(node, keys=keys, values=values)
        case ast.Slice():
            yield from ((node, _with(node, **{end: None})) for end in ("lower", "upper", "step") if getattr(node, end))
        case ast.Call():
            yield from ((node, other) for other in _other_calls(node, imported))
        case ast.With():
            yield from ((item.context_expr, "__import__('contextlib').nullcontext()") for item in node.items)
        case ast.FunctionDef():
            droppable = (each for each in node.decorator_list if _name(each) not in _NEEDED_DECORATORS)
            yield from ((decorator, "(lambda function: function)") for decorator in droppable)
        case ast.AugAssign():
            yield node, "pass"
            if type(node.op) in _OTHER:
                yield node, _with(node, op=_other(node.op))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Expr() if not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
            yield node, "pass"
        case ast.Raise() | ast.Break() | ast.Continue():
            yield node, "pass"


def _other_constants(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    return [2 * value or 1.0] if isinstance(value, float) else []


def _other_calls(call: ast.Call, imported: set[str]) -> Iterator[ast.AST]:
    """The call without one keyword, with its first arguments swapped, and the value it was made on or with."""
    for keyword, others in zip(call.keywords, _each_left_out(call.keywords), strict=True):
        if keyword.arg not in _UNSEEN_KEYWORDS:
            yield _with(call, keywords=others)
    starred = any(isinstance(argument, ast.Starred) for argument in call.args[:2])
    if len(call.args) > 1 and not starred and _called(call) not in _ORDERLESS_CALLS:
        yield _with(call, args=[call.args[1], call.args[0], *call.args[2:]])
    if _called(call) in _UNSEEN_CALLS or _moves_to_a_device(call):
        return
    if isinstance(call.func, ast.Attribute) and _name(call.func.value) not in {*imported, "super"}:
        yield call.func.value
    elif len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred):
        yield call.args[0]


def _moves_to_a_device(call: ast.Call) -> bool:
    return _called(call) == "to" and any(ast.unparse(argument).endswith("device") for argument in call.args)


def _called(call: ast.Call) -> str:
    """The last name of ``a.b(c)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)


def _name(node: ast.AST) -> str:
    """The first name of ``a.b(c)``."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _other(operator: ast.AST) -> ast.AST:
    return _OTHER[type(operator)]()


def _with(node: _Node, **fields: object) -> _Node:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _replaced(values: list[Any], index: int, value: object) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


def _each_left_out(values: list[Any]) -> list[list[Any]]:
    return [values[:index] + values[index + 1 :] for index in range(len(values))]
