"""Optimizers keyed by parameters' names, out of ``optimizer.state_dict()``, which keys them by number.

Which parameter a number means is told by the groups that the optimizer was given (:mod:`groups`), and where the program
gave it named parameters by ``param_names`` in the file itself. Nothing in the file tells when two names of the same
shape have changed places; all that can be compared, the numbers of groups and names and the shapes, has to agree.

States of whole parameters are given their names alone. Those that ranks of FSDP1 saved each for themselves are slices
of parameters, or of flat parameters; :mod:`raw_slices` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.flat.template import ADVICE, LIKE_THE_PARAMETER, Template
from fsdp_migrate.checkpoints.convert.optimizer import groups as of_groups
from fsdp_migrate.checkpoints.convert.optimizer.raw_slices import Named, Ranks
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import Entries, Key, ValueEntry, spelled, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import Kind


def keyed_by_name(
    checkpoint: Checkpoint, state: State, groups: Sequence[Sequence[str]] | None, template: Template | None
) -> State:
    """The state with its optimizer as ``FSDP.optim_state_dict`` has it: whole, and keyed by name.

    ``state`` has the keys of ``checkpoint``. Without an optimizer keyed by number it comes back as it is. ``groups``
    are not needed where the file has ``param_names``. ``template`` is needed for what ranks of FSDP1 saved each for
    themselves; an ordered one for flat parameters, without the parameters that FSDP was told to ignore. Raises
    :class:`CannotConvert` where it is not certain which states are whose, or where some are missing.
    """
    found = [one for one in traits.optimizers(state.entries) if one.keyed_by == "id"]
    if not found:
        return state
    if len(found) > 1:
        names = ", ".join(spelled(one.prefix) or "the whole file" for one in found)
        raise CannotConvert(
            f"{checkpoint.path}: several optimizers are keyed by number, but --groups describes only one: leave out "
            f"all but one of {names}"
        )
    return _Optimizer(checkpoint, found[0].prefix, groups, template).put_into(state)


@dataclass(frozen=True)
class _Group:
    """The numbers of a group's parameters, and their names where the file has them."""

    ids: tuple[int, ...]
    names: tuple[str, ...]


