"""Writes what a traced run gave to wraps into their calls, where the code reads it from a configuration.

Lines stay where they are, so that what the run showed of a line is still about it; columns that move are moved.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsdp_rules.project.observed import FileSeen, SeenWrap

#: What the constructor takes, in its order, and of that what has a value that can be written.
_ORDER = ("module", "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch",
          "mixed_precision", "ignored_modules", "param_init_fn", "device_id", "sync_module_states",
          "forward_prefetch", "limit_all_gathers", "use_orig_params", "ignored_states", "device_mesh")  # fmt: skip
_VALUES = frozenset({"sharding_strategy", "cpu_offload", "backward_prefetch", "mixed_precision", "sync_module_states",
                     "forward_prefetch", "limit_all_gathers", "use_orig_params"})  # fmt: skip
_FSDP1 = "torch.distributed.fsdp"
#: What a MixedPrecision has where nothing is given.
_FIELDS = {"param_dtype": None, "reduce_dtype": None, "buffer_dtype": None, "keep_low_precision_grads": False,
           "cast_forward_inputs": False, "cast_root_forward_inputs": True}  # fmt: skip
_NORMS = ["torch.nn.modules.batchnorm._BatchNorm"]
Position = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Edit:
    """``text`` in place of what is from ``start`` to ``end``: lines from 1, columns in characters."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass
class Specialized:
    """``text`` after it; ``said`` has for each call, by line and column as they were, what was written."""

    text: str
    edits: list[_Edit] = field(default_factory=list)
    said: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def moved(self, seen: FileSeen) -> FileSeen:
        """``seen`` at the places that this text has; what was read in what is gone is left out."""
        wraps = {self._at(at): _telling(wrap, self.said.get(at, ())) for at, wrap in seen.wraps.items()}
        values = {self._span(at): value for at, value in seen.values.items() if not self._is_gone(at)}
        states = {self._at(at): state for at, state in seen.states.items()}
        return replace(seen, values=values, wraps=wraps, late=frozenset(map(self._at, seen.late)), states=states)

    def _span(self, at: Position) -> Position:
        return (*self._at((at[0], at[1])), *self._at((at[2], at[3])))

    def _at(self, place: tuple[int, int]) -> tuple[int, int]:
        line, column = place
        for edit in self.edits:
            if edit.end[0] == line and edit.end[1] <= place[1]:
                kept = edit.start[1] if edit.start[0] == line else 0
                column += kept + (len(edit.text) if edit.start[0] == line else 0) - edit.end[1]
        return line, column

    def _is_gone(self, at: Position) -> bool:
        return any(edit.start <= (at[0], at[1]) and (at[2], at[3]) <= edit.end for edit in self.edits)


