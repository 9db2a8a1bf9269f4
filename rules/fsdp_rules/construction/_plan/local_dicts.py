"""A dictionary of FSDP1's arguments that a function fills before it unpacks it: what each key has at the call."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.leaves import is_same
from fsdp_rules.file.expressions import called_on, dict_entries, literal_bool, literal_text
from fsdp_rules.file.file import File
from fsdp_rules.file.reads import is_target
from fsdp_rules.file.tree import statements_of
from fsdp_rules.fsdp1.constructor import OFF, ON
from fsdp_rules.fsdp1.names import FSDP

#: What binds less than a conditional expression.
_LOOSE = (cst.Lambda, cst.IfExp, cst.NamedExpr)
#: Arguments whose values change where they are written, which another wrap may need as they are.
CHANGED = frozenset({"auto_wrap_policy", "mixed_precision", "sharding_strategy"})
Entries = dict[str, cst.BaseExpression]


@dataclass(frozen=True)
class Filled:
    """What the dictionary has where it is unpacked, and the statements that make and fill it.

    ``computed``: the values that were ever put into it, and the conditions for that.
    """

    entries: Entries
    computed: tuple[cst.BaseExpression, ...]
    statements: tuple[cst.CSTNode, ...]


def filled(name: cst.Name, file: File) -> Filled | None:
    """The dictionary that a call is given as ``**name``; None where something else reads or changes it.

    A key that a condition sets is the conditional expression of both values.
    """
    scope = file.scope(name)
    bound = file.bindings.found.get((scope, name.value), [])
    call = file.statement(name)
    block = file.block(call)
    made = [one for one in bound if dict_entries(one.value) is not None]
    if len(made) != 1 or made[0].statement not in block or call not in block or has_names(made[0].statement):
        return None
    first, last = block.index(made[0].statement), block.index(call)
    uses = [use for use in file.uses(name.value) if is_same(use, scope, file)]
    if first > last or any(file.scope(use) != scope for use in uses):
        return None
    entries = dict(dict_entries(made[0].value) or {})
    filler = _Filler(name.value, file, [*entries.values()])
    for statement in block[first + 1 : last]:
        if not filler.run(statement, entries):
            return None
    known = {made[0].statement, *filler.writes}
    if not all(file.statement(use) in known or _is_unpacked(use, file) for use in uses):
        return None
    if any(one.statement not in known for one in bound) or _changes(block[first:last], known, file):
        return None
    if any(key in CHANGED and isinstance(one, cst.IfExp) for key, one in entries.items()):
        unpacked = [use for use in uses if _is_unpacked(use, file)]
        if len(unpacked) > 1:
            return None
    return Filled(entries, tuple(filler.computed), (made[0].statement, *filler.statements))


def has_names(made: cst.CSTNode) -> bool:
    """Whether the statement ``made`` gives its value to several targets, by each of which it may be changed."""
    return isinstance(made, cst.Assign) and len(made.targets) > 1


def is_changed(made: cst.CSTNode, call: cst.CSTNode, file: File) -> bool:
    """Whether something else may change what the statement ``made`` makes, or what it reads, before ``call``."""
    block = file.block(call)
    if has_names(made) or made not in block or call not in block:
        return has_names(made)
    return _changes(block[block.index(made) : block.index(call)], {made}, file)


def _changes(block: list[cst.CSTNode], writes: set[cst.CSTNode], file: File) -> bool:
    """Whether ``block`` changes what its ``writes``, or the conditions around them, read."""
    others = [statement for statement in block if statement not in writes]
    changed = {
        file.code(one)
        for other in others
        for kind in (cst.Name, cst.Attribute, cst.Subscript)
        for one in file.inside(other, kind)
        if is_target(one, file.layout) and file.statement(one) not in writes
    }
    # What is called for its effect alone may change the object that it is called on.
    for effect in (one.value for other in others for one in file.inside(other, cst.Expr)):
        owner = called_on(effect)
        if owner is not None and file.resolved(owner) is None and file.statement(owner) not in writes:
            changed.add(file.code(owner))
    around = {entry.test for write in writes for entry in file.ancestors(write) if isinstance(entry, cst.If)}
    reads = {
        file.code(one)
        for node in (*writes, *around)
        for kind in (cst.Name, cst.Attribute)
        for one in file.inside(node, kind)
    }
    return not changed.isdisjoint(reads)


def _is_unpacked(use: cst.Name, file: File) -> bool:
    """Whether ``use`` is the ``**name`` of a wrap."""
    argument = file.parent(use)
    call = file.parent(argument) if isinstance(argument, cst.Arg) and argument.star == "**" else None
    return isinstance(call, cst.Call) and file.fsdp1(call.func) == FSDP


class _Filler:
    """Runs statements over entries; ``writes`` are those that set some, ``statements`` what can go with them.

    ``computed`` gets the values and conditions of the writes.
    """

    def __init__(self, name: str, file: File, computed: list[cst.BaseExpression]) -> None:
        self._name = name
        self._file = file
        self.computed = computed
        self.writes: set[cst.CSTNode] = set()
        self.statements: list[cst.CSTNode] = []

    def run(self, statement: cst.CSTNode, entries: Entries) -> bool:
        """Run ``statement``; False where it leaves open what an entry is."""
        inside = [one for one in self._file.inside(statement, cst.Name) if one.value == self._name]
        if all(_is_unpacked(one, self._file) for one in inside):
            return True
        if isinstance(statement, cst.If):
            return self._branch(statement, entries)
        put = _put(statement, self._name)
        if put is None:
            return False
        entries.update(put)
        self.computed += put.values()
        self.writes.add(statement)
        self.statements.append(statement)
        return True

    def _branch(self, branch: cst.If, entries: Entries) -> bool:
        self.computed.append(branch.test)
        orelse = branch.orelse
        arms = [
            branch.body.body,
            *([] if orelse is None else [[orelse] if isinstance(orelse, cst.If) else orelse.body.body]),
        ]
        arms += [[]] * (2 - len(arms))
        results: list[Entries] = []
        before = len(self.statements)
        gone: list[bool] = []
        for arm in arms:
            results.append(dict(entries))
            small = statements_of(arm)
            start = len(self.statements)
            if not all(self.run(one, results[-1]) for one in small):
                return False
            gone.append(set(small) <= set(self.statements[start:]))
        if all(gone):
            self.statements[before:] = [branch]
        elif any(done and arm for done, arm in zip(gone, arms, strict=True)):
            return False
        for key in dict.fromkeys((*results[0], *results[1])):
            yes, no = (one.get(key) for one in results)
            if yes is not no and not self._choose(key, branch.test, yes, no, entries):
                return False
        return True

    def _choose(
        self,
        key: str,
        test: cst.BaseExpression,
        yes: cst.BaseExpression | None,
        no: cst.BaseExpression | None,
        entries: Entries,
    ) -> bool:
        given = yes or no
        if given is None or isinstance(yes, _LOOSE) or isinstance(test, _LOOSE):
            return False
        default = cst.Name("True" if key in ON else "False" if key in OFF else "None")
        yes, no = yes or default, no or default
        if literal_bool(yes) is True and literal_bool(no) is False:
            entries[key] = test
            return True
        entries[key] = cst.IfExp(test=test, body=yes, orelse=no)
        for made in (default, entries[key]):
            self._file.layout.adopt(made, given)
        return True


def _put(statement: cst.CSTNode, name: str) -> Entries | None:
    """What ``name["key"] = value``, ``name.update(...)`` and ``name |= {...}`` put into the dictionary."""
    match statement:
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Subscript(value=cst.Name(value=owner), slice=[element]))]
        ) if owner == name:
            index = element.slice
            key = index.value if isinstance(index, cst.Index) else None
            text = literal_text(key)
            return {text: statement.value} if text is not None else None
        case cst.AugAssign(target=cst.Name(value=owner), operator=cst.BitOrAssign()) if owner == name:
            return dict_entries(statement.value)
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=owner)) as method) as call) if (
            owner == name
        ):
            return _updated(call) if method.attr.value == "update" else None
    return None


def _updated(call: cst.Call) -> Entries | None:
    if len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star:
        return dict_entries(call.args[0].value)
    return dict_entries(call.with_changes(func=cst.Name("dict")))
