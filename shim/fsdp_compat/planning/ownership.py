"""Which unit manages which parameter, and which parameters several units would share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.units import Place, parameter_at

Chain: TypeAlias = tuple[nn.Module, ...]


@dataclass(frozen=True, eq=False)
class Tie:
    """One parameter that several units reach; ``owner`` is the innermost unit around all of its places.

    ``inner_units`` are those that must leave it alone. ``owner_sees_it`` is whether a place of it lies in ``owner``
    outside every nested unit, so that ``fully_shard(owner)`` finds it by itself.
    """

    owner: nn.Module
    owner_fqn: str
    places: tuple[Place, ...]
    fqns: tuple[str, ...]
    inner_units: frozenset[nn.Module]
    owner_sees_it: bool


@dataclass(frozen=True, eq=False)
class Ownership:
    """``places`` of each unit (the root included), ``fqns`` of all parameters not ignored.

    ``ties`` are the parameters that cross units. On the meta device each module has its own: FSDP1 makes it one.
    """

    places: dict[nn.Module, tuple[Place, ...]]
    ties: tuple[Tie, ...]
    ignored: tuple[Place, ...]
    fqns: dict[nn.Parameter, str]

    @staticmethod
    def of(root: nn.Module, units: Collection[nn.Module], ignored_params: set[nn.Parameter]) -> Ownership:
        """Survey ``root``, whose ``units`` (without the root) will be sharded; sharded modules are not entered."""
        sightings: dict[tuple[nn.Parameter, nn.Module | None], list[tuple[Place, str, Chain]]] = {}
        ignored: dict[Place, None] = {}
        names: dict[nn.Module, str] = {}
        for module, fqn, chain in _walk(root, "", (root,), units):
            names.setdefault(module, fqn)
            for name, param in module.named_parameters(recurse=False, remove_duplicate=False):
                if param in ignored_params:
                    ignored[module, name] = None
                else:
                    full_name = f"{fqn}.{name}" if fqn else name
                    key = param, module if param.is_meta else None
                    sightings.setdefault(key, []).append(((module, name), full_name, chain))
        places: dict[nn.Module, dict[Place, None]] = {unit: {} for unit in (*units, root)}
        ties = []
        for seen in sightings.values():
            nearest = {chain[-1] for _, _, chain in seen}
            owner = _common_prefix([chain for _, _, chain in seen])[-1] if len(nearest) > 1 else seen[0][2][-1]
            places[owner].update((place, None) for place, _, _ in seen)
            if len(nearest) > 1:
                ties.append(
                    Tie(
                        owner=owner,
                        owner_fqn=names[owner],
                        places=_places(seen),
                        fqns=tuple(fqn for _, fqn, _ in seen),
                        inner_units=frozenset(nearest - {owner}),
                        owner_sees_it=owner in nearest,
                    )
                )
        return Ownership(
            places={unit: tuple(found) for unit, found in places.items()},
            ties=tuple(ties),
            ignored=tuple(ignored),
            fqns={param: seen[0][1] for (param, _), seen in reversed(sightings.items())},
        )

    def numel(self, unit: nn.Module) -> int:
        return sum(param.numel() for param in {parameter_at(place) for place in self.places[unit]})


def _places(sightings: list[tuple[Place, str, Chain]]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(place for place, _, _ in sightings))


def _walk(
    module: nn.Module, fqn: str, chain: Chain, units: Collection[nn.Module]
) -> Iterator[tuple[nn.Module, str, Chain]]:
    yield module, fqn, chain
    for name, child in module._modules.items():
        if child is None or isinstance(child, FSDPModule):
            continue
        child_chain = (*chain, child) if child in units else chain
        yield from _walk(child, f"{fqn}.{name}" if fqn else name, child_chain, units)


def _common_prefix(chains: list[Chain]) -> Chain:
    shortest = min(chains, key=len)
    for depth, module in enumerate(shortest):
        if any(chain[depth] is not module for chain in chains):
            return shortest[:depth]
    return shortest