def specialized(text: str, wraps: Sequence[Mapping[str, Any]]) -> Specialized:
    """``text`` with the values of ``wraps``, those of its own path, in the calls that made them.

    What several wraps of one call were given differently is left as it is.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Specialized(text)
    given: dict[tuple[int, int], dict[str, Any]] = {}
    for wrap in wraps:
        at, arguments = (wrap["at"][1], wrap["at"][2]), wrap["arguments"]
        known = given.setdefault(at, dict(arguments))
        given[at] = {name: value for name, value in known.items() if name in arguments and arguments[name] == value}
        given[at] |= dict.fromkeys({*known, *arguments} - given[at].keys(), ...)
    writer = _Writer(text, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset) in given:
            writer.write(node, given[node.lineno, node.col_offset])
    return writer.done()


class _Writer:
    def __init__(self, text: str, tree: ast.Module) -> None:
        self._lines = text.splitlines(keepends=True)
        self._tree = tree
        self._names = _Names(tree)
        self._result = Specialized(text)

    def write(self, call: ast.Call, given: Mapping[str, Any]) -> None:
        """The values of ``given`` for the arguments of ``call`` that are read somewhere else."""
        written = [(_ORDER[place], one) for place, one in enumerate(call.args) if place < len(_ORDER)]
        if any(isinstance(one, ast.Starred) for one in call.args):
            return
        written += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None]
        said: list[str] = []
        for name, node in written:
            value = self._literal(name, given.get(name, ...))
            if value is not None and not self._is_known(node):
                said.append(f"{name}={value} in place of {ast.unparse(node)}")
                self._put(node, value)
        spread = [keyword for keyword in call.keywords if keyword.arg is None]
        missing = {name: value for name, value in given.items() if name not in dict(written)}
        if len(spread) == 1 and missing and isinstance(spread[0].value, ast.Name | ast.Attribute):
            source = ast.unparse(spread[0].value)
            values = {name: self._literal(name, value) or f'{source}["{name}"]' for name, value in missing.items()}
            if ... not in missing.values() and not self._is_display(spread[0].value):
                told = ", ".join(f"{name}={value}" for name, value in values.items())
                said.append(f"{told} in place of **{source}")
                self._put(spread[0], told)
        if said:
            self._result.said[call.lineno, call.col_offset] = said

    def done(self) -> Specialized:
        """The text with all edits in it."""
        result = self._result
        if result.edits:
            result.edits += [_Edit(*self._span_at(at), text) for at, text in self._names.added()]
        result.edits.sort(key=lambda edit: edit.start, reverse=True)
        lines = list(self._lines)
        for edit in result.edits:
            (first, start), (last, end) = edit.start, edit.end
            between = "".join("\n" for _ in range(last - first))
            lines[first - 1 : last] = [lines[first - 1][:start] + edit.text + between + lines[last - 1][end:]]
            lines = "".join(lines).splitlines(keepends=True)
        result.text = "".join(lines)
        return result

    def _put(self, node: ast.expr | ast.keyword, text: str) -> None:
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        self._result.edits.append(_Edit(self._in_characters(start), self._in_characters(end), text))

    def _span_at(self, at: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        place = self._in_characters(at)
        return place, place

    def _in_characters(self, at: tuple[int, int]) -> tuple[int, int]:
        line = self._lines[at[0] - 1].encode()
        return at[0], len(line[: at[1]].decode(errors="ignore"))

    def _literal(self, name: str, value: Any) -> str | None:
        """How the value of the argument ``name`` is written in this file; None where it is none that can be."""
        if name not in _VALUES:
            return None
        if isinstance(value, bool | None):
            return repr(value)
        if isinstance(value, str):
            owner, _, member = value.partition(".")
            held = self._names.of(_FSDP1, owner) if member.isidentifier() else None
            return f"{held}.{member}" if held else None
        if not isinstance(value, Mapping):
            return None
        fields = dict(value)
        owner, norms = str(fields.pop("class", "")), fields.pop("_module_classes_to_ignore", _NORMS)
        texts = {n: self._field(v) for n, v in fields.items() if v != _FIELDS.get(n, ...)}
        held = self._names.of(_FSDP1, owner)
        if held is None or norms != _NORMS or None in texts.values():
            return None
        return f"{held}({', '.join(f'{n}={v}' for n, v in texts.items())})"

    def _field(self, value: Any) -> str | None:
        if isinstance(value, bool | None):
            return repr(value)
        torch = self._names.of("", "torch") if isinstance(value, str) and value.startswith("torch.") else None
        return None if torch is None else f"{torch}.{value.partition('.')[2]}"

    def _is_known(self, node: ast.expr, depth: int = 4) -> bool:
        """Whether the code itself says what ``node`` is."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Attribute):
            return ast.unparse(node.value) in self._names.imported
        if isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            return ast.unparse(node.func) in self._names.imported and all(self._is_known(one) for one in parts)
        if not isinstance(node, ast.Name) or not depth:
            return False
        bound = self._names.assigned.get(node.id, [])
        return len(bound) == 1 and bound[0] is not None and self._is_known(bound[0], depth - 1)

    def _is_display(self, node: ast.expr) -> bool:
        """Whether ``node`` is a dictionary that the file writes out, once."""
        bound = self._names.assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        called = bound[0].func if len(bound) == 1 and isinstance(bound[0], ast.Call) else None
        is_dict = isinstance(called, ast.Name) and called.id == "dict"
        return len(bound) == 1 and (is_dict or isinstance(bound[0], ast.Dict))


class _Names:
    """What names mean at the top of a file, and the imports that are added to it."""

    def __init__(self, tree: ast.Module) -> None:
        self._imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        #: Each local name with what it was imported as.
        self.imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.imported |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self.imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        #: What is assigned to each name, None for what is bound in another way.
        self.assigned: dict[str, list[ast.expr | None]] = {}
        targets = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Assign) for one in node.targets}
        for node in ast.walk(tree):
            for name, value in () if id(node) in targets else _bound(node):
                self.assigned.setdefault(name, []).append(value)
        self._wanted: dict[str, str] = {}

    def of(self, module: str, name: str) -> str | None:
        """The name by which the file has ``name`` of ``module``; None where another thing is called so."""
        full = f"{module}.{name}".lstrip(".")
        for local, target in self.imported.items():
            if target == full or (module and target.startswith(module) and target.endswith(f".{name}")):
                return local
        if name in self.assigned or name in self.imported or hasattr(builtins, name):
            return None
        self._wanted[name] = module
        return name

    def added(self) -> Iterator[tuple[tuple[int, int], str]]:
        """Where the imports of names that the file lacks are put, and how they read."""
        for module in sorted(set(self._wanted.values())):
            names = [name for name, of in self._wanted.items() if of == module]
            of_module = [node for node in self._imports if isinstance(node, ast.ImportFrom) and node.module == module]
            listed = next((node for node in of_module if node.names[0].name != "*"), None)
            if listed is not None:
                yield _end(listed.names[-1]), "".join(f", {name}" for name in names)
            elif self._imports:
                told = f"from {module} import {', '.join(names)}" if module else f"import {', '.join(names)}"
                yield _end(self._imports[0]), f"; {told}"


def _end(node: ast.stmt | ast.alias) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        yield from ((one.id, node.value) for one in node.targets if isinstance(one, ast.Name))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id, None
    elif isinstance(node, ast.arg):
        yield node.arg, None
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, None


def _telling(wrap: SeenWrap, said: Sequence[str]) -> SeenWrap:
    return replace(wrap, written=tuple(said))
