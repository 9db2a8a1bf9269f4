"""Dictionaries of FSDP1's arguments that a function returns: what is put into them, and what of it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.slots import given
from fsdp_rules.file.expressions import call_of, dict_entries, literal_bool, literal_text, only_key
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.project.configured import Slot

#: Arguments that mean nothing to fully_shard, whatever their values are.
DROPPED = frozenset({"backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params"})
#: Arguments that are put in once, so that the dictionary holds nothing of another value.
SINGLE = frozenset({"auto_wrap_policy", "cpu_offload", "device_id", "mixed_precision", "sharding_strategy"})
KNOWN = DROPPED | SINGLE | {"sync_module_states"}


@dataclass(frozen=True)
class Write:
    """The argument ``key`` is given ``value`` by ``where``: a display, or a statement; ``certain``: always."""

    key: str
    value: cst.BaseExpression
    where: cst.CSTNode
    certain: bool


@dataclass(frozen=True)
class ArgumentDict:
    """What a function puts into the dictionary that it returns."""

    writes: tuple[Write, ...]

    def only(self, key: str) -> Write | None:
        """The one write of ``key``."""
        return next((write for write in self.writes if write.key == key), None)


def argument_dict(slot: Slot, file: File) -> ArgumentDict | None:
    """The dictionary of FSDP1's arguments that ``slot``, a function of ``file``, returns; None where it is unseen."""
    values = given(slot, file) if slot.is_call else []
    return _read(values[0], file) if len(values) == 1 else None


@once
def _read(value: cst.BaseExpression, file: File) -> ArgumentDict | None:
    if dict_entries(value) is not None:
        return _known(list(_displayed(value, value, certain=True)))
    if not isinstance(value, cst.Name):
        return None
    bound = file.bindings.found.get((file.scope(value), value.value), [])
    whole = [entry for entry in bound if entry.value is not None]
    if len(whole) != 1 or whole[0].value is None or dict_entries(whole[0].value) is None:
        return None
    first = file.block(whole[0].statement)
    writes = list(_displayed(whole[0].value, whole[0].value, certain=True))
    written: set[cst.CSTNode] = {whole[0].statement}
    for use in file.uses(value.value):
        if file.scope(use) != file.scope(value) or use is value:
            continue
        statement = file.statement(use)
        more = list(_put(use, statement, file.block(statement) is first, file))
        if not more:
            return None
        writes += more
        written.add(statement)
    if any(entry.statement not in written for entry in bound):
        return None
    return _known(writes)


def _known(writes: list[Write]) -> ArgumentDict | None:
    keys = [write.key for write in writes]
    if not writes or not KNOWN.issuperset(keys) or any(keys.count(key) > 1 for key in SINGLE):
        return None
    syncs = [write.value for write in writes if write.key == "sync_module_states"]
    if not all(literal_bool(value) is not None for value in syncs):
        return None
    late = any(
        write.key in ("auto_wrap_policy", "mixed_precision", "device_id") and not write.certain for write in writes
    )
    return None if late else ArgumentDict(tuple(writes))


def _displayed(display: cst.BaseExpression, where: cst.CSTNode, *, certain: bool) -> Iterator[Write]:
    for key, value in (dict_entries(display) or {}).items():
        yield Write(key, value, where, certain)


def _put(use: cst.Name, statement: cst.CSTNode, certain: bool, file: File) -> Iterator[Write]:
    """What ``name["key"] = value`` and ``name.update({...})`` put into the dictionary."""
    parent = file.parent(use)
    if isinstance(parent, cst.Subscript) and isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        key = literal_text(only_key(parent))
        if statement.targets[0].target is parent and key is not None:
            yield Write(key, statement.value, statement, certain)
    if isinstance(parent, cst.Attribute) and parent.attr.value == "update" and isinstance(statement, cst.Expr):
        call = call_of(parent, file)
        if call is statement.value and call is not None and len(call.args) == 1 and not call.args[0].star:
            yield from _displayed(call.args[0].value, statement, certain=certain)
