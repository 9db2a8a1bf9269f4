"""Optimizer states of whole parameters, out of the slices that ranks of FSDP1 saved each for itself.

With ``use_orig_params=True`` they are slices of parameters, in the order of ranks, without padding. With False they are
parts of flat parameters, all of one size, the last ones padded. Ranks that repeat others bit for bit, as the replicas
of HYBRID_SHARD do, are left out where the parameters are whole without them and not with them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.flat import layout, units
from fsdp_migrate.checkpoints.convert.flat.from_template import WHY_ORDER
from fsdp_migrate.checkpoints.convert.flat.template import ADVICE, Template, contiguous
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import Bytes, Chunk, Entries, Key, Runs, TensorEntry, ValueEntry, spelled, tensors
from fsdp_migrate.checkpoints.read import elements

#: What numpy calls as torch does.
_NUMBERS = frozenset({"float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8"})
_MOST_SHOWN = 40


@dataclass(frozen=True)
class Named:
    """States under names, and for each name of the groups those of the parameters that it stands for.

    ``left_out``: what ranks have of parameters of which they have no element.
    """

    entries: Entries
    members: Mapping[str, Sequence[str]]
    notes: Sequence[str] = field(default=())
    left_out: Sequence[TensorEntry | ValueEntry] = field(default=())


@dataclass(frozen=True)
class Ranks:
    """The states of one optimizer on all ranks: ``states[rank][name][("exp_avg",)]``.

    ``names`` are those of all groups, in their order.
    """

    path: Path
    prefix: Key
    names: Sequence[str]
    states: Mapping[int, Mapping[str, Entries]]
    template: Template

    def named(self) -> Named:
        """The states of whole parameters. Raises :class:`CannotConvert` where they do not become whole."""
        ranks = sorted(self.states)
        once = self._once()
        try:
            return self._put_together(ranks)
        except CannotConvert:
            if len(once) == len(ranks):
                raise
            try:
                found = self._put_together(once)
            except CannotConvert:
                found = None
            if found is None:
                raise
        left = ", ".join(str(rank) for rank in ranks if rank not in once)
        note = f"left out ranks {left}: they repeat others, as HYBRID_SHARD replicas do"
        return replace(found, notes=(*found.notes, note))

    def _once(self) -> list[int]:
        """The first of the ranks with equal states, where all are there equally often; else all ranks."""
        alike: dict[object, list[int]] = {}
        for rank, states in sorted(self.states.items()):
            content = tuple(
                (name, key, _content(entry)) for name in sorted(states) for key, entry in states[name].items()
            )
            alike.setdefault(content, []).append(rank)
        often = {len(ranks) for ranks in alike.values()}
        return [ranks[0] for ranks in alike.values()] if len(often) == 1 else sorted(self.states)

    def _put_together(self, ranks: Sequence[int]) -> Named:
        flats = [name for name in self.names if traits.is_flat(name)]
        prefixes = [name.rpartition(".")[0] for name in flats]
        inside = units.members(prefixes, self.template)
        entries: Entries = {}
        members: dict[str, list[str]] = {}
        cut: list[str] = []
        left_out: list[TensorEntry | ValueEntry] = []
        for name in self.names:
            held = [self.states[rank][name] for rank in ranks if name in self.states[rank]]
            members[name] = [name]
            if name in flats:
                members[name] = self._inside(name, inside[name.rpartition(".")[0]])
                cut += members[name]
                entries |= self._unflattened(name, members[name], held, len(ranks))
            else:
                # A rank without elements of the parameter makes no step with it; what it has was loaded once.
                full = [states for states in held if not _is_empty(states)] or held
                left_out += [entry for states in held if states not in full for entry in states.values()]
                joined = self._joined(name, full)
                cut += [name] * any(isinstance(chunk.where, Runs) for chunk in _chunks(joined))
                entries |= joined
        # What one rank alone has of a parameter that it holds whole is not that rank's own any more.
        entries = {key: replace(entry) for key, entry in entries.items()}
        return Named(entries, members, contiguous(self.template, cut), left_out)

    def _joined(self, name: str, held: Sequence[Entries]) -> Entries:
        """The states of a parameter of its own."""
        found: Entries = {}
        for inner, parts in self._states_of(name, held).items():
            shape = self._shape(name)
            if not _has_elements(parts[0]) or inner in self._of_their_own_shape:
                found[self._key(name, inner)] = self._agreed(name, inner, parts)
                continue
            slices = [part for part in parts if isinstance(part, TensorEntry)]
            if all(part.shape == shape for part in slices):
                found[self._key(name, inner)] = self._agreed(name, inner, parts)
                continue
            count = sum(part.numel for part in slices)
            if any(len(part.shape) != 1 for part in slices) or count != math.prod(shape):
                raise CannotConvert(
                    f"{self.path}: {spelled(inner)} of {name} has {count} elements on all ranks together, and {name} "
                    f"has {math.prod(shape)} in {self.template.where}: the groups belong to another order or model, "
                    f"or the files of some ranks are missing"
                )
            found[self._key(name, inner)] = layout.taken(layout.end_to_end(slices), 0, shape, name)
        return found

    def _unflattened(self, flat: str, members: Sequence[str], held: Sequence[Entries], ranks: int) -> Entries:
        """The states of the parameters in a flat parameter."""
        found: Entries = {}
        for inner, parts in self._states_of(flat, held).items():
            if not _has_elements(parts[0]) or inner in self._of_their_own_shape:
                agreed = self._agreed(flat, inner, parts)
                found |= {self._key(name, inner): agreed for name in members}
                continue
            shards = [part for part in parts if isinstance(part, TensorEntry)]
            self._check_shards(flat, inner, members, shards, ranks)
            whole, start = layout.end_to_end(shards), 0
            for name in members:
                shape = self._shape(name)
                found[self._key(name, inner)] = layout.taken(whole, start, shape, name)
                start += math.prod(shape)
        # One parameter after the other, as for those that lie in no flat parameter.
        order = {self._key(name, ()): place for place, name in enumerate(members)}
        return dict(sorted(found.items(), key=lambda pair: order[pair[0][: len(self.prefix) + 2]]))

    @functools.cached_property
    def _of_their_own_shape(self) -> frozenset[Key]:
        """The states that have one shape for every parameter, where others have as many elements as it has."""
        shapes: dict[Key, set[tuple[int, ...]]] = {}
        for states in self.states.values():
            for entries in states.values():
                for inner, entry in tensors(entries):
                    shapes.setdefault(inner, set()).update([entry.shape] if entry.shape else [])
        varies = any(len(of) > 1 for of in shapes.values())
        return frozenset(inner for inner, of in shapes.items() if len(of) == 1 and varies)

    def _inside(self, flat: str, names: list[str]) -> list[str]:
        if len(names) > 1 and not self.template.ordered:
            raise CannotConvert(
                f"{self.path}: {flat} has {len(names)} parameters, and {self.template.where} does not contain "
                f"their order; {WHY_ORDER}. {ADVICE}"
            )
        return names

    def _check_shards(
        self, flat: str, inner: Key, members: Sequence[str], shards: Sequence[TensorEntry], ranks: int
    ) -> None:
        numels = [math.prod(self._shape(name)) for name in members]
        total, sizes = sum(numels), {shard.shape for shard in shards}
        size = shards[0].numel
        what = f"{self.path}: {spelled(inner)} of {flat}"
        if len(sizes) > 1 or len(shards[0].shape) != 1 or len(shards) != ranks:
            raise CannotConvert(
                f"{what} has different sizes on different ranks: {sorted(sizes)} on {len(shards)} of {ranks}"
            )
        if -(-total // ranks) != size:
            raise CannotConvert(
                f"{what} has {size} elements on each of {ranks} ranks, and the {len(members)} parameters that "
                f"{self.template.where} has for it take {total}, {-(-total // ranks)} on each: it is of "
                "another model, or contains buffers, tied or ignored parameters, which do not count; remove "
                f"them from the template. {ADVICE}"
            )
        vectors = [numel for numel, name in zip(numels, members, strict=True) if len(self._shape(name)) == 1]
        fewer = total - min(vectors, default=total)
        if not self.template.parameters_only and -(-fewer // ranks) == size:
            raise CannotConvert(
                f"{what} fits all entries that {self.template.where} has for it, but also fits without some of them, "
                f"because the last rank's part is padded. These may be buffers, which the template does not mark. "
                f"{ADVICE}"
            )

    def _states_of(self, name: str, held: Sequence[Entries]) -> dict[Key, list[TensorEntry | ValueEntry]]:
        """What each state is on the ranks that have any of this parameter."""
        kinds = {tuple(sorted((spelled(key), _dtype(entry)) for key, entry in entries.items())) for entries in held}
        if len(kinds) > 1:
            raise CannotConvert(f"{self.path}: the ranks have different states of {name}")
        return {key: [entries[key] for entries in held] for key in (held[0] if held else {})}

    def _agreed(self, name: str, inner: Key, parts: Sequence[TensorEntry | ValueEntry]) -> TensorEntry | ValueEntry:
        if len({_content(part) for part in parts}) > 1 and len({_held(part) for part in parts}) > 1:
            shown = ", ".join(dict.fromkeys(map(_shown, parts)))
            counted = "a rank that did not use the parameter did not update it, and " * (spelled(inner) == "step")
            raise CannotConvert(
                f"{self.path}: {spelled(inner)} of {name} differs from rank to rank ({shown}): {counted}the state of a "
                "whole parameter has one value"
            )
        return parts[0]

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.template.shapes.get(name)
        if shape is None:
            raise CannotConvert(
                f"{self.template.where}: does not contain {name}, which has states in {self.path}. {ADVICE}"
            )
        return shape

    def _key(self, name: str, inner: Key) -> Key:
        return (*self.prefix, "state", name, *inner)


def _has_elements(entry: TensorEntry | ValueEntry) -> bool:
    return isinstance(entry, TensorEntry) and bool(entry.shape)


def _is_empty(states: Entries) -> bool:
    """Whether no state in ``states`` that has a dimension has an element."""
    sizes = [entry.numel for _, entry in tensors(states) if entry.shape]
    return bool(sizes) and not any(sizes)


def _held(entry: TensorEntry | ValueEntry) -> object:
    """The bytes themselves, for what is compared where digests differ: they are those of all that is in a storage."""
    if isinstance(entry, ValueEntry):
        return _content(entry)
    return entry.shape, entry.dtype, elements.whole(entry).tobytes()


def _shown(entry: TensorEntry | ValueEntry) -> str:
    if isinstance(entry, ValueEntry):
        return repr(entry.value)[:_MOST_SHOWN]
    if entry.numel != 1 or entry.dtype not in _NUMBERS:
        return f"{entry.dtype} of shape {entry.shape}"
    return f"{elements.whole(entry).view(entry.dtype)[0]:g}"


def _chunks(entries: Entries) -> Iterator[Chunk]:
    for _, entry in tensors(entries):
        yield from entry.chunks


def _dtype(entry: TensorEntry | ValueEntry) -> str:
    """The dtype of a tensor with elements of several places, else nothing."""
    return entry.dtype if isinstance(entry, TensorEntry) and entry.shape else ""


def _content(entry: TensorEntry | ValueEntry) -> object:
    """What entries with the same elements, or the same value, agree in."""
    if isinstance(entry, ValueEntry):
        return type(entry.value).__name__, repr(entry.value), entry.made_by
    return entry.shape, entry.dtype, tuple(_places(entry))


def _places(entry: TensorEntry) -> Iterator[object]:
    for chunk in entry.chunks:
        known = isinstance(chunk.where, Bytes) and chunk.where.content is not None
        yield (chunk.where.strides, chunk.where.content) if known and isinstance(chunk.where, Bytes) else chunk.where
