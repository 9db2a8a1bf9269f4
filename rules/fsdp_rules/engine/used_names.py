"""Which names an edited file uses, those in texts that stand for types included, and which builtins it hides."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Collection, Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.public_names import SCOPES, bound
from fsdp_rules.project.walking import children, last_name_of, walk

#: In what a text may stand for a name.
NAMING = frozenset(
    (
        *(ast.arg, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef),
        *(ast.Subscript, ast.Call, ast.Assign, ast.AugAssign),
    )
)


def used_at_top(before: File, module: cst.Module, known: dict[str, set[str]]) -> set[str]:
    """What :func:`names_used` gives for ``module``, an edited ``before``; ``known`` is filled by statement."""
    texts = [before.printer.text(statement) for statement in module.body]
    for statement, text in zip(module.body, texts, strict=True):
        if text not in known:
            known[text] = names_used(before.printer.parsed(statement))
    return set().union(*(known[text] for text in texts))


def is_read_beyond(tree: ast.AST, name: str) -> bool:
    """Whether ``tree`` reads ``name`` outside of the functions that import it for themselves."""
    if isinstance(tree, ast.Name):
        return tree.id == name and isinstance(tree.ctx, ast.Load)
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and any(_imports(one, name) for one in tree.body):
        return False
    return any(is_read_beyond(one, name) for one in ast.iter_child_nodes(tree))


def _imports(node: ast.AST, name: str) -> bool:
    """Whether an import in ``node``, in no function or class of its own, binds ``name``."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)
    is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return not is_scope and any(_imports(one, name) for one in ast.iter_child_nodes(node))


def names_used(tree: ast.AST) -> set[str]:
    """The names that ``tree`` reads, in the texts of annotations and of ``__all__`` too."""
    names: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        for place in _places_of_named_types(node) if type(node) in NAMING else ():
            for text in walk(place):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    names.update(_annotation_words(text.value))
    return names


def _places_of_named_types(node: ast.AST) -> list[ast.AST]:
    """Where, right inside ``node``, a text stands for a name."""
    match node:
        case ast.Call():
            if last_name_of(node.func) in ("cast", "TypeVar", "ForwardRef", "NewType"):
                return [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(node.func, ast.Attribute) and last_name_of(node.func.value) == "__all__":
                return [*node.args]
        case ast.Assign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return [node.value] if any(last_name_of(target) == "__all__" for target in targets) else []
        case ast.Subscript():
            name = last_name_of(node.value)
            # Optional["Model"], list["Model"]; but CONFIG["Model"] and names["Model"] are look-ups.
            is_type = name[:1].isupper() and not name.isupper()
            return [node.slice] if is_type or name in ("list", "dict", "set", "tuple", "type") else []
        case ast.arg() | ast.AnnAssign():
            return [node.annotation] if node.annotation is not None else []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.returns] if node.returns is not None else []
    return []


def _annotation_words(text: str) -> Iterable[str]:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return ()
    return [node.id for node in walk(tree) if isinstance(node, ast.Name)]


_NAMES = frozenset(dir(builtins))


def misunderstood(before: ast.Module, after: str, starred: Collection[str] = ()) -> list[str]:
    """The builtins that ``after`` reads where its own code means something else by their names, and ``before`` not.

    ``starred`` are the names that star imports of the project's modules give.
    """
    given = _NAMES.intersection(starred)
    if not given and not any(
        name in _NAMES for node in walk(before) if isinstance(node, (ast.Module, *SCOPES)) for name in _bound(node)
    ):
        return []
    return sorted(_own_reads(ast.parse(after), given) - _own_reads(before, given))


def _bound(scope: ast.AST) -> frozenset[str]:
    return frozenset(name for name, _ in bound(scope))


def _own_reads(tree: ast.Module, given: frozenset[str]) -> Counter[str]:
    """How often names of builtins are read where the file gives them another meaning."""
    found: Counter[str] = Counter()
    declared = {name for node in walk(tree) if isinstance(node, ast.Global) for name in node.names}
    pending: list[tuple[ast.AST, frozenset[str], frozenset[str]]] = [
        (tree, _bound(tree) | given | declared, frozenset())
    ]
    while pending:
        # A class's names are seen in its own body, and not in the functions in it.
        node, names, of_class = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES & (names | of_class):
            found[node.id] += 1
        for child in children(node):
            if isinstance(child, ast.ClassDef):
                pending.append((child, names, _bound(child)))
            elif isinstance(child, SCOPES):
                pending.append((child, names | _bound(child), frozenset()))
            else:
                pending.append((child, names, of_class))
    return found
