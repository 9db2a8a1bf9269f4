"""The import lines of a rewritten file: what is no longer used goes, what the output needs comes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from typing import cast

import libcst as cst

from fsdp_rules.engine.apply import settle
from fsdp_rules.file.comments import REMOVED, comments, is_removed, removed_line
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.printing import import_text
from fsdp_rules.fsdp1.names import CHECKPOINT_WRAPPER, CONFIG_NAMES, FSDP, FSDP_PACKAGE, POLICY_NAMES, canonical
from fsdp_rules.project.gates import VERSION_TEST, statements

#: Modules whose names a rewrite may leave unused besides FSDP1's own.
CLEANED = (
    *("functools", "contextlib", "enum", "torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"),
    *(FSDP_PACKAGE, CHECKPOINT_WRAPPER),
)
MOVED = CONFIG_NAMES | POLICY_NAMES
#: In what a text may stand for a name.
NAMING = (
    *(ast.arg, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef),
    *(ast.Subscript, ast.Call, ast.Assign, ast.AugAssign),
)
#: Marks where an FSDP1 import stood, which is where FSDP2's belongs.
FSDP1_IMPORT = "fsdp1_import"


def tidy_imports(before: File, module: cst.Module, wanted: Iterable[str]) -> tuple[cst.Module, str]:
    """``module`` (the edited tree of ``before``) with minimal imports, and what became of FSDP1's ("" for nothing).

    ``wanted`` are import statements that the edits may need; each is added only if the name that it binds is used
    and not bound already. FSDP1 names that helpers still take are imported from ``fsdp_compat`` instead of torch.
    """
    if before.settings.to == "shim":
        bound = _bound(before, module)
        return _Adder(before, [entry for entry in wanted if _bound_name(entry) not in bound], False).run(module), ""
    names: dict[str, set[str]] = {}
    used_before = _used_at_top(before, before.module, names)
    used = _used_at_top(before, module, names)
    cleaner = _Cleaner(before, used, used_before)
    module = _visited(before, module, cleaner, "import")
    bound = _bound(before, module)
    needed = [*cleaner.moved]
    for statement in wanted:
        name = _bound_name(statement)
        if name in used and name not in bound:
            needed.append(statement)
    if needed or cleaner.emptied:
        module = _Adder(before, sorted(set(needed)), cleaner.emptied).run(module)
    return module, cleaner.said()


def _visited(before: File, module: cst.Module, visitor: cst.CSTTransformer, word: str) -> cst.Module:
    """``module``, an edited version of ``before``, with those of its statements visited that have ``word`` in them."""
    body: list[cst.BaseStatement] = []
    for statement in module.body:
        new = statement.visit(visitor) if word in before.printer.text(statement) else statement
        body.extend(cast("Sequence[cst.BaseStatement]", new if isinstance(new, cst.FlattenSentinel) else [new]))
    return module.with_changes(body=body)


def _used_at_top(before: File, module: cst.Module, known: dict[str, set[str]]) -> set[str]:
    """What :func:`_used` gives for ``module``, an edited version of ``before``; ``known`` is filled by statement."""
    texts = [before.printer.text(statement) for statement in module.body]
    for text in texts:
        if text not in known:
            known[text] = _used(ast.parse(text))
    return set().union(*(known[text] for text in texts))


def _used(tree: ast.AST) -> set[str]:
    """The names that ``tree`` reads, in the texts of annotations and of ``__all__`` too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        for place in _places_of_named_types(node) if isinstance(node, NAMING) else ():
            for text in ast.walk(place):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    names.update(_annotation_words(text.value))
    return names


