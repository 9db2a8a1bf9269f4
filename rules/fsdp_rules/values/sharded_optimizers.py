"""Which expressions may be optimizers that hold parameters of a sharded model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fsdp_rules.ir.operations import At
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.held_parameters import parameters_of
from fsdp_rules.values.interpreter import Interpreter


def sharded_optimizers(machine: Interpreter, held_at: Mapping[str, Mapping[At, Collection[Obj]]]) -> dict[str, set[At]]:
    """By files, the places of such expressions among ``held_at``."""

    def is_sharded(one: Obj) -> bool:
        held = parameters_of(machine, one) if one.kind is Kind.OPTIMIZER else ()
        return any(each.kind is Kind.PARAMETER for each in held)

    return {
        path: {at for at, held in by_place.items() if any(map(is_sharded, held))} for path, by_place in held_at.items()
    }
