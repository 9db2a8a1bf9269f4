"""Calls that wrap a model with arguments bound elsewhere: of a ``partial(FSDP, ...)``, or ``wrap`` in its context."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.arguments import gather, is_steady
from fsdp_rules.construction._plan.leaves import Found, is_imported
from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File

#: A call of ``wrap`` in a file that was not parsed.
WRAPS = re.compile(rb"(?<![\w.])wrap\(|\.wrap\(|import\s+wrap\b")
UNSEEN = "not every call in this file uses the same name"


@dataclass(frozen=True)
class Bound:
    """``call`` wraps the module that it is given with what ``holder`` binds.

    ``statement`` assigns the holder to ``name`` where one does, and is removed with its last use.
    """

    call: cst.Call
    holder: cst.Call
    statement: cst.CSTNode | None = None
    name: str = ""

    @property
    def arguments(self) -> cst.Call:
        """The holder with its bound arguments alone."""
        given = [entry for entry in self.holder.args if entry.keyword is None or entry.keyword.value != "wrapper_cls"]
        return self.holder.with_changes(args=given if len(given) < len(self.holder.args) else given[1:])


def calls_of_partial(partial: cst.Call, file: File) -> list[Bound] | str:
    """The calls of ``partial``, or why they are not all seen, or cannot take its arguments later."""
    statement = file.parent(partial)
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else None
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1 or not isinstance(target, cst.Name):
        return UNSEEN
    uses = [use for use in file.uses(target.value) if (made := file.binding(use)) and made.value is partial]
    bound = file.bindings.found.get((file.scope(target), target.value), [])
    if not uses or len(bound) != 1 or is_imported(Found(carriers=tuple(uses)), file):
        return UNSEEN
    if (line := _other_line(target, uses, file)) is not None:
        return f"{target.value} is or may be another object on line {line}"
    found: list[Bound] = []
    for use in uses:
        call = file.parent(use)
        if not isinstance(call, cst.Call) or call.func is not use:
            return f"{use.value} is called, and also read on line {file.span(use).line}"
        found.append(Bound(call, partial, statement, use.value))
    return next(_beyond(found, file), found)


def _other_line(target: cst.Name, uses: list[cst.Name], file: File) -> int | None:
    """Where the name ``target`` is meant in its scope, or in one inside of it, by what is none of its ``uses``."""
    known, home = set(uses), file.scope(target)
    declared = [entry for one in file.nodes(cst.Global) for entry in one.names]
    declared += [entry for one in file.nodes(cst.Nonlocal) for entry in one.names]
    others: list[cst.CSTNode] = [use for use in file.uses(target.value) if use not in known]
    others += [entry for entry in declared if entry.name.value == target.value]
    inside = (one for one in others if not home or f"{file.scope(one)}.".startswith(f"{home}."))
    return next((file.span(one).line for one in inside), None)


def calls_in_context(context: cst.Call, block: cst.With, file: File) -> list[Bound] | str:
    """The calls of ``wrap`` that run in ``block``, or why they are not all seen."""
    own = [call for call in file.nodes(cst.Call) if file.fsdp1(call.func) == "wrap"]
    inside = set(file.inside(block, cst.Call))
    if any(not any(call in inside for call in own if call is one) for one in own):
        return "a wrap() outside of this block may run inside it"
    others = [data for path, data in file.project.sources.items() if path != file.path]
    if any(WRAPS.search(data) for data in others):
        return "wrap() in another file may run inside this block"
    if not own:
        return "no wrap() in this block is known"
    again = wraps_again(block, file)
    own = [call for call in own if call not in again]
    functions = {file.function(call) for call in own}
    if functions != {file.function(block)}:
        return "a wrap() in this block runs when its function is called"
    found = [Bound(call, context) for call in own]
    return next(_beyond(found, file), found)


def wraps_again(block: cst.With, file: File) -> list[cst.Call]:
    """The calls of ``wrap`` in ``block`` that are given nothing but what another one has wrapped."""
    own = [call for call in file.inside(block, cst.Call) if file.fsdp1(call.func) == "wrap"]
    return [call for call in own if len(call.args) == 1 and call.args[0].value in own]


def _beyond(found: list[Bound], file: File) -> Iterator[str]:
    """Why the arguments cannot be those of each call."""
    holder, bound = found[0].holder, found[0].arguments
    gathered = gather(bound, (), file)
    if any(entry.keyword is None and entry.star != "**" for entry in bound.args):
        yield "not all of its arguments are keyword arguments"
        return
    yield from gathered.reasons
    given = gathered.arguments.values()
    unsteady = next((value for value in given if not is_steady(value, file)), None)
    if unsteady is not None:
        yield f"{' '.join(file.code(unsteady).split())[:40]} is computed once and used by every call"
    for one in found:
        if any(entry.star for entry in one.call.args) or len([e for e in one.call.args if e.keyword is None]) != 1:
            yield f"the call on line {file.span(one.call).line} passes more than the module by position"
        if file.suppressions.ignored("FSDP101", one.call) or file.suppressions.gated(one.call) is not None:
            yield f"the call on line {file.span(one.call).line} is unchanged"
        outer, inner = file.scope(holder), file.scope(one.call)
        hidden = {name.value for value in given for name in names_in(value)}
        while inner != outer and inner:
            if any((inner, name) in file.bindings.found for name in hidden):
                yield f"the call on line {file.span(one.call).line} has different values for the same arguments"
            inner = inner.rpartition(".")[0]
