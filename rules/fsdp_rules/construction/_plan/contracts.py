"""What a definition gives to wraps in other places: FSDP1's strategies, a MixedPrecision, or a policy by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from fsdp_rules.construction._plan.argument_dicts import SINGLE, ArgumentDict, argument_dict
from fsdp_rules.construction._plan.class_uses import field_slot, uses_of_class
from fsdp_rules.construction._plan.leaves import Found, Leaf, is_shared, leaves
from fsdp_rules.construction._plan.member_writes import field_of
from fsdp_rules.construction._plan.members import classes_called
from fsdp_rules.construction._plan.offload import offloads
from fsdp_rules.construction._plan.plan import Precision
from fsdp_rules.construction._plan.policy_test import policy_test
from fsdp_rules.construction._plan.precision_fields import buffers_like, precision_fields
from fsdp_rules.construction._plan.slots import given
from fsdp_rules.construction._plan.strategies import known_strategy
from fsdp_rules.construction._plan.unit_arguments import UNITS, contract_of_units, of_slot
from fsdp_rules.file.expressions import bind, is_none, literal_bool, literal_text
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.strategy_names import MESHED, NAMES
from fsdp_rules.project.configured import Contract, Slot

#: What the arguments of FSDP1 are that become something else in a dictionary of them.
KINDS = {
    "auto_wrap_policy": "policy",
    "cpu_offload": "offload",
    "mixed_precision": "precision",
    "sharding_strategy": "strategy",
}


def values_of(slot: Slot, contract: Contract, file: File) -> list[tuple[Leaf, str]]:
    """Every value that changes with the definition of ``slot``, with its kind: all, or those in a dictionary."""
    if slot.part == UNITS:
        said = of_slot(slot, file)
        return [(Leaf(node), contract.kind) for node in (*said.tests, *(node for node, _ in said.given))]
    held = argument_dict(slot, file)
    if held is None:
        return [(leaf, contract.kind) for leaf in given_leaves(slot, file)]
    kinds = dict(KINDS)
    if "should_shard" not in contract.keys:
        del kinds["auto_wrap_policy"]
    writes = [write for write in held.writes if write.key in kinds and not is_none(write.value)]
    found = {leaf.node: (leaf, kinds[write.key]) for write in writes for leaf in leaves(write.value, file).leaves}
    return list(found.values())


def given_leaves(slot: Slot, file: File) -> tuple[Leaf, ...]:
    """Every value that the definition of ``slot``, in ``file``, gives; none where one is unknown or read elsewhere."""
    found: list[Leaf] = []
    for value in given(slot, file):
        one = leaves(value, file)
        if one.unknown or is_shared(one, file) or any(_is_passed_in(leaf, file) for leaf in one.leaves):
            return ()
        found += one.leaves
    return tuple({leaf.node: leaf for leaf in found}.values())


def _is_passed_in(leaf: Leaf, file: File) -> bool:
    """Whether a caller gives the value, or a dictionary that makes all of its values would make a mesh for each."""
    makes_mesh = leaf.eager and known_strategy(leaf.node, file) in MESHED
    return makes_mesh or isinstance(file.parent(leaf.node), cst.Param)


def contract_of(slot: Slot, file: File) -> Contract | None:
    """What ``slot``, whose definition is in ``file``, gives; None where its values are not all of one known kind."""
    if slot.part == UNITS:
        said = contract_of_units(of_slot(slot, file), file)
        return said if isinstance(said, Contract) else None
    held = argument_dict(slot, file)
    if held is not None:
        return _arguments(held, file)
    found = given_leaves(slot, file)
    made = [leaf for leaf in found if not is_none(leaf.node)]
    kinds = {_kind(leaf, file) for leaf in made}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind == "strategy":
        every = frozenset().union(*(_strategies(leaf, file) for leaf in found))
        return Contract(kind, strategies=every) if not any(_is_open(leaf, file) for leaf in found) else None
    if kind == "precision":
        return _precision(found, file)
    if kind == "policy":
        return Contract(kind) if not _would_be_bound(slot, file) else None
    known = kind == "offload" and all(offloads(leaf.node, file) is not None for leaf in found if leaf.slot is None)
    return Contract("offload") if known else None


def fits(value: cst.BaseExpression, contract: Contract, file: File) -> tuple[Leaf, ...]:
    """The values that ``value`` gives a field of which ``contract`` is known; none where one is of another kind."""
    found = leaves(value, file)
    made = [leaf for leaf in found.leaves if not is_none(leaf.node)]
    if found.unknown or is_shared(found, file) or any(leaf.slot is not None or leaf.eager for leaf in found.leaves):
        return ()
    if not made or {_kind(leaf, file) for leaf in made} != {contract.kind}:
        return ()
    if contract.kind == "strategy":
        known = frozenset().union(*(_strategies(leaf, file) for leaf in found.leaves))
        return found.leaves if known <= contract.strategies | {"FULL_SHARD", "SHARD_GRAD_OP"} else ()
    if contract.kind == "precision":
        own = _precision(found.leaves, file)
        alike = own is not None and (own.casts, own.buffers_like) == (contract.casts, contract.buffers_like)
        return found.leaves if alike and len(made) == len(found.leaves) else ()
    return found.leaves


def _is_open(leaf: Leaf, file: File) -> bool:
    """Whether objects of a dataclass may be made with other values than ``leaf``, its default, and none of them seen.

    A dictionary that is the class's own, no field, cannot be given by position.
    """
    slot = field_slot(leaf.node, file)
    uses = uses_of_class(slot, file) if slot is not None else None
    return uses is not None and (uses.from_outside or (uses.by_itself and uses.positional))


def _would_be_bound(slot: Slot, file: File) -> bool:
    """Whether a function in the place of the policy would become a method of the class that holds it."""
    owner, name = field_of(slot)
    if not owner or slot.is_call or not file.bindings.found.get((owner, name)):
        return False
    return not any(name in one.constructed for one in classes_called(owner, file) if one.path == file.path)


def _arguments(held: ArgumentDict, file: File) -> Contract | None:
    """What a dictionary of arguments becomes, None where one of its values is not known."""
    parts: dict[str, Found] = {}
    for key in SINGLE - {"device_id"}:
        write = held.only(key)
        if write is None or is_none(write.value):
            continue
        parts[key] = leaves(write.value, file)
        if parts[key].unknown or is_shared(parts[key], file):
            return None
        if any(_is_passed_in(leaf, file) for leaf in parts[key].leaves):
            return None
        kinds = {_kind(leaf, file) for leaf in parts[key].leaves if not is_none(leaf.node)}
        if key in ("mixed_precision", "sharding_strategy") and not kinds <= {KINDS[key]}:
            return None
    device = _device(held, file)
    policy = _policy_key(parts["auto_wrap_policy"], file) if "auto_wrap_policy" in parts else ""
    if device is None or policy is None:
        return None
    keys = {policy} - {""}
    if any(write.key == "sync_module_states" and literal_bool(write.value) for write in held.writes):
        keys.add("sync_module_states")
    contract = Contract("arguments", device=device)
    if "mixed_precision" in parts:
        precision = _precision(parts["mixed_precision"].leaves, file)
        if precision is None:
            return None
        keys.add("mp_policy")
        contract = replace(precision, kind="arguments", device=device)
    if "cpu_offload" in parts:
        if any(offloads(leaf.node, file) is None for leaf in parts["cpu_offload"].leaves):
            return None
        keys.add("offload_policy")
    strategies: set[str] = set()
    for leaf in parts["sharding_strategy"].leaves if "sharding_strategy" in parts else ():
        strategies |= _strategies(leaf, file)
    if not strategies <= NAMES or (device == "cpu" and not strategies):
        return None
    return replace(contract, keys=frozenset(keys), strategies=frozenset(strategies))


def _device(held: ArgumentDict, file: File) -> str | None:
    """The kind of device that the dictionary names where ``fully_shard`` needs no more than that, else None."""
    write = held.only("device_id")
    if write is None or is_none(write.value):
        return "unset"
    value = file.value(write.value)
    if file.calls(value, "torch.cuda.current_device"):
        return "cuda"
    named = bind(value, ("type",)) if isinstance(value, cst.Call) and file.calls(value, "torch.device") else None
    return "cpu" if literal_text((named or {}).get("type")) == "cpu" else None


def _policy_key(found: Found, file: File) -> str | None:
    """Under which key the policy is kept: as a test of a module, or as FSDP1's, which is asked; "" for none."""
    if not found.unknown and all(is_none(leaf.node) for leaf in found.leaves):
        return ""
    kinds = {_kind(leaf, file) for leaf in found.leaves if not is_none(leaf.node)}
    if not found.unknown and kinds == {"policy"}:
        return "should_shard"
    custom = any("CustomPolicy" in file.code(leaf.node) for leaf in found.leaves)
    taken = any(leaf.slot is not None for leaf in found.leaves)
    return None if custom or taken or "counting_policy" in file.project.flags else "auto_wrap_policy"


def _kind(leaf: Leaf, file: File) -> str | None:
    contract = leaf.contract(file)
    if contract is not None:
        return contract.kind
    if known_strategy(leaf.node, file) is not None:
        return "strategy"
    if precision_fields(leaf.node, file) is not None:
        return "precision"
    if offloads(leaf.node, file) is not None:
        return "offload"
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
