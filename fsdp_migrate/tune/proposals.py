"""The layouts that are worth a look for a recorded model: how it is cut into units, and over which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.tune.sharding_layout import InvalidLayout, Layout, Unit, managed
from fsdp_migrate.tune.traced_model import SIZES, TracedModel

_CONTAINERS = ("ModuleList", "Sequential", "ModuleDict")
#: Below this a unit costs more host time than its communication takes.
SMALL = 2**20
#: Bytes up to which small units are joined.
_JOINED = 16 * SMALL


@dataclass(frozen=True)
class Proposal:
    """A layout, why one would take it, and in which order its gradients are summed; "" for that of FSDP2's default."""

    layout: Layout
    reason: str
    order: str = ""


@dataclass(frozen=True)
class Parts:
    """Places of the repeated blocks of a model, and of the largest modules that run before and after all of them."""

    blocks: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def parts(model: TracedModel) -> Parts:
    """Blocks are children of one class in a container, or three of one class anywhere; the outermost ones."""
    owners = {place for parameter in model.parameters for place in parameter.places}
    weighty = {place for place in range(len(model.modules)) if model.below(place) & owners}
    blocks: list[int] = []
    left = [0]
    while left:
        here = left.pop()
        children = [child for child in model.modules[here].children if child in weighty]
        kinds = [model.modules[child].kind for child in children]
        enough = 2 if model.modules[here].kind in _CONTAINERS else 3
        repeated = {kind for kind in kinds if kinds.count(kind) >= enough}
        blocks += [child for child, kind in zip(children, kinds, strict=True) if kind in repeated]
        left += [child for child, kind in zip(children, kinds, strict=True) if kind not in repeated]
    when = {place: number for number, place in enumerate(model.order)}
    blocks = sorted((block for block in blocks if block in when), key=when.__getitem__)
    if not blocks:
        return Parts((), (), ())
    inside = frozenset().union(*(model.below(block) for block in blocks))
    rest = [place for place in _tops(model, inside) if place in weighty and place in when]
    rest.sort(key=when.__getitem__)
    before = tuple(place for place in rest if when[place] < when[blocks[0]])
    return Parts(tuple(blocks), before, tuple(place for place in rest if when[place] > when[blocks[-1]]))


def _tops(model: TracedModel, inside: frozenset[int]) -> Iterator[int]:
    """The outermost modules that neither are nor contain blocks."""
    left = list(model.modules[0].children)
    while left:
        here = left.pop()
        if here in inside:
            continue
        if model.below(here) & inside:
            left += model.modules[here].children
        else:
            yield here


def stored(model: TracedModel, places: Iterable[int]) -> int:
    """Bytes of all parameters below some modules, as they are stored."""
    below = frozenset().union(*(model.below(place) for place in places))
    return sum(p.numel * SIZES[p.dtype] for p in model.parameters if below & set(p.places))


def proposals(model: TracedModel, now: Layout, node: int, kind: str = "FSDP2") -> list[Proposal]:
    """Layouts over the ranks and in the precision of ``now``, which comes first; no two have the same units and ranks.

    ``node``: ranks that share a node. ``kind``: what shards the program now, as :class:`Present` has it.
    """
    found = [Proposal(now, "the program's units, as FSDP2 runs them" if kind == "FSDP1" else "what the program does")]
    found += [each for shape in _shapes(now, node) for each in _cuts(model, shape, node)]
    distinct: dict[Layout, Proposal] = {}
    # FSDP1 has no such units.
    usual = _apart(model, now) if kind == "FSDP2" else frozenset()
    for each in found:
        try:
            managed(model, each.layout)
        except InvalidLayout:
            # Parameters that parts share: fully_shard would refuse it.
            continue
        order = each.order
        if others := usual ^ _apart(model, each.layout):
            name = model.modules[min(others)].name
            order = order or f"sums gradients around {name} in a different order, since other modules use its input too"
        distinct.setdefault(each.layout.renamed(""), replace(each, order=order))
    return list(distinct.values())


def _apart(model: TracedModel, layout: Layout) -> frozenset[int]:
    """Units that add up the gradients of an input inside before those of its other uses."""
    when = {place: number for number, place in enumerate(model.order)}
    return model.parted & {min(unit.modules, key=lambda m: when.get(m, len(when))) for unit in layout.units[:-1]}


