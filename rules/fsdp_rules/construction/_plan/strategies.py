"""Strategies that are chosen at run time between values that the file names: what each of them becomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import libcst as cst

from fsdp_rules.construction._plan.leaves import Leaf, is_imported, leaves, readers
from fsdp_rules.file.expressions import (
    brief,
    called_on,
    calls_plainly,
    is_none,
    is_repeatable,
    last_name,
    literal_text,
    only_key,
)
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.strategy_names import HYBRID, MESHED, NAMES

#: Methods of a text that only spell it in another way.
SPELLING = frozenset({"lower", "strip", "upper"})


@dataclass
class Strategies:
    """``value`` is the strategy of a call, ``kinds`` the name of the strategy that each of its leaves is.

    ``is_parameter``: it is a parameter's default, so that callers outside of the project may pass another. ``name``
    is what a strategy of any name is looked up by, or (``is_enum``) the strategy itself. ``others`` are the strategies
    that definitions in other places give.
    """

    value: cst.BaseExpression
    is_parameter: bool = False
    name: cst.BaseExpression | None = None
    is_enum: bool = False
    leaves: tuple[Leaf, ...] = ()
    kinds: dict[cst.BaseExpression, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    @property
    def names(self) -> set[str]:
        """The names of all strategies that it can be."""
        return {*self.kinds.values(), *self.others}

    @property
    def shares_mesh(self) -> bool:
        """Whether all take the same mesh, and stand where none may be made, or several would be."""
        alike = not HYBRID.intersection(self.names) and "NO_SHARD" not in self.names
        return alike and any(leaf.eager or leaf.early for leaf in self.leaves)

    @property
    def eager(self) -> bool:
        """Whether leaves that need a mesh are evaluated although others may be chosen."""
        return any(leaf.eager and self.kinds.get(leaf.node) in MESHED for leaf in self.leaves)


def follow(value: cst.BaseExpression, file: File) -> tuple[Strategies, str]:
    """The strategies that ``value`` can be, and why they are not all known ("" where they are)."""
    found = leaves(value, file)
    given = tuple(replace(leaf, early=_is_early(leaf.node, value, file)) for leaf in found.leaves)
    by_default = any(isinstance(file.parent(node), cst.Param) for node in found.nodes)
    choices = Strategies(value, by_default, leaves=given)
    for leaf in given:
        contract = leaf.contract(file)
        if contract is not None and contract.kind == "strategy":
            choices.others |= contract.strategies
            continue
        known = known_strategy(leaf.node, file)
        if known is None:
            return choices, f"sharding_strategy={brief(file.code(value))} is only known at run time"
        choices.kinds[leaf.node] = known
    if found.unknown:
        return choices, f"sharding_strategy={brief(file.code(value))} is only known at run time"
    if any(leaf.early and choices.kinds.get(leaf.node) in MESHED for leaf in given):
        return choices, f"{brief(file.code(value))} is made before a process group exists, so no mesh can be made there"
    other = next(readers(found, file), None)
    if other is not None:
        return choices, f"{other.value} is also read on line {file.span(other).line}"
    if is_imported(found, file):
        return choices, f"another file imports what {brief(file.code(value))} reads"
    return choices, ""


def _is_early(node: cst.BaseExpression, value: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is evaluated outside of the function around ``value``, or as a default when it is defined."""
    if file.function(node) is not file.function(value):
        return True
    return any(isinstance(entry, cst.Param) for entry in file.ancestors(node))


def name_looked_up(value: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The name in ``ShardingStrategy[name]`` and ``getattr(ShardingStrategy, name)``; None for everything else."""
    name: cst.BaseExpression | None = None
    if isinstance(value, cst.Subscript) and file.fsdp1(value.value) == "ShardingStrategy":
        name = only_key(value)
    elif calls_plainly(value, ("getattr",), 2) and isinstance(value, cst.Call):
        name = value.args[1].value if file.fsdp1(value.args[0].value) == "ShardingStrategy" else None
    inner = called_on(name) or name
    if isinstance(name, cst.Call) and (name.args or inner is name or last_name(name) not in SPELLING):
        return None
    return name if inner is not None and is_repeatable(inner) else None


def known_strategy(value: cst.BaseExpression, file: File) -> str | None:
    """The strategy that ``value`` names, by attribute or by ``ShardingStrategy["..."]``."""
    if is_none(value):
        return "FULL_SHARD"
    if isinstance(value, cst.Subscript) and file.fsdp1(value.value) == "ShardingStrategy":
        name = literal_text(only_key(value))
        return name if name in NAMES else None
    known = file.fsdp1(value)
    if known is None or not known.startswith("ShardingStrategy."):
        return None
    name = known.partition(".")[2]
    return name if name in NAMES else None