def _places_of_named_types(node: ast.AST) -> list[ast.AST]:
    """Where, right inside ``node``, a text stands for a name."""
    if isinstance(node, ast.arg | ast.AnnAssign):
        return [node.annotation] if node.annotation is not None else []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.returns] if node.returns is not None else []
    if isinstance(node, ast.Subscript):
        name = _last_name(node.value)
        # Optional["Model"], list["Model"]; but CONFIG["Model"] and names["Model"] are look-ups.
        is_type = name[:1].isupper() and not name.isupper()
        return [node.slice] if is_type or name in ("list", "dict", "set", "tuple", "type") else []
    if isinstance(node, ast.Call) and _last_name(node.func) in ("cast", "TypeVar", "ForwardRef", "NewType"):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.value] if any(_last_name(target) == "__all__" for target in targets) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _last_name(node.func.value) == "__all__":
        return [*node.args]
    return []


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _annotation_words(text: str) -> Iterable[str]:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return ()
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _bound(before: File, module: cst.Module) -> set[str]:
    """The names that the imports of ``module``, an edited version of ``before``, bind."""
    texts = [text for statement in module.body if "import" in (text := before.printer.text(statement))]
    nodes = [node for text in texts for node in statements(ast.parse(text))]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}


def _bound_name(statement: str) -> str:
    return statement.split(" as ")[-1].split(" import ")[-1].removeprefix("import ").strip().partition(".")[0]


class _StatementTransformer(cst.CSTTransformer):
    """Looks at statements, not into them."""

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return False


