"""What one file tells the others: its imports, its functions, and where values go; from the standard library's ast."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.gates import gated_lines, statements


@dataclass(frozen=True)
class Flow:
    """The value at ``source`` reaches ``target``; ``sure`` when no guess was made. Both are places (see `_Indexer`)."""

    source: str
    target: str
    sure: bool


@dataclass(frozen=True)
class FileFacts:
    """What one file tells the others; picklable."""

    path: str
    module: str
    aliases: dict[str, str]
    flows: tuple[Flow, ...]
    functions: dict[str, tuple[str, ...]]
    flags: frozenset[str]
    imported: frozenset[str] = field(default=frozenset())
    #: The modules that the file star-imports, and every name that it reads where there is one.
    starred: frozenset[str] = field(default=frozenset())
    reads: frozenset[str] = field(default=frozenset())
    #: The last names of the bases of each class, by the class's qualified name.
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The methods of its bases that each class calls, through ``super()`` or by their class, by its qualified name.
    supers: dict[str, frozenset[str]] = field(default_factory=dict)
    #: The functions that return a ``functools.partial(FSDP, ...)``.
    makers: frozenset[str] = field(default=frozenset())
    #: The context managers that set the kind of state for the code that runs inside them.
    switchers: frozenset[str] = field(default=frozenset())


#: Words whose presence anywhere in the tree changes what a rule may assume.
FLAG_PATTERNS: dict[str, re.Pattern[bytes]] = {
    "batchnorm": re.compile(rb"BatchNorm|\btorchvision\b|\btimm\b"),
    "meta": re.compile(rb"""["']meta["']|init_empty_weights|deferred_init"""),
    "set_device": re.compile(rb"\bset_device(_index)?\("),
    "ddp": re.compile(rb"\bDistributedDataParallel\b"),
    "ddp_wraps": re.compile(rb"\b(DistributedDataParallel|DDP)\(\s*[^)\s]"),
    "fairscale": re.compile(rb"\bfairscale\b"),
    "module_attribute": re.compile(rb"self\.module\s*(:[^=\n]+)?=[^=]"),
    "ignored": re.compile(rb"\bignored_(modules|states|parameters)\b[\"']?\]?\s*[=:](?![=\s]*(None|\[\])\s*[,)}\n])"),
    "fsdp2": re.compile(rb"\bfully_shard\b"),
    "mixed_precision": re.compile(rb"\bMixedPrecision\b"),
    "sticky_state": re.compile(rb"\bset_state_dict_type\b"),
    "handed_context": re.compile(
        rb"(\breturn|enter_context\()[^\n]*\bstate_dict_type\(|\bstate_dict_type\([^:]*\):\s*(#[^\n]*)?\n\s*yield\b"
    ),
    "offload": re.compile(rb"\bCPUOffload\("),
    "low_precision": re.compile(
        rb"\.(bfloat16|half)\(\)|\btorch_dtype\b|\.to\((dtype\s*=\s*)?torch\.(bfloat16|float16|half)\b"
    ),
}


def index_source(path: str, data: bytes) -> FileFacts | None:
    """The facts of one file, or None when it does not parse (the rewrite of that file then says why)."""
    try:
        tree = ast.parse(data)
        gated = gated_lines(tree, data.decode("utf-8", "replace")) if b"fsdp" in data.lower() else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = module_name(path)
    indexer = _Indexer(place_key(path), module, gated)
    try:
        indexer.run(tree)
    except RecursionError:
        return None
    flags = frozenset(name for name, pattern in FLAG_PATTERNS.items() if pattern.search(data))
    flags |= indexer.flags
    return FileFacts(
        path=path,
        module=module,
        aliases=indexer.aliases,
        flows=tuple(indexer.flows),
        functions=indexer.functions,
        flags=flags,
        imported=frozenset(indexer.imported),
        starred=frozenset(indexer.starred),
        reads=_reads(tree) if indexer.starred else frozenset(),
        classes=indexer.classes,
        supers=indexer.supers,
        makers=frozenset(indexer.makers),
        switchers=frozenset(indexer.switchers),
    )


def _reads(tree: ast.Module) -> frozenset[str]:
    """The names that a file reads or may mean by a text, as in ``__all__``."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(names | {text for text in texts if text.isidentifier()})


def _times_bound(tree: ast.Module, name: str) -> int:
    """How often ``name`` is bound or deleted anywhere in ``tree``, arguments included."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name and is_target(node))
        or (isinstance(node, ast.arg) and node.arg == name)
        for node in ast.walk(tree)
    )


def is_target(node: ast.Name) -> bool:
    """Whether the name is bound or deleted there."""
    return not isinstance(node.ctx, ast.Load)


