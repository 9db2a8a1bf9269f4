"""Whether two runs were set up alike: environments, and how the models are sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.pairs import Pairs
from fsdp_migrate.verify.recording.recording import Model, Recording

#: Of a unit, where both sides have one. An FSDP1 root with reshard is an FSDP2 root that stays gathered.
_COMPARED = ("shards", "replicas", "param dtype", "reduce dtype", "offload")


def environment_differences(before: Recording, after: Recording) -> Iterator[Difference]:
    """What differs between the environments of the first ranks."""
    one, two = before.environments[0], after.environments[0]
    for name in one.keys() | two.keys():
        if name != "flags" and one.get(name) != two.get(name):
            yield _environment(name, one.get(name), two.get(name))
    flags, others = one.get("flags", {}), two.get("flags", {})
    for name in sorted(flags.keys() | others.keys()):
        # Names that torchrun makes up for each start are no setting.
        if flags.get(name) != others.get(name) and not name.startswith(("TORCHELASTIC_", "TORCH_NCCL_ASYNC")):
            yield _environment(name, flags.get(name), others.get(name))


def _environment(name: str, before: object, after: object) -> Difference:
    return Difference(Question.ENVIRONMENT, -1, name, str(before), str(after))


def unit_differences(before: Recording, after: Recording, pairs: Pairs) -> Iterator[Difference]:
    """Where a parameter is gathered in another unit, with other dtypes or over other ranks; nothing without FSDP."""
    for number, (one, two) in enumerate(zip(before.models, after.models, strict=False)):
        first, second = unit_of(number, one), unit_of(number, two)
        if not first or not second:
            continue
        reported: set[tuple[str, str]] = set()
        for key, unit in first.items():
            other = second.get(pairs.keys.get(key, key))
            for name, left, right in _apart(unit, other, before.world == after.world):
                where = f"{number}:{unit['module']}"
                if (where, name) not in reported:
                    reported.add((where, name))
                    yield Difference(Question.UNITS, -1, where, left, right, what=name)


def _apart(
    unit: Mapping[str, Any], other: Mapping[str, Any] | None, same_world: bool
) -> Iterator[tuple[str, str, str]]:
    if other is None:
        yield "unit", f"in unit {unit['module'] or '(root)'}", "in no unit"
        return
    if unit["module"] != other["module"]:
        yield "unit", f"in unit {unit['module'] or '(root)'}", f"in unit {other['module'] or '(root)'}"
        return
    for name in _COMPARED:
        # Another number of ranks is asked for, and has other shards.
        if unit.get(name) != other.get(name) and (same_world or name not in ("shards", "replicas")):
            yield name, str(unit.get(name)), str(other.get(name))
    # A unit of one shard has nothing to give back, whatever it is told.
    cut = max(unit.get("shards", 1), other.get("shards", 1)) > 1
    if unit["module"] and cut and unit.get("reshard") != other.get("reshard"):
        yield "reshard", str(unit.get("reshard")), str(other.get("reshard"))


def unit_of(number: int, model: Model) -> dict[str, Mapping[str, Any]]:
    """The unit that gathers each parameter, by the parameter's key."""
    by_name = {name: parameter.key for parameter in model.parameters for name in parameter.names}
    found = {}
    for unit in model.units:
        for inner in unit["parameters"]:
            name = f"{unit['module']}.{inner}" if unit["module"] else inner
            if name in by_name:
                found[by_name[name]] = unit
    return found
