"""Whether a place finds full parameters, which ``summon_full_params`` has gathered."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import bind, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions
from fsdp_rules.model.flowing import known_as, runs_in

SUMMON = "summon_full_params"


def is_summoned(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is in a ``with`` that gathers full parameters, or in a function that only such ones call."""
    return next(_summoning(node, file), None) is not None or runs_in("gathered", node, file)


def gathers_all_of(model: cst.BaseExpression, file: File) -> bool:
    """Whether the innermost ``with`` that gathers around ``model`` gathers ``model``, its inner units too."""
    item = next(_summoning(model, file), None)
    given = (bind(item, ("module", "recurse")) if isinstance(item, cst.Call) else None) or {}
    is_same = "module" in given and file.code(given["module"]) == file.code(model)
    return is_same and ("recurse" not in given or literal_bool(given["recurse"]) is True)


def is_written_back(node: cst.CSTNode, file: File) -> bool:
    """Whether the innermost such ``with`` around ``node`` may write into the shards what was written inside."""
    item = next(_summoning(node, file), None)
    given = bind(item, ("module", "recurse", "writeback")) if isinstance(item, cst.Call) else None
    return item is not None and literal_bool((given or {}).get("writeback")) is not False


def _summoning(node: cst.CSTNode, file: File) -> Iterator[cst.BaseExpression]:
    """What gathers full parameters around ``node``, from the inside out."""
    if SUMMON in file.text or file.path in file.project.values.traits.get("gathers", ()):
        for ancestor in file.ancestors(node):
            if isinstance(ancestor, cst.With):
                yield from (item.item for item in ancestor.items if _summons(item.item, file))


def _summons(item: cst.BaseExpression, file: File) -> bool:
    if SUMMON in file.code(item) or known_as("gathers", item, file):
        return True
    name = item.func if isinstance(item, cst.Call) else item
    if not isinstance(name, cst.Name):
        return False
    return any(SUMMON in file.code(made) for made in definitions(name, file) or () if isinstance(made, cst.Assign))