class _Optimizer:
    def __init__(
        self,
        checkpoint: Checkpoint,
        prefix: Key,
        groups: Sequence[Sequence[str]] | None,
        template: Template | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._path = checkpoint.path
        self._prefix = prefix
        self._template = template
        inside = [(*prefix, "state"), (*prefix, "param_groups")]
        self._own = {key: entry for key, entry in checkpoint.entries.items() if key[: len(prefix) + 1] in inside}
        self._groups = self._read_groups()
        self._names = self._named(groups)

    def put_into(self, state: State) -> State:
        """``state`` with this optimizer keyed by name."""
        if any(key not in state.entries for key in self._own):
            raise CannotConvert(f"{self._path}: leave out the whole optimizer, or none of it")
        named = self._whole() if self._is_whole() else self._of_ranks()
        entries: Entries = {}
        start = (*self._prefix, "state")
        for key, entry in state.entries.items():
            if key[: len(start)] == start:
                entries |= named.entries
            elif not self._is_list(key):
                entries[key] = entry
            elif key[-1] == 0 or key[-1] in ("params", "param_names"):
                entries |= self._list(key, named.members)
        count = sum(map(len, named.members.values()))
        note = (
            f"assumes the order of the groups: keyed the optimizer by {count} names, and nothing in the file "
            "confirms it"
        )
        left_out = (*state.left_out, *named.left_out)
        return replace(state, entries=entries, left_out=left_out).noting(note, *named.notes)

    def _is_list(self, key: Key) -> bool:
        match key[len(self._prefix) :]:
            case ("param_groups", int(), "params" | "param_names", *_) if key[: len(self._prefix)] == self._prefix:
                return True
        return False

    def _list(self, key: Key, members: Mapping[str, Sequence[str]]) -> Entries:
        """The names of a group, in place of the list of which ``key`` is the first, or the whole if it is empty."""
        at = len(self._prefix) + 3
        names = [one for name in self._names[int(key[at - 2])] for one in members[name]]
        if not names:
            return {key[:at]: ValueEntry([])}
        return {(*key[:at], place): ValueEntry(name) for place, name in enumerate(names)}

    def _read_groups(self) -> list[_Group]:
        start = (*self._prefix, "param_groups")
        ids: dict[int, list[int]] = {}
        names: dict[int, list[str]] = {}
        for key, entry in self._own.items():
            if key[: len(start)] != start or len(key) == len(start):
                continue
            if key in self._checkpoint.rankwise:
                raise CannotConvert(f"{self._path}: {spelled(key)} differs from rank to rank")
            value = entry.value if isinstance(entry, ValueEntry) else None
            match key[len(start) :]:
                case (int(group), "params", int()) if type(value) is int:
                    ids.setdefault(group, []).append(value)
                case (int(group), "param_names", int()) if isinstance(value, str):
                    names.setdefault(group, []).append(value)
                case (int(group), *_):
                    ids.setdefault(group, [])
        if sorted(ids) != list(range(len(ids))):
            raise CannotConvert(f"{self._path}: the optimizer's param_groups are not a list, as torch's are")
        found = [_Group(tuple(ids[group]), tuple(names.get(group, ()))) for group in sorted(ids)]
        numbers = [number for group in found for number in group.ids]
        if not numbers or len(set(numbers)) < len(numbers):
            raise CannotConvert(
                f"{self._path}: the optimizer's param_groups do not contain the numbers of each group, as "
                "those of optimizer.state_dict() do"
            )
        return found

    def _named(self, groups: Sequence[Sequence[str]] | None) -> list[list[str]]:
        """The names of each group, once they agree with what the file says about the groups."""
        own = [list(group.names) for group in self._groups]
        if any(own):
            own = of_groups.without_wrappers(own, str(self._path))
            if groups is not None and [list(group) for group in groups] != own:
                raise CannotConvert(
                    f"{self._path}: the file already names its groups (param_names), and they differ from "
                    "--groups: drop --groups"
                )
        elif groups is None:
            without = f", or continue without it (--leave-out {spelled(self._prefix)})" if self._prefix else ""
            raise CannotConvert(
                f"{self._path}: the optimizer is keyed by number, and the file does not contain its "
                f"parameters and their order; pass the groups (--groups FILE){without}. {of_groups.ADVICE}"
            )
        else:
            own = [list(group) for group in groups]
        if len(own) != len(self._groups):
            raise CannotConvert(
                f"{self._path}: the optimizer has {len(self._groups)} param groups, but --groups has "
                f"{len(own)}; {of_groups.ADVICE}"
            )
        for number, (names, group) in enumerate(zip(own, self._groups, strict=True)):
            if len(names) != len(group.ids):
                raise CannotConvert(
                    f"{self._path}: param group {number} has {len(group.ids)} parameters, but --groups has "
                    f"{len(names)} names for it ({', '.join(names[:3])}, …); {of_groups.ADVICE}"
                )
        return own

    def _ids(self) -> dict[int, str]:
        pairs = zip(self._groups, self._names, strict=True)
        return {number: name for group, names in pairs for number, name in zip(group.ids, names, strict=True)}

    def _states(self, entries: Entries) -> dict[str, Entries]:
        """Per name the states, under what they are called."""
        start, ids = (*self._prefix, "state"), self._ids()
        numbers = {str(number): number for number in ids}
        found: dict[str, Entries] = {}
        for key, entry in entries.items():
            if key[: len(start)] != start or len(key) == len(start):
                continue
            number = numbers.get(str(key[len(start)]))
            if number is None or len(key) == len(start) + 1:
                raise CannotConvert(
                    f"{self._path}: {spelled(key)} is the state of a parameter that is not in its param groups"
                )
            found.setdefault(ids[number], {})[key[len(start) + 1 :]] = entry
        return found

    def _is_whole(self) -> bool:
        if any(entry.kind != "plain" for _, entry in tensors(self._own)):
            return True
        if any(traits.is_flat(name) for names in self._names for name in names):
            return False
        if self._checkpoint.found.kind is not Kind.RANKS:
            return True
        differ = any(key in self._checkpoint.rankwise for key, _ in tensors(self._own))
        return not differ and not traits.are_slices([self._own])

    def _whole(self) -> Named:
        states = self._states(self._own)
        # One rank's slices look like this in a file alone, and in folders, which keep those of one rank.
        like_slices = traits.are_slices([self._own]) and all(one.kind == "plain" for _, one in tensors(self._own))
        if like_slices and self._template is None:
            raise CannotConvert(
                f"{self._path}: all states have one dimension, like one rank's slices under FSDP1; pass a "
                f"template to decide. {ADVICE}"
            )
        start = (*self._prefix, "state")
        for name, parts in states.items():
            self._check_shapes(name, parts, all_of_them=like_slices)
        entries = {(*start, name, *inner): entry for name, parts in states.items() for inner, entry in parts.items()}
        return Named(entries, {name: [name] for names in self._names for name in names})

    def _check_shapes(self, name: str, parts: Entries, all_of_them: bool) -> None:
        if self._template is None:
            return
        if name not in self._template.shapes:
            raise CannotConvert(f"{self._template.where}: it does not contain {name}, which the groups name")
        shape = self._template.shapes[name]
        for inner, entry in tensors(parts):
            if entry.shape and entry.shape != shape and (all_of_them or inner[-1] in LIKE_THE_PARAMETER):
                raise CannotConvert(
                    f"{self._path}: {spelled(inner)} of {name} has the shape {entry.shape}, and {name} has {shape} in "
                    f"{self._template.where}: the groups belong to another order or model, or it is one rank's slice"
                )

    def _of_ranks(self) -> Named:
        if not self._checkpoint.ranks:
            raise CannotConvert(
                f"{self._path}: these are parts of flat parameters; a folder keeps only one rank's parts, and the "
                f"rest is lost"
            )
        if self._template is None:
            raise CannotConvert(f"{self._path}: the ranks' states are slices without shapes; pass a template. {ADVICE}")
        states = {rank: self._states(file.entries) for rank, file in self._checkpoint.ranks.items()}
        names = [name for group in self._names for name in group]
        return Ranks(self._path, self._prefix, names, states, self._template).named()
