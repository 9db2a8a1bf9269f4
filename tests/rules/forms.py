"""A whole example in another form: other names, other imports, and its parts in other files."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping

#: The files of a form, by their paths.
Files = dict[str, str]
#: A form of the example that is given as its source; None where the example has nothing that it changes.
Form = Callable[[str], Files | None]
MAIN = "program/main.py"


def renamed(before: str) -> Files | None:
    """Everything that the example itself names has another name: variables, functions, classes, imports."""
    tree = ast.parse(before)
    names = {name: f"thing_{number}" for number, name in enumerate(sorted(_bound(tree)))}
    if not names:
        return None
    return {MAIN: ast.unparse(_Renamed(names).visit(tree))}


def dotted(before: str) -> Files | None:
    """Names are reached through the modules that they were imported from."""
    tree = ast.parse(before)
    spelled: dict[str, ast.expr] = {}
    body: list[ast.stmt] = []
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module and not any(alias.name == "*" for alias in node.names):
            body.append(ast.Import([ast.alias(node.module, f"module_{number}")]))
            for alias in node.names:
                found = ast.Attribute(ast.Name(f"module_{number}", ast.Load()), alias.name, ast.Load())
                spelled[alias.asname or alias.name] = found
        else:
            body.append(node)
    if not spelled:
        return None
    return {MAIN: ast.unparse(_Spelled(spelled).visit(ast.Module(body, [])))}


def imported_again(before: str) -> Files | None:
    """Another file imports the names, and this one imports them from there."""
    tree = ast.parse(before)
    names, body = [], []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names.append(ast.unparse(node))
            body.append(ast.ImportFrom("program.names", node.names, 0))
            for alias in body[-1].names if isinstance(body[-1], ast.ImportFrom) else ():
                alias.name, alias.asname = (alias.asname or alias.name), None
        else:
            body.append(node)
    if not names:
        return None
    return {MAIN: ast.unparse(ast.fix_missing_locations(ast.Module(body, []))), "program/names.py": "\n".join(names)}


def options_elsewhere(before: str) -> Files | None:
    """What calls are given as keywords is a constant of another file, where it is none of a function's own names."""
    return _moved(before, lambda names, call: [_given(keyword, names) for keyword in call.keywords])


def options_unpacked(before: str) -> Files | None:
    """The same keywords are a dictionary of another file, which the call unpacks."""

    def unpacked(names: _Values, call: ast.Call) -> list[ast.keyword]:
        moved = {one.arg: one.value for one in call.keywords if one.arg is not None and names.may_move(one.value)}
        kept = [one for one in call.keywords if one.arg not in moved]
        if not moved:
            return kept
        keys: list[ast.expr | None] = [ast.Constant(key) for key in moved]
        return [*kept, ast.keyword(None, names.put(ast.Dict(keys, list(moved.values()))))]

    return _moved(before, unpacked)


def method(before: str) -> Files | None:
    """The last function is a method, what it was given are attributes of its object, and another file runs it."""
    tree = ast.parse(before)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not functions or functions[-1].args.kwarg is not None:
        return None
    last = functions[-1]
    given = [argument.arg for argument in last.args.args]
    own = {name: ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load()) for name in given}
    body = [_Spelled(own).visit(node) for node in last.body]
    assigned = [f"self.{name} = {name}" for name in given] or ["pass"]
    keeps = ast.parse(f"def __init__({', '.join(['self', *given])}):\n    " + "\n    ".join(assigned)).body
    runs = ast.parse("def run(self):\n    pass").body
    assert isinstance(runs[0], ast.FunctionDef)
    runs[0].body = body
    holder = ast.ClassDef("Holder", [], [], [*keeps, *runs], [])
    tree.body[tree.body.index(last)] = holder
    names = ", ".join(f"{name}_of_main" for name in given)
    main = f"from program.holder import Holder\n\ndef main({names}):\n    return Holder({names}).run()\n"
    return {MAIN: main, "program/holder.py": ast.unparse(ast.fix_missing_locations(tree))}


def values_made_elsewhere(before: str) -> Files | None:
    """What is given as keywords is what functions of another file return."""
    return _moved(before, lambda names, call: [_given(keyword, names, call=True) for keyword in call.keywords])


FORMS: tuple[Form, ...] = (
    renamed,
    dotted,
    imported_again,
    options_elsewhere,
    options_unpacked,
    values_made_elsewhere,
    method,
)


class _Values:
    """The values that move to another file, and the imports that they need there."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        self._known = {alias.asname or alias.name for node in self.imports for alias in node.names}
        self.lines: list[str] = []
        self.names: list[str] = []

    def may_move(self, value: ast.expr) -> bool:
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        return names <= {*self._known, *dir(builtins)} and not isinstance(value, ast.Lambda)

    def put(self, value: ast.expr, call: bool = False) -> ast.expr:
        name = f"{'make' if call else 'VALUE'}_{len(self.names)}"
        self.names.append(name)
        text = ast.unparse(value)
        self.lines.append(f"def {name}():\n    return {text}\n" if call else f"{name} = {text}\n")
        made = ast.Name(name, ast.Load())
        return ast.Call(made, [], []) if call else made


def _given(keyword: ast.keyword, names: _Values, call: bool = False) -> ast.keyword:
    moves = keyword.arg is not None and names.may_move(keyword.value)
    return ast.keyword(keyword.arg, names.put(keyword.value, call)) if moves else keyword


def _moved(before: str, keywords: Callable[[_Values, ast.Call], list[ast.keyword]]) -> Files | None:
    tree = ast.parse(before)
    names = _Values(tree)
    for node in list(_outermost_calls(tree)):
        node.keywords = keywords(names, node)
    if not names.names:
        return None
    imports = "".join(f"{ast.unparse(node)}\n" for node in names.imports)
    tree.body.insert(len(names.imports), ast.ImportFrom("program.values", [ast.alias(one) for one in names.names], 0))
    return {
        MAIN: ast.unparse(ast.fix_missing_locations(tree)),
        "program/values.py": f"{imports}\n" + "\n".join(names.lines),
    }


def _outermost_calls(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and child.keywords:
            yield child
        else:
            yield from _outermost_calls(child)


def _bound(tree: ast.Module) -> set[str]:
    """Every name that the example gives something: not those that it only reads."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias) and node.name != "*":
            found.add(node.asname or node.name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not _is_method(node, tree):
            found.add(node.name)
    return found - {"self"}


def _is_method(node: ast.AST, tree: ast.Module) -> bool:
    return any(node in owner.body for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef))


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg))

    def visit_alias(self, node: ast.alias) -> ast.alias:
        local = node.asname or node.name
        return ast.alias(node.name, self.names[local]) if local in self.names else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = self.names.get(node.name, node.name)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.name = self.names.get(node.name, node.name)
        return node


class _Spelled(ast.NodeTransformer):
    def __init__(self, spelled: Mapping[str, ast.expr]) -> None:
        self.spelled = spelled

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.spelled.get(node.id)
        return ast.parse(ast.unparse(found), mode="eval").body if found is not None else node
