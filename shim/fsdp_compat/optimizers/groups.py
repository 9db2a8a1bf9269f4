"""The groups of an optimizer's state: from numbers to names and back, matched by the parameters that they hold."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.tensor import DTensor

from fsdp_compat.messages import shortened
from fsdp_compat.optimizers.held import Held
from fsdp_compat.units import clean_name

KEYED_BY_NUMBER = (
    "optim_state_dict is keyed by number; key it by parameter name, as FSDP.optim_state_dict does, or with "
    "FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model, optim=optimizer)"
)


def exported_groups(groups: Sequence[Mapping[str, Any]], held: Held) -> list[dict[str, Any]]:
    """``groups`` of a state dict with the names of their parameters, which it numbers or names already.

    Raises ValueError for a number or name of no parameter of the optimizer.
    """
    by_number = dict(enumerate(held.names.values()))
    known = held.saved_names
    exported = []
    for index, group in enumerate(groups):
        names = []
        for key in group["params"]:
            name = by_number.get(key) if isinstance(key, int) else clean_name(str(key))
            if name is None or name not in known:
                raise ValueError(
                    f"group {index} of the optimizer's state has {key}, which is not one of its parameters"
                )
            names.append(known[name])
        values = {key: value for key, value in group.items() if key != "params"}
        exported.append({**copy.deepcopy(values), "params": names})
    return exported


def loadable_groups(saved: Sequence[Mapping[str, Any]], held: Held, keys: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of ``saved`` in the optimizer's order, with ``keys`` for the names of their parameters.

    Parameters of the optimizer that FSDP does not manage may be missing in ``saved``; they are then left out.
    Raises ValueError for groups that hold other parameters, NotImplementedError for groups that number them.
    """
    by_names: dict[frozenset[str], Mapping[str, Any]] = {}
    for group in saved:
        if any(not isinstance(name, str) for name in group["params"]):
            raise NotImplementedError(KEYED_BY_NUMBER)
        by_names[frozenset(map(clean_name, group["params"]))] = group
    mentioned = frozenset().union(*by_names)
    optional = {name for param, name in held.names.items() if not isinstance(param, DTensor)} - mentioned
    loadable = []
    for index, names in enumerate(held.groups):
        wanted = [name for name in names if name not in optional]
        if names and not wanted:
            raise ValueError(
                f"optim_state_dict has none of the parameters of the optimizer's group {index} "
                f"({shortened(sorted(names))})"
            )
        found = by_names.get(frozenset(wanted))
        if found is None:
            raise ValueError(
                f"no group in optim_state_dict has the parameters of the optimizer's group {index} "
                f"({shortened(sorted(wanted))}); build the same groups as when it was saved"
            )
        loadable.append(_loadable(found, wanted, keys))
    return loadable


def _loadable(group: Mapping[str, Any], wanted: Sequence[str], keys: Mapping[str, Any]) -> dict[str, Any]:
    values = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
    values["params"] = [keys[name] for name in wanted]
    if "param_names" in group:
        # In the order of params: that of the optimizer here, which may be another one than where it was saved.
        given = dict(zip(map(clean_name, group["params"]), group["param_names"], strict=True))
        values["param_names"] = [given[name] for name in wanted]
    return values
