"""What the call that wraps a model gives it: whether its parameters may be ignored, or offloaded to the CPU."""

from __future__ import annotations

import ast
import enum
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import expand
from fsdp_rules.project.flags import FLAG_PATTERNS
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import INNER
from fsdp_rules.project.walking import walk

IGNORED = ("ignored_modules", "ignored_states", "ignored_parameters")
#: The first torch in which fully_shard ignores parameters; before, fsdp_compat does.
IGNORED_PARAMS = (2, 7)
OFFLOAD = ("cpu_offload",)
CONSTRUCTOR = "FullyShardedDataParallel"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Given(enum.IntEnum):
    """Whether a wrap is given an argument: not, not to this model as far as calls show, or perhaps."""

    NO = 0
    NOT_HERE = 1
    PERHAPS = 2


def given(model: cst.BaseExpression, flag: str, names: tuple[str, ...], file: File) -> Given:
    """Whether the wrap that ``model`` comes from gets one of the arguments ``names`` with something in it.

    ``flag`` says whether any file of the project has such an argument; where the wrap is not known, that decides.
    """
    if flag not in file.project.flags:
        return Given.NO
    text = dotted(model) or ""
    while text.endswith(INNER):
        text = text.rpartition(".")[0]
    origin = file.project.origin(file.path, file.scope(model), text)
    if origin is None or origin[0] not in file.project.sources:
        return Given.PERHAPS
    path, line = origin
    tree = parsed(file.project.sources[path])
    aliases = file.project.aliases(path)
    at_line = _calls_by_line(file.project.sources[path]).get(line, [])
    # A partial, or a function of the project, gives what is not written here.
    calls = [node for node in at_line if expand(ast.unparse(node.func), aliases).endswith(f".{CONSTRUCTOR}")]
    found = [keyword for call in calls for keyword in call.keywords]
    values = [keyword.value for keyword in found if keyword.arg in names]
    if not calls or len(calls[0].args) > 1:
        return Given.PERHAPS
    if not values and any(keyword.arg is None for keyword in found):
        return Given.PERHAPS if _is_named_around(path, flag, file) else Given.NO
    return max((_value(value, line, text, tree, file) for value in values), default=Given.NO)


def wrap_of(text: str, scope: str, file: File) -> ast.Call | None:
    """The ``FSDP(...)`` call that the model ``text`` in ``scope`` comes from, None where it is not known."""
    found = placed_wrap_of(text, scope, file)
    return found[1] if found is not None else None


def placed_wrap_of(text: str, scope: str, file: File) -> tuple[str, ast.Call] | None:
    """As :func:`wrap_of`, with the path of the file that has the call."""
    while text.endswith(INNER):
        text = text.rpartition(".")[0]
    origin = file.project.origin(file.path, scope, text)
    if origin is None or origin[0] not in file.project.sources:
        return None
    path, line = origin
    aliases = file.project.aliases(path)
    found = _calls_by_line(file.project.sources[path]).get(line, [])
    wraps = (one for one in found if expand(ast.unparse(one.func), aliases).endswith(f".{CONSTRUCTOR}"))
    return next(((path, one) for one in wraps), None)


@lru_cache(maxsize=32)
def _calls_by_line(source: bytes) -> dict[int, list[ast.Call]]:
    """The calls of a file by the lines that they begin in."""
    found: dict[int, list[ast.Call]] = defaultdict(list)
    for node in walk(parsed(source)):
        if isinstance(node, ast.Call):
            found[node.lineno].append(node)
    return found


def _value(value: ast.expr, line: int, model: str, tree: ast.Module, file: File) -> Given:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "CPUOffload":
        inner = [*value.args, *(keyword.value for keyword in value.keywords)]
        return _value(inner[0], line, model, tree, file) if inner else Given.NO
    if _is_nothing(value):
        return Given.NO
    function = _around(tree, line)
    if not isinstance(value, ast.Name) or function is None:
        return Given.PERHAPS
    default = default_of(function, value.id)
    if default is None or not _is_nothing(default):
        return Given.PERHAPS
    return _as_called(function, value.id, model, file)


def _as_called(function: Function, name: str, model: str, file: File) -> Given:
    """What the calls of ``function`` that are about ``model``, by its last name, give the parameter ``name``.

    Calls in this file that are given ``model`` itself, or give it, say it alone: others are of other programs.
    """
    last = model.rpartition(".")[2]
    parameters = [entry.arg for entry in function.args.args]
    position = parameters.index(name) if name in parameters else -1
    about: list[bool] = []
    own: list[bool] = []
    speaking = [source for path, source in file.project.sources.items() if path != file.path]
    trees = [file.tree, *(parsed(source) for source in speaking if function.name.encode() in source)]
    for tree in trees:
        for call, target in _calls(tree, function.name):
            passed = [keyword.value for keyword in call.keywords if keyword.arg in (name, None)]
            passed += call.args[position : position + 1] if position >= 0 else []
            gives = any(not _is_nothing(value) for value in passed)
            first = ast.unparse(call.args[0]) if call.args else ""
            if last in (target.rpartition(".")[2], first.rpartition(".")[2]):
                about.append(gives)
                own += [gives] if tree is file.tree and model in (target, first) else []
    if about:
        return Given.PERHAPS if any(own or about) else Given.NO
    # Files that do not speak of FSDP may call it too.
    return Given.NOT_HERE


def _calls(tree: ast.Module, name: str) -> Iterator[tuple[ast.Call, str]]:
    """The calls of functions called ``name``, each with the text that its result is assigned to."""
    targets = {
        id(node.value): ast.unparse(node.targets[0])
        for node in walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    }
    for node in walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            yield node, targets.get(id(node), "")


def _is_nothing(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    return isinstance(value, ast.Constant) and value.value in (None, False)


def _around(tree: ast.Module, line: int) -> Function | None:
    """The innermost function around ``line``."""
    found = [node for node in walk(tree) if isinstance(node, Function) and node.lineno <= line <= _end(node)]
    return max(found, key=lambda node: node.lineno, default=None)


def _end(node: Function) -> int:
    return node.end_lineno or node.lineno


def default_of(function: Function, name: str) -> ast.expr | None:
    """What the parameter ``name`` of ``function`` is by default, None where it has to be given."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return next((value for entry, value in [*pairs, *keyword] if entry.arg == name), None)


def _is_named_around(path: str, flag: str, file: File) -> bool:
    """Whether the file at ``path``, or one that it imports from, has such an argument."""
    imported = set(file.project.aliases(path).values())
    for other, source in file.project.sources.items():
        module = module_name(other)
        reached = other == path or any(full == module or full.startswith(f"{module}.") for full in imported)
        if reached and FLAG_PATTERNS[flag].search(source):
            return True
    return False


@lru_cache(maxsize=32)
def parsed(source: bytes) -> ast.Module:
    """The tree of a file that the project has parsed."""
    return ast.parse(source)
