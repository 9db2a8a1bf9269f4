"""Names that a function reads before it gives them a value: Python raises there, and an outer name is not asked."""

from __future__ import annotations

from itertools import chain

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.reads import is_read
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


def is_only_binding(node: cst.CSTNode, subject: str, file: File) -> bool:
    """Whether nothing but ``node``, and what reads ``subject`` as well, makes it a name of their function.

    Python raises UnboundLocalError there; without them the name would be the outer one, in all of the function.
    """
    function = next((one for one in file.ancestors(node) if isinstance(one, cst.FunctionDef | cst.ClassDef)), None)
    if not isinstance(function, cst.FunctionDef) or (file.scope(node), subject) not in _unbound(file.module, file):
        return False
    elsewhere = chain.from_iterable(entry.names for entry in file.inside(function, cst.Nonlocal))
    return all(entry.name.value != subject for entry in elsewhere)


def is_bound_outside(node: cst.CSTNode, subject: str, file: File) -> bool:
    """Whether a function around that of ``node``, or the module, gives ``subject`` a value."""
    scope = file.scope(node)
    while scope:
        scope = scope.rpartition(".")[0]
        if (scope, subject) in file.bindings.found:
            return True
    return subject in file.aliases


def unbound(gone: cst.CSTNode, subject: str, *claims: cst.CSTNode) -> Diagnosis:
    """What to say where ``gone`` is all that makes ``subject`` a name of its function."""
    return Diagnosis(
        gone,
        Level.MANUAL,
        f"this raises: nothing assigns {subject} first, and otherwise {subject} is the outer variable",
        f"pass {subject} to the function as an argument, then run this tool again",
        claims=claims,
    )


@once
def _unbound(module: cst.Module, file: File) -> frozenset[tuple[str, str]]:
    """Each scope and name whose values are all made of the name itself."""
    # What else may bind a name is rare enough to be asked of the whole file.
    names = [entry.name for entry in file.nodes(cst.FunctionDef)] + [entry.name for entry in file.nodes(cst.ClassDef)]
    names += [entry.name for entry in file.nodes(cst.MatchAs) if entry.name is not None]
    names += [entry.name for entry in file.nodes(cst.MatchStar) if entry.name is not None]
    names += [entry.rest for entry in file.nodes(cst.MatchMapping) if entry.rest is not None]
    others = {name.value for name in names}
    others |= {entry.name.value for entry in file.nodes(cst.AsName) if isinstance(entry.name, cst.Name)}
    return frozenset(
        (scope, name)
        for (scope, name), found in file.bindings.found.items()
        if scope
        and name not in others
        and all(entry.value is not None and _reads(entry.value, name, file) for entry in found)
    )


def _reads(value: cst.BaseExpression, name: str, file: File) -> bool:
    """Whether the plain ``name`` is read to compute ``value``, and not by a function in it, when that is called."""
    later = {one for function in file.inside(value, cst.Lambda) for one in file.inside(function, cst.Name)}
    return any(
        one.value == name and one not in later and is_read(one, file.layout) for one in file.inside(value, cst.Name)
    )
