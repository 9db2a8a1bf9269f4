"""Param groups of Adam and AdamW from before torch gave them ``decoupled_weight_decay``."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import Entries, Key, ValueEntry

_NAME = "decoupled_weight_decay"


def with_decoupled_weight_decay(state: State, value: bool | None) -> State:
    """The state with it in every group of Adam that lacks it; with no value given, such groups are noted alone.

    A checkpoint does not say whether Adam or AdamW wrote it, and the value decides how weights decay.
    """
    lacking = _groups_without(state)
    if not lacking:
        return state
    many = f"{len(lacking)} param group{'s' * (len(lacking) > 1)}"
    if value is None:
        return state.noting(
            f"{many} lack decoupled_weight_decay, which newer torch needs: convert with --adamw or --adam, or "
            "load with DefaultLoadPlanner(allow_partial_load=True)"
        )
    entries: Entries = {}
    for key, entry in state.entries.items():
        entries[key] = entry
        if key[:-1] in lacking and key[-1] == "weight_decay":
            filled = (*key[:-1], _NAME)
            entries[filled] = ValueEntry(value)
    return replace(state, entries=entries).noting(f"added {_NAME}={value} to {many}, as requested")


def _groups_without(state: State) -> list[Key]:
    """The groups with what Adam alone has, ``betas``, ``weight_decay`` and ``amsgrad``."""
    found = []
    for optimizer in traits.optimizers(state.entries):
        start = (*optimizer.prefix, "param_groups")
        for number in range(optimizer.groups):
            names = {key[-1] for key in state.entries if key[:-1] == (*start, number)}
            names |= {key[-2] for key in state.entries if key[:-2] == (*start, number)}
            if {"betas", "weight_decay", "amsgrad"} <= names and _NAME not in names:
                found.append((*start, number))
    return found
