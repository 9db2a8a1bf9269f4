"""Which parameter of one run is which of the other: by name, whatever of several names each side has for tied ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.verify.recording.recording import Model, Parameter, Recording


@dataclass(frozen=True)
class Pairs:
    """``keys`` from before to after, in the order of the model; the others are on one side only."""

    keys: dict[str, str]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def pair(before: Recording, after: Recording) -> Pairs:
    """Pair parameters of models with the same number by any name they share."""
    names: dict[str, str] = {}
    for parameter in after.parameters.values():
        for name in parameter.names:
            names[_full(parameter, name)] = parameter.key
    keys: dict[str, str] = {}
    only_before = []
    for parameter in before.parameters.values():
        other = next((names[full] for name in parameter.names if (full := _full(parameter, name)) in names), None)
        if other is None:
            only_before.append(parameter.key)
        else:
            keys[parameter.key] = other
    taken = set(keys.values())
    return Pairs(keys, tuple(only_before), tuple(key for key in after.parameters if key not in taken))


def _full(parameter: Parameter, name: str) -> str:
    return f"{parameter.key.partition(':')[0]}:{name}"


def shown(key: str, models: Sequence[Model]) -> str:
    """A parameter or module as reports name it, with its model where there are several."""
    root, _, name = key.partition(":")
    name = name or "(root)"
    if len(models) < 2 or not root.isdigit():
        return name
    return f"{name} of model {root} ({models[int(root)].class_name})"
