"""Which sharding strategies a wrapped model may have, as far as its wrap and what the wrap reads say."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import element_text
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import canonical, expand
from fsdp_rules.fsdp1.strategy_names import NAMES, ZERO2
from fsdp_rules.model.wrap_arguments import Function, default_of, parsed, placed_wrap_of
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.walking import walk

ARGUMENT = "sharding_strategy"
#: Where FSDP1's constructor takes the strategy by its position.
POSITION = 2
ENUM = "ShardingStrategy"
ORIGINALS = "use_orig_params"
#: What a value may pass through on its way; more is not followed.
DEPTH = 12
NOTHING = ast.Constant(None)


class UnknownValueError(Exception):
    """Only a running program has the value."""


def stays_gathered(model: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that FSDP1 keeps ``model`` gathered after forwards, and after backwards that reduce nothing."""
    if "keeps_gathered" not in file.project.flags:
        return Certainty.NO
    found = placed_wrap_of(element_text(model) or "", file.scope(model), file)
    return stays_gathered_by(found[1], found[0], file) if found is not None else Certainty.MAYBE


def stays_gathered_by(call: ast.Call, path: str, file: File) -> Certainty:
    """As :func:`stays_gathered`, of the model that ``call`` in the file at ``path`` wraps."""
    names = _given(call, path, file)
    if names is None:
        return Certainty.MAYBE
    if names.isdisjoint(ZERO2):
        return Certainty.NO
    # Under NO_SHARD nothing is ever gathered.
    return Certainty.YES if names <= ZERO2 | {"NO_SHARD"} else Certainty.MAYBE


def keeps_frozen_by(call: ast.Call, path: str, file: File) -> Certainty:
    """How sure it is that what ``call`` wraps keeps gradients that a backward finds as it runs through it frozen.

    FSDP1 does with flat parameters that are sharded, and with the original ones where it keeps a unit gathered.
    """
    originals = keeps_originals(call, path, file)
    names = _given(call, path, file)
    flat = Certainty.MAYBE if names is None else Certainty.NO if "NO_SHARD" in names else Certainty.YES
    if originals is Certainty.NO:
        return flat
    gathered = stays_gathered_by(call, path, file)
    return gathered if originals is Certainty.YES else min(max(flat, gathered), Certainty.MAYBE)


def may_be_whole(model: cst.BaseExpression, file: File) -> bool:
    """Whether every rank of ``model`` may have its parameters whole, as under NO_SHARD."""
    if "unsharded" not in file.project.flags:
        return False
    found = placed_wrap_of(element_text(model) or "", file.scope(model), file)
    names = _given(found[1], found[0], file) if found is not None else None
    return names is None or "NO_SHARD" in names


def _given(call: ast.Call, path: str, file: File) -> set[str] | None:
    """The strategies that ``call``, which wraps in the file at ``path``, may give; None where they are not known."""
    try:
        return {*_Values(path, file).of_argument(call, ARGUMENT, POSITION)}
    except UnknownValueError:
        return None


def keeps_originals(call: ast.Call, path: str, file: File) -> Certainty:
    """How sure it is that ``call``, which wraps in the file at ``path``, says ``use_orig_params=True``."""
    try:
        found = [*_Values(path, file).given(call, ORIGINALS)]
    except UnknownValueError:
        return Certainty.MAYBE
    flags = [one.value if isinstance(one, ast.Constant) else None for one in found]
    if not any(flag is not False for flag in flags):
        return Certainty.NO
    return Certainty.YES if all(flag is True for flag in flags) else Certainty.MAYBE


