"""A layout: which modules are units, and how each is sharded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsdp_migrate.tune.traced_model import SIZES, TracedModel, TracedParameter


class InvalidLayout(ValueError):
    """``fully_shard`` would refuse the layout, or share a parameter between two units; the message says which."""


@dataclass(frozen=True)
class Unit:
    """One call of ``fully_shard``: its modules by their places, and ``reshard_after_forward``."""

    modules: tuple[int, ...]
    reshard: bool | int | None = None


@dataclass(frozen=True)
class Layout:
    """Units, children before their parents and the root last, and what holds for all of them.

    ``shards`` x ``replicas`` ranks. ``forward_prefetch`` and ``backward_prefetch``: how many units are gathered ahead
    on request, 0 for what FSDP2 does by itself. ``microbatches``: backwards before an update; where
    ``synchronise_last`` the last one alone reduces gradients. ``name`` is for people.
    """

    name: str
    units: tuple[Unit, ...]
    shards: int
    replicas: int = 1
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    forward_prefetch: int = 0
    backward_prefetch: int = 0
    microbatches: int = 1
    synchronise_last: bool = True

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.shards * self.replicas

    def renamed(self, name: str) -> Layout:
        """The same under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class UnitSizes:
    """What one unit moves and holds, in bytes on one rank.

    ``gathered``: its whole parameters as they compute. ``held``: its shard as it is stored. ``kept``: its part between
    forward and backward where ``reshard_after_forward`` is a number. ``parameters`` by their places in the model.
    """

    parameters: tuple[int, ...]
    gathered: int
    held: int
    kept: int


def computed_size(parameter: TracedParameter, layout: Layout) -> int:
    """Bytes of an element as it computes: FSDP2 casts floating-point parameters alone."""
    if layout.param_dtype is None or "float" not in parameter.dtype:
        return SIZES[parameter.dtype]
    return SIZES[layout.param_dtype]


def reduced_size(parameter: TracedParameter, layout: Layout) -> int:
    """Bytes of an element of a gradient as it is reduced."""
    return SIZES[layout.reduce_dtype] if layout.reduce_dtype else computed_size(parameter, layout)


def kept_ranks(unit: Unit, layout: Layout) -> int | None:
    """Over how many ranks a unit stays sharded after its forward; None where it stays whole."""
    reshard = unit.reshard
    if reshard is None:
        reshard = unit is not layout.units[-1]
    if isinstance(reshard, bool):
        return layout.shards if reshard else None
    if not 1 <= reshard <= layout.shards or layout.shards % reshard:
        raise InvalidLayout(f"reshard_after_forward={reshard} is not a factor of {layout.shards} shards")
    return None if reshard == 1 else reshard


def managed(model: TracedModel, layout: Layout) -> list[tuple[int, ...]]:
    """The parameters of each unit.

    :raises InvalidLayout: a parameter is registered in two units, or the last unit is not the root alone.
    """
    if not layout.units or layout.units[-1].modules != (0,):
        raise InvalidLayout("the last unit must be only the root")
    owner: dict[int, int] = {}
    tops = {module for unit in layout.units for module in unit.modules}
    for number, unit in enumerate(layout.units):
        left, seen = list(unit.modules), set[int]()
        while left:
            here = left.pop()
            if here not in seen:
                seen.add(here)
                left += [child for child in model.modules[here].children if child not in tops]
        for module in seen:
            if owner.setdefault(module, number) != number:
                raise InvalidLayout(f"{model.modules[module].name or 'the root'} is in two units")
    found: list[list[int]] = [[] for _ in layout.units]
    for place, parameter in enumerate(model.parameters):
        owners = {owner[module] for module in parameter.places}
        if len(owners) > 1:
            raise InvalidLayout(f"{parameter.name} is shared by two units: make them one unit")
        found[owners.pop()].append(place)
    return [tuple(places) for places in found]


def sizes(model: TracedModel, layout: Layout) -> list[UnitSizes]:
    """What each unit moves and holds. Raises :class:`InvalidLayout` as :func:`managed` does."""
    found = []
    for unit, places in zip(layout.units, managed(model, layout), strict=True):
        own = [model.parameters[place] for place in places]
        gathered = sum(p.padded(layout.shards) * computed_size(p, layout) for p in own)
        held = sum(p.padded(layout.shards) * SIZES[p.dtype] for p in own) // layout.shards
        ranks = kept_ranks(unit, layout)
        kept = gathered // ranks if ranks not in (None, layout.shards) else 0
        found.append(UnitSizes(places, gathered, held, kept))
    return found
