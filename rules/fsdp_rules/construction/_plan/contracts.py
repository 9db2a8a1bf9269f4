"""What a definition gives to wraps in other places: FSDP1's strategies, a MixedPrecision, or a policy by class."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.leaves import Found, Leaf, leaves, readers
from fsdp_rules.construction._plan.plan import Precision
from fsdp_rules.construction._plan.policy_test import policy_test
from fsdp_rules.construction._plan.precision_fields import buffers_like, precision_fields
from fsdp_rules.construction._plan.slots import given
from fsdp_rules.construction._plan.strategies import known_strategy
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.project.configured import Contract, Slot


def given_leaves(slot: Slot, file: File) -> tuple[Leaf, ...]:
    """Every value that the definition of ``slot``, in ``file``, gives; none where one is unknown or read elsewhere."""
    found: list[Leaf] = []
    for value in given(slot, file):
        one = leaves(value, file)
        if one.unknown or _is_shared(one, file) or any(_is_passed_in(leaf, file) for leaf in one.leaves):
            return ()
        found += one.leaves
    return tuple({leaf.node: leaf for leaf in found}.values())


def _is_shared(found: Found, file: File) -> bool:
    if next(readers(found, file), None) is not None:
        return True
    above = [carrier.value for carrier in found.carriers if not file.scope(carrier)]
    return any(file.project.imports_from(file.path, name) for name in above)


def _is_passed_in(leaf: Leaf, file: File) -> bool:
    return leaf.eager or isinstance(file.parent(leaf.node), cst.Param)


def contract_of(slot: Slot, file: File) -> Contract | None:
    """What ``slot``, whose definition is in ``file``, gives; None where its values are not all of one known kind."""
    found = given_leaves(slot, file)
    made = [leaf for leaf in found if not is_none(leaf.node)]
    kinds = {_kind(leaf, file) for leaf in made}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind == "strategy":
        return Contract(kind, strategies=frozenset().union(*(_strategies(leaf, file) for leaf in found)))
    if kind == "precision":
        return _precision(found, file)
    return Contract(kind) if kind == "policy" else None


def _kind(leaf: Leaf, file: File) -> str | None:
    contract = leaf.contract(file)
    if contract is not None:
        return contract.kind
    if known_strategy(leaf.node, file) is not None:
        return "strategy"
    if precision_fields(leaf.node, file) is not None:
        return "precision"
    test = policy_test(leaf.node, file)
    return "policy" if test is not None and not test.by_size else None


def _strategies(leaf: Leaf, file: File) -> frozenset[str]:
    contract = leaf.contract(file)
    return contract.strategies if contract is not None else frozenset({known_strategy(leaf.node, file) or ""})


def _precision(found: Iterable[Leaf], file: File) -> Contract | None:
    contracts: set[Contract] = set()
    optional = False
    for leaf in found:
        contract = leaf.contract(file)
        optional |= is_none(leaf.node) or (contract is not None and contract.optional)
        if contract is not None:
            contracts.add(Contract("precision", casts=contract.casts, buffers_like=contract.buffers_like))
        elif not is_none(leaf.node):
            own = _of_fields(precision_fields(leaf.node, file) or {}, file)
            if own is None:
                return None
            contracts.add(own)
    if len(contracts) != 1:
        return None
    one = contracts.pop()
    return Contract("precision", casts=one.casts, buffers_like=one.buffers_like, optional=optional)


def _of_fields(fields: dict[str, cst.BaseExpression], file: File) -> Contract | None:
    """What one MixedPrecision is, None where a MixedPrecisionPolicy is not enough."""
    precision = Precision(fields)
    units, root = precision.flag("cast_forward_inputs", False), precision.flag("cast_root_forward_inputs", True)
    if units is None or root is None or "_module_classes_to_ignore" in fields:
        return None
    if precision.flag("keep_low_precision_grads", False) is not False:
        return None
    buffers = fields.get("buffer_dtype")
    like = "" if buffers is None or is_none(file.value(buffers)) else buffers_like([fields], file)
    return Contract("precision", casts=(units, root), buffers_like=like) if like is not None else None
