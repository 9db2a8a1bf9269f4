"""Parameters under their own names and with their shapes, out of the flat parameters of LOCAL_STATE_DICT.

Where a parameter lies in its flat parameter is told

- by the files of ranks that were saved with ``use_orig_params=True``: its slices lie in the bytes of the flat parameter
  (:mod:`slices`). Only its shape has to come from a template, of any kind, or from an optimizer in the checkpoint.
- else by the names, shapes and order of an ordered template, whose total has to be that of the flat parameter
  (:mod:`told`). A template without an order is enough where a unit has one parameter.

Either way what is found has to be a layout that FSDP1 makes (:mod:`layout`), for every unit; nothing is guessed, and
what does not fit is refused, as what tensor parallelism has split does not. Parameters are assumed to be contiguous;
where the template says otherwise they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.flat import from_template as told
from fsdp_migrate.checkpoints.convert.flat import layout, slices
from fsdp_migrate.checkpoints.convert.flat.layout import Member
from fsdp_migrate.checkpoints.convert.flat.template import ADVICE, Template, contiguous, template_of_optimizer
from fsdp_migrate.checkpoints.convert.flat.units import Unit, around, members
from fsdp_migrate.checkpoints.convert.keys.names import DDP, clean
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import Entries, Key, TensorEntry, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import Kind


def unflattened(checkpoint: Checkpoint, state: State, template: Template | None) -> State:
    """The state with every parameter whole in place of flat parameters and slices of it; all else stays as it is.

    ``state`` has the keys of ``checkpoint``. Without flat parameters in it the state comes back as it is. Raises
    :class:`CannotConvert` where the positions, the shapes or the order of parameters are not told, or do not fit.
    """
    for root in dict.fromkeys(key[:-1] for key in traits.flat_parameters(state.entries)):
        state = _Model(checkpoint, root, template).put_into(state)
    return state


class _Model:
    """One model of a checkpoint, whose keys are ``root`` and a name."""

    def __init__(self, checkpoint: Checkpoint, root: Key, template: Template | None) -> None:
        of_optimizer = template_of_optimizer(checkpoint)
        self._checkpoint = checkpoint
        self._path = checkpoint.path
        self._root = root
        self._template = template or of_optimizer
        self._where = self._template.where if self._template is not None else "a template"
        self._shapes = _shapes(self._template, of_optimizer)
        own = {key: entry for key, entry in tensors(checkpoint.entries) if key[:-1] == root and key}
        flats = traits.flat_parameters(dict(own))
        self._ddp = DDP if all(clean(str(key[-1])).startswith(DDP) for key in own) else ""
        self._names = {key: self._name(key) for key in own if key not in flats}
        self._beside = {name: own[key] for key, name in self._names.items()}
        self._units = [Unit(self._name(key).rpartition(".")[0], key, own[key]) for key in flats]
        self._placed: dict[str, tuple[Unit, int]] = {}
        self._notes: list[str] = []

    def put_into(self, state: State) -> State:
        """``state`` with the parameters of this model."""
        self._place()
        self._check_rest()
        units = {unit.key: unit for unit in self._units}
        entries: Entries = {}
        for key, entry in state.entries.items():
            if key in units:
                entries |= self._only_in(units[key])
            else:
                name = self._names.get(key)
                entries[key] = self._taken(name) if name is not None and name in self._placed else entry
        many = f"{len(self._units)} flat parameter{'s' * (len(self._units) > 1)}"
        told_by = f"names and shapes from {self._where}"
        note = f"split {len(self._placed)} parameters out of {many}, {told_by}"
        return replace(state, entries=entries).noting(note, *self._notes)

    def _place(self) -> None:
        prefixes = [unit.prefix for unit in self._units]
        for unit in self._units:
            if prefixes.count(unit.prefix) > 1:
                raise CannotConvert(
                    f"{self._path}: the module of {unit.name} has several flat parameters; torch's FSDP never "
                    "writes that"
                )
            if gap := traits.missing(unit.flat):
                raise CannotConvert(f"{self._path}: {gap} of the {unit.flat.numel} elements of {unit.name} are missing")
        seen = slices.places(self._checkpoint.ranks, [unit.key for unit in self._units])
        silent = []
        for unit in self._units:
            own = {name: seen[key] for key, name in self._names.items() if key in seen and seen[key].flat == unit.key}
            if own:
                self._place_seen(unit, own)
            else:
                silent.append(unit)
        if silent:
            self._place_told(silent)

    def _place_seen(self, unit: Unit, places: Mapping[str, slices.Place]) -> None:
        together: dict[slices.Place, list[str]] = {}
        for name, place in places.items():
            together.setdefault(place, []).append(name)
        found = [Member(names[0], place.count) for place, names in sorted(together.items())]
        starts = {names[0]: place.start for place, names in together.items()}
        count = layout.shard_count(unit.flat)
        if not layout.is_one(starts, found, unit.flat.numel, count, unit.flat.dtype):
            raise CannotConvert(
                f"{self._path}: {unit.name} has {unit.flat.numel} elements, but the slices next to it have "
                f"{sum(member.numel for member in found)}, and FSDP1 leaves no such gaps: slices are "
                "missing, or have another name"
            )
        for place, names in together.items():
            self._share_shape(unit, names, place.count)
            self._placed |= dict.fromkeys(names, (unit, place.start))

    def _share_shape(self, unit: Unit, names: list[str], count: int) -> None:
        """See to it that all names of one parameter have its shape, and that it fits."""
        known = next((self._shapes[name] for name in names if name in self._shapes), None)
        if known is None:
            raise CannotConvert(
                f"{self._path}: {names[0]} has {count} elements in {unit.name}, but its shape is not in "
                f"{self._where}; pass a template that contains it. {ADVICE}"
            )
        for name in names:
            if math.prod(self._shapes.setdefault(name, known)) != count:
                raise CannotConvert(
                    f"{self._path}: {name} has {count} elements in {unit.name} and the shape {self._shapes[name]} in "
                    f"{self._where}, which belongs to another model"
                )

    def _place_told(self, units: list[Unit]) -> None:
        template = self._template
        if template is None:
            raise CannotConvert(
                f"{self._path}: {units[0].name} does not contain the names, shapes and order of its "
                f"parameters; pass a template. {ADVICE}"
            )
        inside = members([unit.prefix for unit in self._units], template)
        # With use_orig_params=True all parameters of a flat parameter lie beside it too, as slices; else none does.
        names = [name for unit in units for name in inside[unit.prefix]]
        are_slices = all(name in self._beside for name in names) or any(self._is_cut(name, template) for name in names)
        if are_slices:
            self._refuse_unknown(units, template)
        for unit in units:
            own = [
                self._member(name, template) for name in inside[unit.prefix] if self._may_be_in(unit, name, are_slices)
            ]
            solution = told.solved(self._path, unit, own, template)
            self._notes += solution.notes
            starts = dict(solution.starts)
            starts |= {name: starts[first] for name, first in solution.ties.items() if first in starts}
            self._placed |= {name: (unit, start) for name, start in starts.items() if self._home(name) == unit.prefix}

    def _may_be_in(self, unit: Unit, name: str, are_slices: bool) -> bool:
        beside = self._beside.get(name)
        if beside is None or not are_slices:
            return beside is None
        return len(beside.shape) == 1 and beside.dtype == unit.flat.dtype and beside.kind == "plain"

    def _member(self, name: str, template: Template) -> Member:
        beside = self._beside.get(name)
        numel = math.prod(template.shapes[name])
        if beside is None:
            return Member(name, numel)
        return Member(name, numel, self._is_cut(name, template), beside.numel)

    def _is_cut(self, name: str, template: Template) -> bool:
        """Whether what is beside is a slice; buffers are whole, and so are parameters that FSDP was told to ignore."""
        beside = self._beside.get(name)
        return beside is not None and len(beside.shape) == 1 and beside.shape != template.shapes[name]

    def _home(self, name: str) -> str | None:
        return around((unit.prefix for unit in self._units), name)

    def _refuse_unknown(self, units: list[Unit], template: Template) -> None:
        by_prefix = {unit.prefix: unit for unit in units}
        of_ranks = self._checkpoint.found.kind is Kind.RANKS
        for key, name in self._names.items():
            unit = by_prefix.get(self._home(name) or "")
            known = name in template.shapes or name in template.buffers
            if known or unit is None or (of_ranks and key not in self._checkpoint.rankwise):
                continue
            if self._may_be_in(unit, name, are_slices=True):
                raise CannotConvert(
                    f"{self._path}: {name} is not in {template.where}. It may be a buffer, or one rank's "
                    f"slice of a parameter with another name: pass a template that contains it. {ADVICE}"
                )

    def _check_rest(self) -> None:
        for name, entry in self._beside.items():
            shape = self._shapes.get(name)
            if name not in self._placed and shape is not None and shape != entry.shape:
                raise CannotConvert(
                    f"{self._path}: {name} has the shape {entry.shape} here, {shape} in {self._where}, and no flat "
                    f"parameter contains it: it is a slice at an unknown offset, or belongs to another model"
                )
        if self._template is not None:
            self._notes += contiguous(self._template, self._placed)

    def _only_in(self, unit: Unit) -> Entries:
        """The parameters that have no entry beside the flat parameter."""
        return {
            (*self._root, self._ddp + name): self._taken(name)
            for name, (home, _) in self._placed.items()
            if home is unit and name not in self._beside
        }

    def _taken(self, name: str) -> TensorEntry:
        unit, start = self._placed[name]
        return layout.taken(unit.flat, start, self._shapes[name], name)

    def _name(self, key: Key) -> str:
        return clean(str(key[-1])).removeprefix(self._ddp)


def _shapes(template: Template | None, of_optimizer: Template | None) -> dict[str, tuple[int, ...]]:
    """What is known of shapes. Raises :class:`CannotConvert` where template and optimizer tell different ones."""
    shapes = dict(template.shapes) if template is not None else {}
    for name, shape, where in _named(of_optimizer):
        if shapes.setdefault(name, shape) != shape and template is not None:
            raise CannotConvert(f"{name} has the shape {shapes[name]} in {template.where} and {shape} in {where}")
    return shapes


def _named(template: Template | None) -> Iterator[tuple[str, tuple[int, ...], str]]:
    if template is not None:
        for name, shape in template.shapes.items():
            yield name, shape, template.where
