"""Which parameter of one run is which of the other: by name, whatever of several names each side has for tied ones."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.verify.recording.recording import Parameter, Recording


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


def shown(key: str, several: bool) -> str:
    """A parameter or module as reports name it."""
    root, _, name = key.partition(":")
    name = name or "(root)"
    return f"model {root}: {name}" if several else name
