"""Which calls make modules, whether these hold parameters, and what modules read of themselves."""

from __future__ import annotations

import ast
import enum
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fsdp_rules.project.aliases import Aliases
from fsdp_rules.project.endings import UNKNOWN, Ending, endings_in
from fsdp_rules.project.walking import walk

#: Modules of torch.nn that have no parameters.
PLAIN = re.compile(
    r"(Loss|Pool[123]d|Pad[123]d|Dropout[123]?d?|Shuffle|Shuffle[123]?d|Softmax|Softmax2d|LogSoftmax|Softmin|Upsample"
    r"|UpsamplingNearest2d|UpsamplingBilinear2d|Fold|Unfold|Flatten|Unflatten|Identity|Similarity|Distance|shrink"
    r"|Softplus|Softsign|Sigmoid|Threshold|[Tt]anh|[SG]?ELU|[RC]?R?e?LU6?|LeakyReLU|SiLU|Mish|GLU|Hardswish)$"
)
#: Classes of transformers that are no modules.
BESIDE = re.compile(r"(Config|Arguments|Criteria|Streamer|Trainer|Scheduler)$|Token|Processor|Collator|Extractor")
#: Calls in a constructor that give the object no part with parameters.
HARMLESS = re.compile(
    r"^(super|__init__|register_buffer|int|float|bool|str|len|list|dict|tuple|range|min|max|getattr)$"
)
LIBRARIES = ("torch.nn.", "transformers.")


class Part(enum.IntEnum):
    """What a call makes: nothing that is known, no module, one without parameters, or one that may have some."""

    UNKNOWN = 0
    NONE = 1
    PLAIN = 2
    HOLDS = 3


@dataclass(frozen=True)
class ModuleClass:
    """What a class says of itself: its dotted bases, what its constructor calls, and what it reads of ``self``.

    ``is_called``: it has a ``forward``, as modules have; ``ends``: the parts with whose output that may end.
    """

    bases: tuple[str, ...]
    calls: tuple[str, ...]
    reads: frozenset[str]
    is_called: bool = False
    ends: tuple[Ending, ...] = UNKNOWN


def classes_in(nodes: Iterable[ast.AST], aliases: Aliases) -> dict[str, ModuleClass]:
    """The classes of a file that have bases, by their last names; ``nodes`` are all of the file."""
    found: dict[str, ModuleClass] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.bases:
            bases = tuple(full for base in node.bases if (full := aliases.dotted(base)) is not None)
            is_called = any(isinstance(one, ast.FunctionDef) and one.name == "forward" for one in node.body)
            made, read = tuple(_made(node, aliases)), frozenset(_read(node))
            found[node.name] = ModuleClass(bases, made, read, is_called, endings_in(node))
    return found


def returned_in(nodes: Iterable[ast.AST], aliases: Aliases) -> dict[str, frozenset[str]]:
    """What the results of each function of a file are made by, by its last name; ``nodes`` are all of the file."""
    found: dict[str, frozenset[str]] = {}
    for node in nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        inside = [one for one in walk(node) if isinstance(one, ast.Assign | ast.Return)]
        assigned = {
            target.id: one.value
            for one in inside
            if isinstance(one, ast.Assign)
            for target in one.targets
            if isinstance(target, ast.Name)
        }
        values = [one.value for one in inside if isinstance(one, ast.Return)]
        values = [assigned.get(one.id, one) if isinstance(one, ast.Name) else one for one in values]
        made = {aliases.dotted(one.func) for one in values if isinstance(one, ast.Call)} - {None}
        if made:
            found[node.name] = frozenset(name for name in made if name is not None)
    return found


def _made(node: ast.ClassDef, aliases: Aliases) -> Iterator[str]:
    """What the constructor of a class calls; an empty name for a call that has no name."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__post_init__"):
            yield from (
                aliases.dotted(call.func) or _last(call.func) for call in walk(method) if isinstance(call, ast.Call)
            )


def _read(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        # A property may keep what it is given under another name.
        decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
        if isinstance(statement, ast.FunctionDef) and any(_last(one) == "setter" for one in decorators):
            yield statement.name
    for one in walk(node):
        is_own = isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
        if is_own and isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load):
            yield one.attr


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


@dataclass(frozen=True)
class Parts:
    """The classes and the functions of a project, by their last names."""

    classes: Mapping[str, tuple[ModuleClass, ...]] = field(default_factory=dict)
    returned: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def build(
        cls, classes: Iterable[Mapping[str, ModuleClass]], returned: Iterable[Mapping[str, frozenset[str]]]
    ) -> Parts:
        """Join those of all files."""
        found: dict[str, list[ModuleClass]] = defaultdict(list)
        given: dict[str, set[str]] = defaultdict(set)
        for known in classes:
            for name, one in known.items():
                found[name].append(one)
        for functions in returned:
            for name, made in functions.items():
                given[name] |= made
        return cls(
            {name: tuple(all_of) for name, all_of in found.items()},
            {name: frozenset(made) for name, made in given.items()},
        )

    def made_by(self, dotted: str, depth: int = 6) -> Part:
        """What a call of ``dotted`` makes: a class of torch.nn or of the project, or a function that returns one."""
        last = dotted.rpartition(".")[2]
        if dotted.startswith(LIBRARIES):
            kind = next((name for name in dotted.split(".") if name[:1].isupper()), "")
            if not kind or (dotted.startswith("transformers.") and BESIDE.search(kind)):
                return Part.NONE
            return Part.PLAIN if dotted.startswith("torch.nn.") and PLAIN.search(kind) else Part.HOLDS
        if depth == 0:
            return Part.UNKNOWN
        if last in self.classes:
            return max(self._instance(one, depth) for one in self.classes[last])
        return max((self.made_by(name, depth - 1) for name in self.returned.get(last, ())), default=Part.UNKNOWN)

    def _instance(self, one: ModuleClass, depth: int) -> Part:
        bases = [self._base(name, depth) for name in one.bases]
        best = max(bases, default=Part.NONE)
        if best in (Part.UNKNOWN, Part.NONE):
            # A base of another library may be a module, of which it says nothing but that it is called.
            return Part.HOLDS if best is Part.UNKNOWN and one.is_called else Part.NONE
        made = [name for name in one.calls if not HARMLESS.search(name.rpartition(".")[2])]
        plain = all(name.startswith("torch.") and self.made_by(name, depth - 1) < Part.HOLDS for name in made)
        return Part.PLAIN if plain and best is Part.PLAIN else Part.HOLDS

    def _base(self, name: str, depth: int) -> Part:
        if name.rpartition(".")[2] in ("Module", "LightningModule"):
            return Part.PLAIN
        return self.made_by(name, depth - 1)

    def reads(self, attribute: str) -> bool:
        """Whether some module of the project reads an attribute of its own of this name."""
        return self.read_like(re.escape(attribute)) is not None

    def read_like(self, pattern: str) -> str | None:
        """The first attribute by name whose whole name fits ``pattern``, and that a module of the project reads."""
        fits = re.compile(pattern).fullmatch
        found = {
            name
            for all_of in self.classes.values()
            for one in all_of
            for name in filter(fits, one.reads)
            if self._instance(one, 6) in (Part.PLAIN, Part.HOLDS)
        }
        return min(found, default=None)