def _shapes(now: Layout, node: int) -> Iterator[tuple[Layout, str]]:
    """``now`` without units on each mesh, and how the mesh sums gradients."""
    ranks = now.ranks
    bare = replace(now, units=(), forward_prefetch=0, backward_prefetch=0)
    order = "" if ranks <= 2 else "sums gradients over shards, then over replicas"
    yield replace(bare, shards=ranks, replicas=1), "" if now.replicas == 1 else "sums gradients over all ranks at once"
    sizes = [size for size in (node, node // 2, node // 4) if 1 < size < ranks and ranks % size == 0]
    for size in sizes or [size for size in (ranks // 2,) if size > 1 and ranks % size == 0]:
        same = (now.shards, now.replicas) == (size, ranks // size)
        yield replace(bare, shards=size, replicas=ranks // size), "" if same else order
    if ranks > 1:
        yield replace(bare, shards=1, replicas=ranks), "" if now.shards == 1 else order


def _cuts(model: TracedModel, shape: tuple[Layout, str], node: int) -> Iterator[Proposal]:
    bare, order = shape
    root = Unit((0,))
    mesh = "" if bare.replicas == 1 else f", {bare.replicas} x {bare.shards} ranks"
    why = "" if bare.replicas == 1 else f"; {bare.replicas} replicas of {bare.shards} shards"

    def proposal(name: str, units: tuple[Unit, ...], reason: str, ahead: int = 0) -> Proposal:
        layout = replace(bare, name=f"{name}{mesh}", units=(*units, root), forward_prefetch=ahead)
        if ahead:
            layout = replace(layout, backward_prefetch=ahead)
        return Proposal(layout, f"{reason}{why}", order)

    yield proposal("one unit", (), "fewest collectives, all parameters gathered at once")
    found = parts(model)
    if not found.blocks:
        return
    blocks = tuple(Unit((block,)) for block in found.blocks)
    last = (*blocks[:-1], Unit(blocks[-1].modules, False))
    whole = tuple(Unit(block.modules, False) for block in blocks)
    front = tuple(Unit((place,)) for place in found.before if stored(model, (place,)) >= SMALL)
    ends = (*front, *([Unit(found.after, False)] if found.after else []))
    yield proposal("blocks", blocks, "a unit for each block, the rest with the root")
    yield proposal("last block whole", last, "the last block is not gathered a second time")
    if ends:
        yield proposal("blocks, ends apart", (*blocks, *ends), "the root keeps less in memory while the blocks run")
        yield proposal("last block whole, ends apart", (*last, *ends), "both of these")
    yield proposal("whole after forward", whole, "no second gathers, all parameters gathered at the end of the forward")
    if bare.replicas == 1 and node < bare.shards and bare.shards % node == 0:
        within = tuple(Unit(block.modules, node) for block in blocks)
        yield proposal(f"kept over {node}", within, "second gathers inside a node, for the memory of one more shard")
    pieces = [tuple(_pieces(model, block)) for block in found.blocks]
    if bare.shards > 1 and max(map(len, pieces)) > 1:
        *early, end = pieces
        before = tuple(unit for each in early for unit in each)
        least = "less is gathered at a time, with more collectives"
        yield proposal("blocks in parts", (*before, *end), least)
        kept = tuple(Unit(unit.modules, False) for unit in end)
        yield proposal("blocks in parts, last whole", (*before, *kept), f"{least}, without second gathers of the last")
    joined = tuple(_joined(model, found.blocks))
    if len(joined) < len(blocks):
        yield proposal("joined blocks", joined, "fewer and larger collectives")
    if bare.shards > 1:
        yield proposal("two ahead", blocks, "hides longer gathers, at the cost of two more gathered units", 2)


def _pieces(model: TracedModel, block: int) -> Iterator[Unit]:
    """What runs inside of a block, in that order and as many together as hold half of it; then the rest of it.

    What is small remains with the rest, above all norms: they often share their input with a residual, so that units
    that begin there change the order of sums.
    """
    when = {place: number for number, place in enumerate(model.order)}
    inside: list[int] = []
    left, size = list(model.modules[block].children), stored(model, (block,))
    while left:
        here = left.pop()
        if here not in when:
            left += model.modules[here].children
        elif stored(model, (here,)) >= max(1, size // 16):
            inside.append(here)
    if len(inside) > 1:
        yield from map(Unit, _together(model, sorted(inside, key=when.__getitem__), size // 2, 8))
    own = model.below(block).difference(*(model.below(place) for place in inside))
    if len(inside) < 2 or any(own & set(parameter.places) for parameter in model.parameters):
        yield Unit((block,))


def _joined(model: TracedModel, blocks: tuple[int, ...]) -> Iterator[Unit]:
    """Neighbours together: small ones up to :data:`_JOINED`, larger ones by two."""
    limit = max(_JOINED, 2 * max(stored(model, (block,)) for block in blocks))
    yield from map(Unit, _together(model, blocks, limit, 8))


def _together(model: TracedModel, places: Sequence[int], limit: int, most: int) -> Iterator[tuple[int, ...]]:
    """Neighbours, as long as they hold no more bytes than ``limit`` and are no more than ``most``."""
    group: list[int] = []
    for place in places:
        if group and (stored(model, (*group, place)) > limit or len(group) == most):
            yield tuple(group)
            group = []
        group.append(place)
    yield tuple(group)