class _Values:
    """Follows values through the file at ``path``, those that it imports from, and the callers of its functions.

    Every question raises UnknownValueError for a value that is none of FSDP1's strategies as they are written.
    """

    def __init__(self, path: str, file: File, depth: int = DEPTH) -> None:
        if depth == 0:
            raise UnknownValueError
        self.path, self.file, self.depth = path, file, depth
        self.nodes = [*walk(parsed(file.project.sources[path]))]
        self.aliases = file.project.aliases(path)

    def of_argument(self, call: ast.Call, name: str, position: int, default: ast.expr = NOTHING) -> Iterator[str]:
        """The strategies that ``call`` may give the parameter ``name``."""
        yield from self._of([*self.given(call, name, position)] or [default])

    def given(self, call: ast.Call, name: str, position: int | None = None) -> Iterator[ast.expr]:
        """What ``call`` gives the parameter ``name`` as it is written, dictionaries that it spreads looked into."""
        if any(isinstance(entry, ast.Starred) for entry in call.args):
            raise UnknownValueError
        placed = call.args[position : position + 1] if position is not None else []
        given = [*placed, *(one.value for one in call.keywords if one.arg == name)]
        spread = [one.value for one in call.keywords if one.arg is None]
        inside = [entry for value in spread if not given for entry in self._entries(value, name)]
        yield from (*given, *inside)

    def _of(self, values: Iterable[ast.expr]) -> Iterator[str]:
        for value in values:
            known, _, name = self._known(value).partition(".")
            if known == ENUM and name in NAMES:
                yield name
            elif isinstance(value, ast.Constant) and value.value is None:
                yield "FULL_SHARD"
            elif isinstance(value, ast.Subscript) and self._known(value.value) == ENUM:
                yield from _literal(value.slice)
            elif isinstance(value, ast.IfExp):
                yield from self._of([value.body, value.orelse])
            elif isinstance(value, ast.BoolOp | ast.Dict):
                yield from self._of(value.values)
            elif isinstance(value, ast.Subscript):
                yield from self._of([value.value])
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
                yield from self._of([value.func.value, *value.args[1:]])
            else:
                yield from self._of_name(text_of(value))

    def _known(self, value: ast.expr) -> str:
        return canonical(expand(text_of(value) or "", self.aliases)) or ""

    def _of_name(self, text: str | None) -> Iterator[str]:
        if text is None:
            raise UnknownValueError
        home, _, name = self.aliases.get(text, "").rpartition(".")
        homes = [path for path in self.file.project.sources if home and module_name(path) == home]
        takers = [node for node in self.nodes if isinstance(node, Function) and text in _parameters(node)]
        values = self._assigned(text) or self._of_field(text)
        if not values and not takers and not homes:
            raise UnknownValueError
        deeper = _Values(self.path, self.file, self.depth - 1)
        yield from deeper._of(values)
        for path in homes:
            yield from _Values(path, self.file, self.depth - 1)._of_name(name)
        for function in takers:
            yield from deeper._of_parameter(function, text)

    def _of_field(self, text: str) -> list[ast.expr]:
        """What the one class with a field of that name gives it: by default, and where its objects are made."""
        field = text.rpartition(".")[2]
        owners = [node for node in self.nodes if isinstance(node, ast.ClassDef) and _default(node, field) is not None]
        if field == text or len(owners) != 1:
            return []
        nodes = [one for source in self.file.project.sources.values() for one in walk(parsed(source))]
        if any(
            isinstance(one, ast.Attribute) and one.attr == field and isinstance(one.ctx, ast.Store) for one in nodes
        ):
            raise UnknownValueError
        # A class that reads its fields from a command line, a file or a dictionary is not followed.
        calls = [one for one in nodes if isinstance(one, ast.Call)]
        made = [one for one in calls if (text_of(one.func) or "").rpartition(".")[2] == owners[0].name]
        handed = [one for one in calls if owners[0].name in {(text_of(given) or "") for given in one.args}]
        if not made or handed or any(one.args or any(word.arg is None for word in one.keywords) for one in made):
            raise UnknownValueError
        given = [word.value for one in made for word in one.keywords if word.arg == field]
        return [value for value in (_default(owners[0], field), *given) if value is not None]

    def _of_parameter(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[str]:
        """What the calls of ``function``, known by its name, give its parameter ``name``."""
        names = _parameters(function)
        is_method = names[0] in ("self", "cls")
        default = default_of(function, name) or ast.Name("")
        called = False
        for path in {self.path, self.file.path, *self.file.project.sources} & self.file.project.sources.keys():
            caller = _Values(path, self.file, self.depth)
            for call in caller.nodes:
                target = text_of(call.func) if isinstance(call, ast.Call) else None
                if isinstance(call, ast.Call) and target and target.rpartition(".")[2] == function.name:
                    called = True
                    yield from caller.of_argument(call, name, names.index(name) - is_method, default)
        if not called:
            raise UnknownValueError

    def _assigned(self, text: str) -> list[ast.expr]:
        found = []
        for node in self.nodes:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(text_of(target) == text for target in targets):
                value = getattr(node, "value", None)
                if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
                    raise UnknownValueError
                found.append(value)
        return found

    def _entries(self, value: ast.expr, key: str) -> Iterator[ast.expr]:
        """What the dictionary ``value``, or one that it is a name for, has for ``key``: nothing where it lacks it."""
        text = text_of(value)
        displays = self._assigned(text) if text is not None else [value]
        for display in displays:
            if isinstance(display, ast.Dict) and None not in display.keys:
                pairs = zip(display.keys, display.values, strict=True)
                yield from (one for name, one in pairs if isinstance(name, ast.Constant) and name.value == key)
            elif isinstance(display, ast.Call) and text_of(display.func) == "dict" and not display.args:
                yield from (one.value for one in display.keywords if one.arg == key)
            else:
                raise UnknownValueError
        if not displays:
            raise UnknownValueError
        for node in self.nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Subscript) and text_of(target.value) == text is not None:
                if not isinstance(target.slice, ast.Constant):
                    raise UnknownValueError
                if target.slice.value == key and isinstance(node, ast.Assign):
                    yield node.value
            elif isinstance(node, ast.Call) and text is not None and text_of(node.func) == f"{text}.update":
                yield from (one.value for one in node.keywords if one.arg == key)
                for other in (*node.args, *(one.value for one in node.keywords if one.arg is None)):
                    yield from self._entries(other, key)


def _default(owner: ast.ClassDef, field: str) -> ast.expr | None:
    fields = [one for one in owner.body if isinstance(one, ast.AnnAssign) and text_of(one.target) == field]
    return fields[0].value if fields else None


def _literal(node: ast.expr) -> Iterator[str]:
    if not isinstance(node, ast.Constant) or node.value not in NAMES:
        raise UnknownValueError
    yield str(node.value)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [entry.arg for entry in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
