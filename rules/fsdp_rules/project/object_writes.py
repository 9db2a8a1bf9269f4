"""Everything that may change an object after the expression that makes it, through whatever names it is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_rules.fsdp1.names import canonical, expand
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.variables import Function, Scope, Variable, Variables
from fsdp_rules.project.write_facts import DEPTH, READERS, READING, SETTERS, WRITING, Tree, Write


class Writes:
    """Collects the writes of one object of the file ``path``.

    ``is_open``: what the object is passed to may change it. Else that counts for nothing, and its own fields alone do.
    """

    def __init__(self, path: str, file: Variables, tree: Tree, *, is_open: bool, depth: int = DEPTH) -> None:
        self.path = path
        self.file = file
        self.tree = tree
        self.is_open = is_open
        self.depth = depth
        self.found: list[Write] = []
        #: Whether the function whose parameter is followed returns it.
        self.is_returned = False
        self._seen: set[tuple[ast.AST, bool]] = set()
        self._known: set[Variable | str] = set()
        self._home: Scope = file.tree

    def of(self, made: ast.expr) -> list[Write]:
        """The writes of what ``made`` makes."""
        self._home = self.file.scope(made)
        parent = self.file.parents.get(made)
        if isinstance(parent, ast.arguments):
            self._default(made, parent)
        else:
            self._passes(made, deep=False)
        return self.found

    def of_parameter(self, function: Function, name: str) -> list[Write]:
        """The writes of what the parameter ``name`` of ``function`` is given."""
        self._home = function
        self._variable(Variable(function, name), deep=False)
        return self.found

    def _default(self, made: ast.expr, given: ast.arguments) -> None:
        """What a default holds is the same object in every call."""
        after = [*given.posonlyargs, *given.args]
        names = {id(value): one.arg for one, value in zip(reversed(after), reversed(given.defaults), strict=False)}
        names |= {id(v): one.arg for one, v in zip(given.kwonlyargs, given.kw_defaults, strict=True) if v is not None}
        owner = self.file.parents[given]
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = Writes(self.path, self.file, self.tree, is_open=self.is_open, depth=self.depth - 1)
            self._all_of(inner.of_parameter(owner, names[id(made)]))

    def _all_of(self, writes: Iterable[Write], at: ast.AST | None = None) -> None:
        self.found += [Write(at or one.node, inside=one.inside, anywhere=at is None or one.anywhere) for one in writes]

    def _write(self, node: ast.AST, field: str = "", value: ast.expr | None = None, *, deep: bool = False) -> None:
        self.found.append(Write(node, inside=True) if deep else Write(node, field, value))

    def _leaves(self, node: ast.AST, *, deep: bool, anywhere: bool = False) -> None:
        if self.is_open and not deep:
            self.found.append(Write(node, inside=True, anywhere=anywhere))

    def _variable(self, variable: Variable, *, deep: bool) -> None:
        if variable in self._known:
            return
        self._known.add(variable)
        for use in self.file.uses(variable):
            if isinstance(use.ctx, ast.Load) or isinstance(self.file.parents[use], ast.AugAssign):
                self._passes(use, deep=deep)
        if isinstance(variable.scope, ast.Module) and not deep:
            self._elsewhere(variable.name)
        elif isinstance(variable.scope, ast.ClassDef):
            self._attribute(variable.name)

    def _attribute(self, name: str) -> None:
        """The object is a field: every attribute of that name may be it, in all files."""
        if name in self._known:
            return
        self._known.add(name)
        for path, file in ((self.path, self.file), *self.tree.others(self.path, name)):
            inner = Writes(path, file, self.tree, is_open=False, depth=self.depth - 1)
            for attribute in file.attributes.get(name, ()) if self.depth else ():
                if isinstance(attribute.ctx, ast.Load) or isinstance(file.parents[attribute], ast.AugAssign):
                    inner._passes(attribute, deep=False)
            self.found += [one._replace(anywhere=True) for one in inner.found]

    def _elsewhere(self, name: str) -> None:
        """What other files do to the name of this module."""
        if self.tree.is_used_unseen(self.path, name):
            self._leaves(self.file.tree, deep=False, anywhere=True)
        for path, file in self.tree.others(self.path, name) if self.depth else ():
            aliases = self.tree.aliases(path)
            inner = Writes(path, file, self.tree, is_open=self.is_open, depth=self.depth - 1)
            is_starred = name not in aliases and not file.binds(name)
            for one in (name, *aliases) if is_starred else aliases:
                if one not in aliases or self._is_mine(aliases[one], name):
                    inner._variable(Variable(file.tree, one), deep=False)
            for attribute in file.attributes.get(name, ()):
                text = text_of(attribute)
                if text is not None and self._is_mine(expand(text, aliases), name):
                    inner._passes(attribute, deep=False)
            self._all_of(inner.found)

    def _is_mine(self, dotted: str, name: str) -> bool:
        return self.tree.home(dotted) == (self.path, name) if "." in dotted else False

    def _passes(self, node: ast.expr, *, deep: bool) -> None:
        """Follow the object, or a part of it (``deep``), which ``node`` is, to what the code around does with it."""
        if (node, deep) in self._seen:
            return
        self._seen.add((node, deep))
        parent = self.file.parents[node]
        match parent:
            case ast.Attribute():
                self._member(parent, deep=deep)
            case ast.Subscript() if parent.value is node:
                if isinstance(parent.ctx, ast.Load):
                    self._passes(parent, deep=True)
                else:
                    key = parent.slice.value if isinstance(parent.slice, ast.Constant) else None
                    self._set(parent, key if isinstance(key, str) else "", deep=deep)
            case ast.AugAssign():
                if parent.target is node:
                    self._write(parent, deep=deep)
            case ast.Assign() | ast.AnnAssign():
                for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
                    self._bound(target, deep=deep)
            case ast.NamedExpr():
                self._bound(parent.target, deep=deep)
                self._passes(parent, deep=deep)
            case ast.IfExp() if parent.test is not node:
                self._passes(parent, deep=deep)
            case ast.BoolOp():
                self._passes(parent, deep=deep)
            case ast.keyword():
                call = self.file.parents[parent]
                if parent.arg is not None and isinstance(call, ast.Call):
                    self._passed(call, parent.arg, deep=deep)
            case ast.Call() if parent.func is not node:
                self._passed(parent, parent.args.index(node), deep=deep)
            case ast.Return() if self.file.scope(parent) is self._home:
                self.is_returned = True
            case ast.Dict() if node in parent.values and parent.keys[parent.values.index(node)] is not None:
                self._held(parent, deep=deep)
            case ast.Lambda() if (field := self._factory_of(parent)) is not None:
                self._bound(field, deep=deep)
            case ast.List() | ast.Tuple() | ast.Set():
                self._held(parent, deep=deep)
            case ast.Return() if self._serves_torch(self.file.scope(parent)):
                return
            case ast.stmt() | ast.expr() | ast.comprehension() | ast.excepthandler():
                if isinstance(parent, ast.Return | ast.Yield | ast.YieldFrom | ast.Lambda | ast.Await):
                    self._leaves(parent, deep=deep, anywhere=True)
            case _:
                self._leaves(node, deep=deep)

    def _serves_torch(self, function: Scope) -> bool:
        """Whether only FSDP1 or torch is handed ``function``, as a policy is: they change nothing of its results."""
        if not isinstance(function, ast.FunctionDef):
            return False
        scope, uses = self.file.scope(function), list[tuple[str, Variables, ast.expr]]()
        uses += [(self.path, self.file, use) for use in self.file.uses(Variable(scope, function.name))]
        if isinstance(scope, ast.Module):
            if self.tree.is_used_unseen(self.path, function.name):
                return False
            for path, file in self.tree.others(self.path, function.name):
                aliases = self.tree.aliases(path)
                for local in [one for one in aliases if self._is_mine(aliases[one], function.name)]:
                    uses += [(path, file, use) for use in file.uses(Variable(file.tree, local))]
                uses += [(path, file, one) for one in file.attributes.get(function.name, ())]
        return bool(uses) and all(self._is_given_to_torch(*use) for use in uses)

    def _is_given_to_torch(self, path: str, file: Variables, use: ast.expr) -> bool:
        given = file.parents[use]
        call = file.parents[given] if isinstance(given, ast.keyword) else given
        if not isinstance(call, ast.Call) or use is call.func:
            return False
        full = expand(text_of(call.func) or "", self.tree.aliases(path))
        return canonical(full) is not None or full.startswith("torch.")

    def _factory_of(self, function: ast.Lambda) -> ast.expr | None:
        """The field of a dataclass that ``function`` makes a value for."""
        given = self.file.parents[function]
        made = self.file.parents[self.file.parents[given]] if isinstance(given, ast.keyword) else None
        is_factory = isinstance(given, ast.keyword) and given.arg == "default_factory"
        return made.target if is_factory and isinstance(made, ast.AnnAssign) else None

    def _held(self, holder: ast.expr, *, deep: bool) -> None:
        """The object is an element of a display: what reaches into that may change it."""
        loop = self.file.parents[holder]
        if isinstance(loop, ast.For | ast.AsyncFor | ast.comprehension) and loop.iter is holder:
            self._bound(loop.target, deep=deep)
            return
        inner = Writes(self.path, self.file, self.tree, is_open=self.is_open, depth=self.depth - 1)
        if self.depth and not deep:
            inner._home = self._home
            inner._passes(holder, deep=False)
            self.found += [one for one in inner.found if one.inside]

    def _bound(self, target: ast.expr, *, deep: bool) -> None:
        if isinstance(target, ast.Name):
            self._variable(self.file.variable(target), deep=deep)
        elif isinstance(target, ast.Attribute):
            self._attribute(target.attr)
        else:
            self._leaves(target, deep=deep, anywhere=True)

    def _set(self, target: ast.expr, field: str, *, deep: bool) -> None:
        statement = self.file.parents[target]
        plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        annotated = isinstance(statement, ast.AnnAssign)
        value = statement.value if plain or annotated else None  # type: ignore[attr-defined]
        self._write(statement if value is not None else target, field if value is not None else "", value, deep=deep)

    def _member(self, member: ast.Attribute, *, deep: bool) -> None:
        if not isinstance(member.ctx, ast.Load):
            self._set(member, member.attr, deep=deep)
            return
        call = self.file.parents[member]
        if member.attr in WRITING:
            self._write(call if isinstance(call, ast.Call) else member, deep=deep)
        elif not isinstance(call, ast.Call) or call.func is not member:
            self._passes(member, deep=True)
        elif member.attr in READING:
            self._passes(call, deep=True)
        else:
            self._leaves(call, deep=deep)

    def _passed(self, call: ast.Call, place: int | str, *, deep: bool) -> None:
        """The object is an argument of ``call``."""
        aliases = self.tree.aliases(self.path)
        text = text_of(call.func)
        full = expand(text, aliases) if text is not None else ""
        last = call.func.attr if isinstance(call.func, ast.Attribute) else full.rpartition(".")[2]
        if last in SETTERS or full in ("object.__setattr__", "object.__delattr__"):
            field = call.args[1].value if len(call.args) == 3 and isinstance(call.args[1], ast.Constant) else None
            known = isinstance(field, str) and place == 0 and isinstance(self.file.parents[call], ast.Expr)
            self._write(call, str(field) if known else "", call.args[2] if known else None, deep=deep)
            return
        if last in ("append", "add", "insert", "setdefault"):
            # The container that it is put into is another one.
            self._leaves(call, deep=deep, anywhere=True)
            return
        if last == "partial":
            made = call.args[0] if call.args else None
            name = expand(text_of(made) or "", aliases) if made is not None else ""
            if place != 0 and not name.startswith("torch."):
                self._leaves(call, deep=deep, anywhere=True)
            return
        if canonical(full) is not None or full.startswith("torch."):
            return
        found = self._definition(call.func, full)
        if found is None:
            if last not in READERS:
                self._leaves(call, deep=deep)
            elif last in ("getattr", "next"):
                self._passes(call, deep=True)
            return
        path, file, function, bound = found
        parameter = _parameter(function, place, bound) if self.depth else None
        if parameter is None:
            self._leaves(call, deep=deep)
            return
        inner = Writes(path, file, self.tree, is_open=self.is_open and not deep, depth=self.depth - 1)
        self._all_of(inner.of_parameter(function, parameter), call)
        if inner.is_returned:
            self._passes(call, deep=deep)

    def _definition(self, func: ast.expr, full: str) -> tuple[str, Variables, Function, int] | None:
        """The function of the project that ``func`` calls, with its file and the arguments that come by themselves."""
        path, file = self.path, self.file
        found = file.called(func)
        if found is None and (home := self.tree.home(full)) is not None:
            path, other = home[0], self.tree.variables(home[0])
            file = other if other is not None else file
            named = file.functions.get((file.tree, home[1]), []) if other is not None else []
            found = (named[0], 0) if len(named) == 1 else None
        if found is None:
            return None
        if isinstance(found[0], ast.ClassDef):
            made = file.functions.get((found[0], "__init__"), [])
            one = made[0] if len(made) == 1 else None
            return (path, file, one, 1) if isinstance(one, ast.FunctionDef) else None
        return path, file, found[0], found[1]


def _parameter(function: Function, place: int | str, bound: int) -> str | None:
    """The parameter of ``function`` that takes an argument given by name, or at that position."""
    given = function.args
    before = [*given.posonlyargs, *given.args]
    if isinstance(place, str):
        names = {one.arg for one in (*before, *given.kwonlyargs)}
        return place if place in names else None
    return before[place + bound].arg if place + bound < len(before) else None