def module_name(path: str) -> str:
    """The dotted name under which the file at ``path`` would be imported from the directory the path starts in."""
    parts = [part for part in PurePosixPath(path).with_suffix("").parts if part not in ("/", ".", "..")]
    if parts and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


SEED = "seed"


def place_key(path: str) -> str:
    """``path`` as it stands in a place, whose parts are set apart by colons."""
    return path.replace(":", "\0")


#: Names of methods in which models group their own parameters for an optimizer.
GROUPING = re.compile(r"optim|param_?groups?|weight_decay")
#: Attributes of a wrapped model that give the model inside, which under FSDP2 is the same object.
INNER = (".module", "._fsdp_wrapped_module")


def _supers(owner: ast.ClassDef) -> frozenset[str]:
    """The methods that ``owner`` calls as those of a base."""
    if not owner.bases:
        return frozenset()
    bases = {ast.dump(base) for base in owner.bases}
    return frozenset(
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and (
            (
                isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
                and node.value.func.id == "super"
            )
            or ast.dump(node.value) in bases
        )
    )


def _is_dataclass(owner: ast.ClassDef) -> bool:
    """Whether ``owner`` gets its ``__init__`` from ``dataclass``, with no fields of a base before its own."""
    own = any(isinstance(entry, ast.FunctionDef) and entry.name == "__init__" for entry in owner.body)
    return not (own or owner.bases) and any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list)


def _switches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether ``function`` is a context manager that sets the kind of state in one of FSDP1's two ways."""
    if not any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
        return False
    nodes = list(ast.walk(function))
    if any(isinstance(node, ast.Attribute) and node.attr == "set_state_dict_type" for node in nodes):
        return True
    return any(
        any(isinstance(node, ast.Attribute) and node.attr == "state_dict_type" for node in ast.walk(setting))
        for block in nodes
        for setting in _settings(block)
    )


def _settings(node: ast.AST) -> list[ast.expr]:
    """What ``node`` enters around a ``yield``, or for the rest of its function."""
    if isinstance(node, ast.With) and any(isinstance(inner, ast.Yield) for inner in ast.walk(node)):
        return [item.context_expr for item in node.items]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "enter_context":
        return node.args
    return []


