"""What the dotted names of a file refer to, and how the file spells a name that it is to use."""

from __future__ import annotations

import ast
import textwrap
from functools import cached_property

import libcst as cst

from fsdp_rules.file.bindings import Bindings
from fsdp_rules.file.several_imports import SeveralImports, import_in_a_function, imported_above
from fsdp_rules.file.shadowed import shadowed
from fsdp_rules.file.tree import Layout, dotted
from fsdp_rules.fsdp1.names import PUBLIC_MODULES, canonical, expand
from fsdp_rules.project.aliases import Aliases
from fsdp_rules.project.exports import Given
from fsdp_rules.project.gates import statements
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Project
from fsdp_rules.project.walking import children, walk

#: A module that its package, which has a class instead, deletes from its names.
NO_ATTRIBUTE = "torch.optim.optimizer."


class References:
    """The names that a file imports, and those that it may take."""

    def __init__(self, path: str, tree: ast.Module, layout: Layout, bindings: Bindings, project: Project) -> None:
        self.wanted_imports: dict[str, str] = {}
        #: Those of the names that have to be imported at the top of the module.
        self.wanted_above: set[str] = set()
        self._path = path
        self._tree = tree
        self._layout = layout
        self._bindings = bindings
        self._project = project
        self._resolved: dict[int, str | None] = {}
        self._known: dict[int, str | None] = {}
        self._used_in: dict[int, frozenset[str]] = {}

    def want_nothing(self) -> None:
        """Forget the imports that were noted."""
        self.wanted_imports.clear()
        self.wanted_above.clear()

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for, imports inside functions included."""
        return self._project.aliases(self._path)

    def resolved(self, node: cst.CSTNode) -> str | None:
        """The fully dotted name behind ``node``, re-exports of the project followed.

        Of what is called and has no such name, a function of torch where it can be nothing else.
        """
        key = id(node)
        if key in self._resolved:
            return self._resolved[key]
        text = dotted(node)
        if text is None or (head := text.partition(".")[0]) not in self.aliases or self._is_parameter(head, node):
            full = None
        elif head in self._several:
            found = self._several.at(head, node) if self._layout.has(node) else ()
            full = self._project.resolve(expand(text, {head: found[0]})) if len(found) == 1 else None
        else:
            full = expand(text, self.aliases)
            full = full if full.startswith("torch.") else self._project.resolve(full)
        if self._layout.has(node):
            full = full or self._project.values.called.get(self._path, {}).get(self._layout.span(node))
            self._resolved[key] = full
        return full

    def meanings(self, name: cst.Name) -> tuple[str, ...]:
        """What ``name`` may stand for, where imports of one name say different things; empty for all other names."""
        return self._several.at(name.value, name) if name.value in self._several else ()

    def is_shared(self, name: str) -> bool:
        """Whether imports of FSDP1 and of something else give ``name``."""
        return name in self._several

    @cached_property
    def _several(self) -> SeveralImports:
        imports = Aliases(self._tree, module_name(self._path), self._path.endswith("__init__.py")).imports
        return SeveralImports(self._layout, imports, self._project.resolve)

    def _is_parameter(self, name: str, node: cst.CSTNode) -> bool:
        """Whether ``name``, which an import binds too, is a parameter of a function around ``node``.

        One whose default is what the import gives counts as that.
        """
        if name not in self._imported_parameters or not self._layout.has(node):
            return False
        scope = self._layout.scope(node)
        while scope:
            found = self._bindings.found.get((scope, name))
            if found:
                return all(entry.statement in self._imported_parameters[name] for entry in found)
            scope = scope.rpartition(".")[0]
        return False

    @cached_property
    def _imported_parameters(self) -> dict[str, set[cst.CSTNode]]:
        """The parameters that have the names of imports, by name."""
        found: dict[str, set[cst.CSTNode]] = {}
        for entry in self._layout.nodes(cst.Param):
            name = entry.name.value
            if name in self.aliases and not (isinstance(entry.default, cst.Name) and entry.default.value == name):
                found.setdefault(name, set()).add(entry)
        return found

    def fsdp1(self, node: cst.CSTNode) -> str | None:
        """FSDP1's canonical name behind a name or attribute chain (``ShardingStrategy.NO_SHARD``), or None."""
        key = id(node)
        if key in self._known:
            return self._known[key]
        full = self.resolved(node)
        known = canonical(full) if full is not None else None
        if self._layout.has(node):
            self._known[key] = known
        return known

    def calls(self, node: cst.CSTNode, *names: str) -> bool:
        """Whether ``node`` is a call of one of the FSDP1 ``names`` or of one of these fully dotted names."""
        if not isinstance(node, cst.Call):
            return False
        full = self.resolved(node.func)
        return full is not None and (full in names or canonical(full) in names)

    def ref(self, full: str, *, everywhere: bool = False, by_name: bool = False) -> str:
        """How this file spells the fully dotted name ``full``; an import is noted where it needs one.

        ``everywhere``: at the top of the module, too, where what a function imports for itself has no meaning.
        ``by_name``: a new import is of the name itself, not of the package that it is in.

        The note becomes an import only if the name really stands in the output.
        """
        best = ""
        spelled = ""
        for local, target in self.aliases.items():
            rest = full[len(target) :]
            if (
                self.means_another(local, target)
                or (everywhere and local not in self.imported_above)
                or not (rest == "" or rest.startswith("."))
                or not full.startswith(target)
                or len(target) <= len(best)
            ):
                continue
            if full.startswith("torch.distributed.") and full.count(".") > 2 and rest.count(".") > 1:
                continue
            if full.startswith(NO_ATTRIBUTE) and not target.startswith(NO_ATTRIBUTE[:-1]):
                continue
            best, spelled = target, local + rest
        if spelled:
            local = spelled.partition(".")[0]
            self.wanted_imports.setdefault(
                local, "" if local in self.imported_above else import_in_a_function(self._tree, local)
            )
            return spelled
        package = full.partition(".")[0]
        near_torch = full.count(".") <= 3 and not full.startswith(("torch.distributed.", NO_ATTRIBUTE))
        if not by_name and not self.means_another(package, package) and (package != "torch" or near_torch):
            self.wanted_imports[package] = f"import {package}"
            if everywhere:
                self.wanted_above.add(package)
            return full
        module, _, name = full.rpartition(".")
        if full.startswith("torch.distributed.") and full.count(".") == 2 and not self.means_another("dist", module):
            self.wanted_imports["dist"] = "import torch.distributed as dist"
            if everywhere:
                self.wanted_above.add("dist")
            return f"dist.{name}"
        local = name
        while self.means_another(local, full):
            local = f"torch_{local}" if package == "torch" and local == name else f"{local}_"
        self.wanted_imports[local] = f"from {module} import {name}" + (f" as {local}" if local != name else "")
        if everywhere:
            self.wanted_above.add(local)
        return local

    def means_another(self, local: str, full: str) -> bool:
        """Whether ``local`` is, or may be, something else in this file than the fully dotted name ``full``."""
        return local in self._shadowed or self.aliases.get(local, full) != full or self._overridden(local, full)

    def _overridden(self, local: str, full: str) -> bool:
        """Whether a star import gives ``local`` another meaning, or may be what gives it the one that is read."""
        if local in self._imported_below_stars:
            return False
        if self.starred.get(local, frozenset()) - {full}:
            return True
        if self._is_guarded_above_a_star and local == full.rpartition(".")[2] and local not in self.aliases:
            return True
        return self.has_unseen_star and local not in self._module_names and local in self._read

    @property
    def starred(self) -> dict[str, frozenset[str]]:
        """The names that star imports of the project's modules give, with all that each may stand for."""
        return self._given.names

    @property
    def has_unseen_star(self) -> bool:
        """Whether a star import gives names that are not known, since its module is none of the project."""
        return self._given.unseen

    @cached_property
    def _given(self) -> Given:
        return self._project.names.given(module_name(self._path))

    @cached_property
    def _is_guarded_above_a_star(self) -> bool:
        """Whether FSDP1's import is in a ``try`` above an unseen star import: new ones belong into it too."""
        if not self.has_unseen_star:
            return False
        guards = [entry for entry in self._tree.body if isinstance(entry, ast.Try) and _imports_fsdp1(entry)]
        stars = [entry for entry in statements(self._tree) if isinstance(entry, ast.ImportFrom)]
        last = max((entry.lineno for entry in stars if entry.names[0].name == "*"), default=0)
        return any(guard.lineno < last for guard in guards)

    @cached_property
    def _read(self) -> frozenset[str]:
        return _identifiers(self._tree)

    @cached_property
    def _imported_below_stars(self) -> frozenset[str]:
        """The names that the module imports one by one below its last star import, so that this import is read."""
        imports = [entry for entry in statements(self._tree) if isinstance(entry, ast.Import | ast.ImportFrom)]
        last = max((entry.lineno for entry in imports if entry.names[0].name == "*"), default=0)
        below = [entry for entry in imports if entry.lineno > last and not entry.col_offset]
        return frozenset(alias.asname or alias.name.partition(".")[0] for entry in below for alias in entry.names)

    @cached_property
    def imported_above(self) -> frozenset[str]:
        """The names that imports outside of functions bind."""
        return imported_above(self._tree)

    @cached_property
    def _shadowed(self) -> frozenset[str]:
        return shadowed(self._tree, self.aliases)

    def fresh(self, node: cst.CSTNode, *candidates: str) -> str:
        """The first of ``candidates`` that means nothing yet where ``node`` stands."""
        taken = self._taken(node)
        name = next((candidate for candidate in candidates if candidate not in taken), candidates[-1])
        while name in taken:
            name += "_"
        return name

    def _taken(self, node: cst.CSTNode) -> frozenset[str]:
        outermost: cst.CSTNode = self._layout.module
        for entry in self._layout.ancestors(node):
            if type(entry) is cst.FunctionDef:
                outermost = entry
        known = self._used_in.get(id(outermost))
        if known is None:
            known = self._used_in[id(outermost)] = self._module_names | _identifiers(self._tree_of(outermost))
        return known

    def _tree_of(self, node: cst.CSTNode) -> ast.Module:
        if node is self._layout.module:
            return self._tree
        return ast.parse(textwrap.dedent(self._layout.module.code_for_node(node)))

    @cached_property
    def _module_names(self) -> frozenset[str]:
        names = {name for scope, name in self._bindings.found if not scope}
        names.update(self.aliases)
        names.update(self.starred)
        for entry in statements(self._tree):
            if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(entry.name)
        return frozenset(names)


def _identifiers(tree: ast.AST) -> frozenset[str]:
    """The names that ``tree`` uses, those that live inside its lambdas alone left out."""
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Lambda):
            own = {arg.arg for arg in walk(node.args) if isinstance(arg, ast.arg)}
            names.update(name for name in _identifiers(node.body) if name not in own)
            continue
        pending.extend(children(node))
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return frozenset(names)


def _imports_fsdp1(guard: ast.Try) -> bool:
    return any(isinstance(entry, ast.ImportFrom) and entry.module in PUBLIC_MODULES for entry in guard.body)