class _Cleaner(_StatementTransformer):
    """Takes unused names out of import statements; an emptied statement stays as a marker for :class:`_Adder`."""

    def __init__(self, before: File, used: set[str], used_before: set[str]) -> None:
        super().__init__()
        self.before = before
        self.used = used
        self.used_before = used_before
        self.moved: list[str] = []
        self.names: list[str] = []
        self.gone = False
        self.emptied = False
        self.guards = 0
        self.depth = 0
        stays = any(
            canonical(before.project.resolve(before.aliases[name])) == FSDP
            for name in used & set(before.aliases) & _bound(before, before.module)
        )
        self.moves = before.settings.helpers and not stays

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.depth -= 1
        return updated_node

    def visit_Try(self, node: cst.Try) -> None:
        self.guards += 1

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try:
        self.guards -= 1
        return updated_node

    def visit_If(self, node: cst.If) -> None:
        self.guards += self._guards(node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        self.guards -= self._guards(original_node)
        return updated_node

    def _guards(self, node: cst.If) -> bool:
        """Whether the imports in an ``if`` are a choice: at the top of a file, or between versions."""
        return not self.depth or bool(VERSION_TEST.search(cst.Module([]).code_for_node(node.test)))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if self.guards or len(updated_node.body) != 1:
            return updated_node
        small = updated_node.body[0]
        if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            if small.module is not None and not small.relative:
                return self._from(updated_node, small)
            return self._reexported(updated_node, small)
        if isinstance(small, cst.Import):
            return self._plain(updated_node, small)
        return updated_node

    def _from(
        self, line: cst.SimpleStatementLine, node: cst.ImportFrom
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        module = dotted(cast("cst.CSTNode", node.module)) or ""
        if isinstance(node.names, cst.ImportStar):
            return line
        if not module.startswith(CLEANED):
            return self._reexported(line, node)
        kept: list[cst.ImportAlias] = []
        moved: list[str] = []
        for alias in node.names:
            full = f"{module}.{alias.evaluated_name}"
            local = alias.evaluated_alias or alias.evaluated_name
            known = canonical(full)
            if self._drop(local, known is not None):
                self.gone |= known is not None
                continue
            if known in MOVED and self.moves:
                moved.append(self._spelled(alias))
                self.names.append(alias.evaluated_name)
                continue
            kept.append(alias)
        if len(kept) == len(node.names):
            return line
        if moved and self.depth:
            shim = line.with_changes(body=[_from_import("fsdp_compat", moved)])
            if not kept:
                return shim
            rest = _regenerated(line, node, module, kept).with_changes(leading_lines=())
            return cst.FlattenSentinel([shim, rest])
        self.moved += [f"from fsdp_compat import {name}" for name in moved]
        if not kept:
            self.emptied = True
            return removed_line(line.leading_lines, FSDP1_IMPORT if module.startswith(FSDP_PACKAGE) else "")
        return _regenerated(line, node, module, kept)

    def _reexported(self, line: cst.SimpleStatementLine, node: cst.ImportFrom) -> cst.SimpleStatementLine:
        """``line`` without FSDP1's names from another module of the project, where the edits used them up."""
        if isinstance(node.names, cst.ImportStar):
            return line
        kept: list[cst.ImportAlias] = []
        for alias in node.names:
            local = alias.evaluated_alias or alias.evaluated_name
            full = self.before.project.resolve(self.before.aliases.get(local, ""))
            if canonical(full) is None or local not in self.used_before or not self._drop(local, False):
                kept.append(alias)
        if len(kept) == len(node.names):
            return line
        if not kept:
            self.emptied = True
            return removed_line(line.leading_lines)
        module = "." * len(node.relative) + (dotted(node.module) or "" if node.module is not None else "")
        return _regenerated(line, node, module, kept)

    def _plain(self, line: cst.SimpleStatementLine, node: cst.Import) -> cst.SimpleStatementLine:
        kept = []
        for alias in node.names:
            name = alias.evaluated_name
            local = alias.evaluated_alias or name.partition(".")[0]
            shared = alias.evaluated_alias is None and name.startswith("torch.")
            if name.startswith(CLEANED) and not shared and self._drop(local, False):
                continue
            kept.append(alias)
        if len(kept) == len(node.names):
            return line
        if not kept:
            self.emptied = True
            return removed_line(line.leading_lines)
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return line.with_changes(body=[node.with_changes(names=kept)])

    def said(self) -> str:
        """What became of the imports of FSDP1 names."""
        if self.names:
            return f"{', '.join(sorted(set(self.names)))}: imported from fsdp_compat, whose helpers take them"
        return "imports of FSDP1 names that are no longer used are removed" if self.gone else ""

    def _drop(self, local: str, fsdp1: bool) -> bool:
        if local in self.used:
            return False
        if not fsdp1 and local not in self.used_before:
            return False
        return not self._exported(local)

    def _exported(self, local: str) -> bool:
        return self.before.project.imports_from(self.before.path, local) or (
            self.before.path.endswith("__init__.py") and local not in self.used_before
        )

    @staticmethod
    def _spelled(alias: cst.ImportAlias) -> str:
        name = alias.evaluated_name
        return f"{name} as {alias.evaluated_alias}" if alias.evaluated_alias else name


def _regenerated(
    line: cst.SimpleStatementLine,
    node: cst.ImportFrom,
    module: str,
    kept: Sequence[cst.ImportAlias],
    names: list[str] | None = None,
) -> cst.SimpleStatementLine:
    """``line`` with an import of ``names`` (of ``kept`` alone by default) in its place and in its style.

    Comments beside names that stay go above; comments beside names that go, go with them.
    """
    long = "\n" in cst.Module([]).code_for_node(node)
    above = [cst.EmptyLine(comment=cst.Comment(text)) for alias in kept for text in comments(alias)]
    spelled = names if names is not None else [_Cleaner._spelled(alias) for alias in kept]
    return line.with_changes(body=[_from_import(module, spelled, long)], leading_lines=[*line.leading_lines, *above])


def _from_import(module: str, names: list[str], long: bool = False) -> cst.ImportFrom:
    text = import_text(module, names, long)
    line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.ImportFrom)


class _Adder:
    """Puts new imports where the emptied ones stood, into an existing import of the same module where there is one."""

    def __init__(self, before: File, needed: list[str], emptied: bool) -> None:
        self.before = before
        self.needed = needed
        self.emptied = emptied

    def run(self, module: cst.Module) -> cst.Module:
        lazy = _LazyFiller(self.needed)
        if not _has_top_level_torch(module):
            module = _visited(self.before, module, lazy, REMOVED)
            self.needed = [statement for statement in self.needed if statement not in lazy.placed]
        body = self._merge(list(module.body))
        body = self._insert(body)
        module = module.with_changes(body=body)
        return cst.ensure_type(settle(_visited(self.before, module, _Settle(), REMOVED)), cst.Module)

    def _merge(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        for position, line in enumerate(body):
            if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
                continue
            node = line.body[0]
            if not isinstance(node, cst.ImportFrom) or node.module is None or isinstance(node.names, cst.ImportStar):
                continue
            if node.relative:
                continue
            name = dotted(node.module)
            mine = [entry for entry in self.needed if entry.startswith(f"from {name} import ")]
            if not mine:
                continue
            names = [_Cleaner._spelled(alias) for alias in node.names]
            was_sorted = names == sorted(names, key=_import_key)
            names += [entry.split(" import ")[1] for entry in mine]
            names = sorted(dict.fromkeys(names), key=_import_key) if was_sorted else list(dict.fromkeys(names))
            body[position] = _regenerated(line, node, name or "", node.names, names)
            self.needed = [entry for entry in self.needed if entry not in mine]
        return body

    def _insert(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        if not self.needed:
            return body
        grouped: dict[str, list[str]] = {}
        plain: list[str] = []
        for statement in self.needed:
            if statement.startswith("from "):
                module, _, name = statement.removeprefix("from ").partition(" import ")
                grouped.setdefault(module, []).append(name)
            else:
                plain.append(statement)
        froms = [_from_import(module, sorted(names, key=_import_key)) for module, names in sorted(grouped.items())]
        body = self._place_plain(body, plain)
        for node in froms:
            at = self._position(body, node)
            line = cst.SimpleStatementLine([node])
            if at < len(body) and is_removed(body[at], FSDP1_IMPORT):
                body[at] = line.with_changes(leading_lines=getattr(body[at], "leading_lines", ()))
            else:
                body.insert(at, line)
        return body

    def _place_plain(self, body: list[cst.BaseStatement], plain: list[str]) -> list[cst.BaseStatement]:
        for statement in sorted(plain):
            target = statement.split()[1]
            line: cst.BaseStatement = cst.SimpleStatementLine([_import(statement)])
            standard = target.partition(".")[0] in _STANDARD
            candidates = [
                (position, _plain_name(entry))
                for position, entry in enumerate(body)
                if _plain_name(entry) and (_root(_plain_name(entry)) in _STANDARD) == standard
            ]
            later = [position for position, name in candidates if name > target]
            if candidates and later:
                at = later[0]
                first = cst.ensure_type(body[at], cst.SimpleStatementLine)
                line = cst.ensure_type(line, cst.SimpleStatementLine).with_changes(leading_lines=first.leading_lines)
                body[at] = first.with_changes(leading_lines=())
            elif candidates:
                at = candidates[-1][0] + 1
            else:
                at = _first_import(body)
                while not standard and at < len(body) and _is_standard(_small(body[at])):
                    at += 1
                if at < len(body) and isinstance(body[at], cst.SimpleStatementLine):
                    first = cst.ensure_type(body[at], cst.SimpleStatementLine)
                    line = cst.ensure_type(line, cst.SimpleStatementLine).with_changes(
                        leading_lines=first.leading_lines
                    )
                    gap = [cst.EmptyLine(indent=False)] if standard else []
                    body[at] = first.with_changes(leading_lines=gap)
            body.insert(at, line)
        return body

    def _position(self, body: list[cst.BaseStatement], new: cst.ImportFrom) -> int:
        """Where a sorted import block has ``new``; in place of a removed import where there is one."""
        mine = _module_of(new)
        known = [(position, _module_of(_small(entry))) for position, entry in enumerate(body)]
        similar = [(position, name) for position, name in known if name and _root(name) == _root(mine)]
        later = [position for position, name in similar if name > mine]
        markers = [position for position, entry in enumerate(body) if is_removed(entry, FSDP1_IMPORT)]
        if similar and not later:
            return similar[-1][0] + 1
        if later and not any(marker < later[0] for marker in markers):
            return later[0] if not getattr(body[later[0]], "leading_lines", ()) else later[0] + 1
        if markers:
            return markers[0]
        if later:
            return later[0]
        imports = [
            position for position, entry in enumerate(body) if isinstance(_small(entry), cst.Import | cst.ImportFrom)
        ]
        torch = [position for position in imports if "torch" in cst.Module([]).code_for_node(body[position])]
        return (torch or imports or [_first_import(body) - 1])[-1] + 1


def _text(statements: Sequence[cst.BaseStatement]) -> str:
    return cst.Module(cast("Sequence[cst.SimpleStatementLine]", statements)).code


def _small(entry: cst.BaseStatement) -> cst.CSTNode | None:
    return entry.body[0] if isinstance(entry, cst.SimpleStatementLine) and len(entry.body) == 1 else None


def _module_of(node: cst.CSTNode | None) -> str:
    if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
        return dotted(node.module) or ""
    return ""


def _is_standard(node: cst.CSTNode | None) -> bool:
    name = node.names[0].evaluated_name if isinstance(node, cst.Import) else _module_of(node)
    return _root(name) in _STANDARD


def _import(statement: str) -> cst.Import:
    line = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.Import)


_STANDARD = sys.stdlib_module_names


def _root(name: str) -> str:
    return name.partition(".")[0]


def _plain_name(entry: cst.BaseStatement) -> str:
    if isinstance(entry, cst.SimpleStatementLine) and entry.body and isinstance(entry.body[0], cst.Import):
        return entry.body[0].names[0].evaluated_name
    return ""


def _first_import(body: list[cst.BaseStatement]) -> int:
    """Where the first import may stand: behind the docstring and ``__future__`` imports."""
    at = 0
    for position, entry in enumerate(body):
        small = entry.body[0] if isinstance(entry, cst.SimpleStatementLine) and entry.body else None
        if position == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString):
            at = 1
        elif isinstance(small, cst.ImportFrom) and small.module is not None and dotted(small.module) == "__future__":
            at = position + 1
    return at


def _import_key(name: str) -> tuple[int, str]:
    plain = name.partition(" as ")[0]
    return (0 if plain.isupper() else 1 if plain[:1].isupper() else 2, plain)


def _has_top_level_torch(module: cst.Module) -> bool:
    return any(
        isinstance(entry, cst.SimpleStatementLine)
        and (
            is_removed(entry)
            or (isinstance(entry.body[0], cst.Import | cst.ImportFrom) and "torch" in module.code_for_node(entry))
        )
        for entry in module.body
    )


class _LazyFiller(_StatementTransformer):
    """Gives each function whose own FSDP1 import went the new imports that this function uses."""

    def __init__(self, needed: list[str]) -> None:
        super().__init__()
        self.needed = needed
        self.placed: set[str] = set()

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        markers = [position for position, entry in enumerate(updated_node.body) if is_removed(entry)]
        if not markers:
            return updated_node
        without = [entry for entry in updated_node.body if not is_removed(entry)]
        names = _used(ast.parse(_text(without))) if without else set()
        mine = [statement for statement in self.needed if _bound_name(statement) in names]
        self.placed.update(mine)
        grouped: dict[str, list[str]] = {}
        new: list[cst.BaseStatement] = []
        for statement in mine:
            if statement.startswith("from "):
                module, _, name = statement.removeprefix("from ").partition(" import ")
                grouped.setdefault(module, []).append(name)
            else:
                new.append(cst.SimpleStatementLine([_import(statement)]))
        new += [
            cst.SimpleStatementLine([_from_import(module, sorted(names, key=_import_key))])
            for module, names in sorted(grouped.items())
        ]
        if not new:
            return updated_node
        at = markers[0]
        new[0] = new[0].with_changes(leading_lines=getattr(updated_node.body[at], "leading_lines", ()))
        return updated_node.with_changes(body=[*updated_node.body[:at], *new, *updated_node.body[at + 1 :]])


class _Settle(_StatementTransformer):
    """Drops the markers that are left, comments kept."""

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return cst.ensure_type(settle(updated_node), cst.IndentedBlock)