class _Indexer:
    """Collects flows between places. A place is a string:

    ``var:<path>:<scope>:<text>`` a name or dotted name in a scope; ``attr:<name>`` an attribute of any object;
    ``set:<name>`` an attribute that is assigned from outside of its object's own class;
    ``ret:<path>:<function>[:<i>]`` what a function returns; ``param:<path>:<function>:<name>``;
    ``call:<path>:<dotted callee>[:<i>]`` and ``arg:<path>:<dotted callee>:<position or keyword>`` are joined
    to functions of other files by :class:`Project`, as is ``made:<path>:<dotted callee>``, what the result of a call
    gives when it is called in turn; ``on:<method>`` is what a method that groups parameters is called
    on; ``seed`` is an ``FSDP(...)`` call. A ``var`` that ends with ``~``
    is the name above the line of its function that wraps it.
    """

    def __init__(self, path: str, module: str, gated: Mapping[int, bool]) -> None:
        self.path = path
        self.package = module.rpartition(".")[0] if not path.endswith("__init__.py") else module
        self.aliases: dict[str, str] = {}
        self.flows: list[Flow] = []
        self.functions: dict[str, tuple[str, ...]] = {}
        self.imported: set[str] = set()
        self.starred: set[str] = set()
        self.classes: dict[str, tuple[str, ...]] = {}
        self.supers: dict[str, frozenset[str]] = {}
        self.makers: set[str] = set()
        self.switchers: set[str] = set()
        self.gated = gated
        self.flags: set[str] = set()
        self.factories: set[str] = set()
        self.wrapped_from: dict[tuple[str, str], int] = {}
        self.rebound: dict[tuple[str, str], int] = {}

    def run(self, tree: ast.Module) -> None:
        for node in statements(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.aliases[bound] = alias.name if alias.asname else bound
                    self.imported.add(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node.module, node.level)
                for alias in node.names:
                    if alias.name == "*":
                        self.starred.add(base)
                        continue
                    self.aliases[alias.asname or alias.name] = f"{base}.{alias.name}"
                    self.imported.add(f"{base}.{alias.name}")
        self._find_aliases(tree)
        self._note_wraps(tree.body, "", 0)
        self._find_factories(tree)
        self._body(tree.body, "")

    def _note_wraps(self, body: Iterable[ast.stmt], scope: str, loop: int) -> None:
        """Note from which line on ``scope`` has each name wrapped; all of a loop counts as one line.

        Where no ``FSDP(...)`` says it, that is the last line that makes a name out of itself (``model = f(model)``).
        """
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                given = {self._text(argument) for argument in node.value.args}
                given |= {self._text(keyword.value) for keyword in node.value.keywords}
                for target in node.targets:
                    text = self._text(target)
                    if text is None:
                        continue
                    if self._known(node.value.func) == FSDP:
                        self.wrapped_from.setdefault((scope, text), loop or node.lineno)
                    elif text in given:
                        self.rebound[scope, text] = loop or node.lineno
            inner = loop or (node.lineno if isinstance(node, ast.For | ast.AsyncFor | ast.While) else 0)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    self._note_wraps([child], scope, inner)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self._note_wraps(child.body, scope, inner)

    def _is_early(self, scope: str, text: str, line: int) -> bool:
        return line < self.wrapped_from.get((scope, text), self.rebound.get((scope, text), 0))

    def _find_aliases(self, tree: ast.Module) -> None:
        """Other names that the module gives FSDP1's class, which are then read like those of imports."""
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or len(targets) != 1:
                continue
            target = targets[0]
            if not isinstance(target, ast.Name) or target.id in self.aliases or self._known(node.value) != FSDP:
                continue
            if _times_bound(tree, target.id) == 1:
                self.aliases[target.id] = self._dotted(node.value) or ""

    def _find_factories(self, tree: ast.Module) -> None:
        """The names of ``functools.partial(FSDP, ...)`` objects: what they are called with is sharded."""
        for node in statements(tree):
            if isinstance(node, ast.Assign) and self._is_factory(node.value):
                self.factories.update(text for target in node.targets if (text := self._text(target)) is not None)

    def _is_factory(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or not node.args:
            return False
        callee = self._dotted(node.func)
        return callee is not None and callee.rpartition(".")[2] == "partial" and self._known(node.args[0]) == FSDP

    def _absolute(self, module: str | None, level: int) -> str:
        if not level:
            return module or ""
        parts = self.package.split(".") if self.package else []
        kept = parts[: len(parts) - (level - 1)]
        return ".".join([*kept, *([module] if module else [])])

    def _body(self, body: Iterable[ast.stmt], scope: str) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{scope}.{node.name}" if scope else node.name
            arguments = node.args
            names = [arg.arg for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
            self.functions[inner] = tuple(names)
            self._note_wraps(node.body, inner, 0)
            if _switches(node):
                self.switchers.add(inner)
            for name in names:
                self._flow(f"param:{self.path}:{inner}:{name}", self._var(inner, name))
                if (inner, name) in self.wrapped_from or (inner, name) in self.rebound:
                    self._flow(f"param:{self.path}:{inner}:{name}", f"{self._var(inner, name)}~")
            self._body(node.body, inner)
            return
        if isinstance(node, ast.ClassDef):
            inner = f"{scope}.{node.name}" if scope else node.name
            self.classes[inner] = tuple(text.rpartition(".")[2] for base in node.bases if (text := self._text(base)))
            self.supers[inner] = _supers(node)
            for base in node.bases:
                if self._known(base) == FSDP:
                    self._found(base)
            if _is_dataclass(node):
                self._fields(node, inner)
            self._body(node.body, inner)
            return
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, scope)
        elif isinstance(node, ast.Return) and node.value is not None:
            if self._is_factory(node.value) or self._text(node.value) in self.factories:
                self.makers.add(scope)
            if isinstance(node.value, ast.Tuple):
                for position, element in enumerate(node.value.elts):
                    self._value(element, f"ret:{self.path}:{scope}:{position}", scope)
            else:
                self._value(node.value, f"ret:{self.path}:{scope}", scope)
        elif isinstance(node, ast.For):
            self._assign(node.target, node.iter, scope, sure=False)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child, scope)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                self._body(child.body, scope)
            else:
                self._calls(child, scope)

    def _fields(self, node: ast.ClassDef, inner: str) -> None:
        """Let the arguments of a dataclass's constructor flow into its attributes."""
        names = [
            field.target.id
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ]
        initializer = f"{inner}.__init__"
        self.functions[initializer] = ("self", *names)
        for name in names:
            self._flow(f"param:{self.path}:{initializer}:{name}", self._var(initializer, f"self.{name}"))

    def _assign(self, target: ast.expr, value: ast.expr, scope: str, sure: bool = True) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else None
            for position, element in enumerate(target.elts):
                if parts is not None and position < len(parts):
                    self._assign(element, parts[position], scope, sure)
                elif isinstance(value, ast.Call):
                    callee = self._dotted(value.func)
                    if callee is not None:
                        for place in self._targets(element, scope):
                            self._flow(f"call:{self.path}:{scope}:{callee}:{position}", place, sure)
            return
        for place in self._targets(target, scope):
            self._value(value, place, scope, sure)

    def _targets(self, target: ast.expr, scope: str) -> Iterator[str]:
        while isinstance(target, ast.Subscript | ast.Starred):
            target = target.value
        text = self._text(target)
        if text is not None:
            yield self._var(scope, text)
            if self._is_early(scope, text, target.lineno):
                yield f"{self._var(scope, text)}~"
        if isinstance(target, ast.Attribute):
            yield f"attr:{target.attr}"
            if text is None or not text.startswith("self.") or text.count(".") > 1:
                yield f"set:{target.attr}"

    def _value(self, node: ast.expr, place: str, scope: str, sure: bool = True) -> None:
        """Let everything that ``node`` may evaluate to flow into ``place``."""
        if isinstance(node, ast.IfExp):
            self._value(node.body, place, scope, sure)
            self._value(node.orelse, place, scope, sure)
        elif isinstance(node, ast.Await | ast.NamedExpr | ast.Starred):
            self._value(node.value, place, scope, sure)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            for element in node.elts:
                self._value(element, place, scope, False)
        elif isinstance(node, ast.Dict):
            for element in node.values:
                self._value(element, place, scope, False)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            self._value(node.elt, place, scope, False)
        elif isinstance(node, ast.Call):
            self._call_value(node, place, scope, sure)
        elif isinstance(node, ast.Subscript):
            self._value(node.value, place, scope, False)
        else:
            text = self._text(node)
            if text is not None:
                early = "~" if self._is_early(scope, text, node.lineno) else ""
                self._flow(self._var(scope, text) + early, place, sure)
            if text is not None and text.endswith(INNER):
                self._flow(self._var(scope, text.rpartition(".")[0]), place, False)

    def _call_value(self, node: ast.Call, place: str, scope: str, sure: bool) -> None:
        if self._is_factory(node.func):
            self._found(node)
            self._flow(SEED, place, sure)
            return
        callee = self._dotted(node.func)
        if callee is None:
            maker = self._dotted(node.func.func) if isinstance(node.func, ast.Call) else None
            if maker is not None:
                self._flow(f"made:{self.path}:{scope}:{maker}", place, sure)
            return
        known = canonical(callee)
        if known in (FSDP, "wrap") or callee in self.factories:
            self._found(node)
            self._flow(SEED, place, sure)
        elif callee == "torch.compile" or callee.rpartition(".")[2] in ("compile", "eval", "train", "to", "cuda"):
            inner = node.func.value if isinstance(node.func, ast.Attribute) and callee != "torch.compile" else None
            if inner is None and node.args:
                inner = node.args[0]
            if inner is not None:
                self._value(inner, place, scope, sure)
        elif self._is_factory(node):
            self._found(node)
        elif callee.rpartition(".")[2] in ("values", "items") and isinstance(node.func, ast.Attribute):
            self._value(node.func.value, place, scope, False)
        else:
            self._flow(f"call:{self.path}:{scope}:{callee}", place, sure)

    def _found(self, node: ast.expr) -> None:
        self.flags.add("gated" if self.gated.get(node.lineno) else "fsdp1")
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "process_group" and not isinstance(keyword.value, ast.Constant | ast.Tuple):
                self.flags.add("own_group")

    def _known(self, node: ast.expr) -> str | None:
        dotted = self._dotted(node)
        return canonical(dotted) if dotted else None

    def _calls(self, node: ast.AST, scope: str) -> None:
        for child in ast.walk(node):
            if not isinstance(child, ast.Call):
                continue
            callee = self._dotted(child.func)
            if callee is None:
                continue
            if canonical(callee) == FSDP:
                self._found(child)
            if isinstance(child.func, ast.Attribute) and GROUPING.search(child.func.attr):
                self._value(child.func.value, f"on:{child.func.attr}", scope)
            for position, argument in enumerate(child.args):
                self._value(argument, f"arg:{self.path}:{scope}:{callee}:{position}", scope)
            for keyword in child.keywords:
                if keyword.arg is not None:
                    self._value(keyword.value, f"arg:{self.path}:{scope}:{callee}:{keyword.arg}", scope)

    def _var(self, scope: str, text: str) -> str:
        if text.startswith("self."):
            owner = scope.rpartition(".")[0]
            return f"var:{self.path}:{owner}:{text}"
        return f"var:{self.path}:{scope}:{text}"

    def _text(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([node.id, *reversed(parts)])

    def _dotted(self, node: ast.expr) -> str | None:
        text = self._text(node)
        return expand(text, self.aliases) if text is not None else None

    def _flow(self, source: str, target: str, sure: bool = True) -> None:
        if source != target:
            self.flows.append(Flow(source, target, sure))
