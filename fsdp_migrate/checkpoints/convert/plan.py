"""What is to be written, decided from a checkpoint's keys and shapes before anything is."""

from __future__ import annotations

import enum
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.flat import flat
from fsdp_migrate.checkpoints.convert.flat.template import Template, read_template, template_of_optimizer
from fsdp_migrate.checkpoints.convert.keys import names, renaming, spelling, ties
from fsdp_migrate.checkpoints.convert.optimizer import adam, raw_optimizer
from fsdp_migrate.checkpoints.convert.optimizer.groups import read_groups
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, Key, TensorEntry, ValueEntry, spelled, tensors
from fsdp_migrate.checkpoints.judge.loading import root_of_model
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import LIGHTNING_FILE, Kind

_MOST_DIMENSIONS = 31
_MOST_ELEMENTS = 2**58
#: Of the keys that cannot be converted.
_MOST_NAMED = 10


class Target(str, enum.Enum):
    """What a checkpoint is converted to."""

    DCP = "dcp"
    SAFETENSORS = "safetensors"
    FULL = "full"


@dataclass(frozen=True)
class Wanted:
    """What a person asks for. ``leave_out`` are keys with dots; all under them is not written.

    ``template``: a file that tells the names and shapes of parameters, where the checkpoint does not; ``groups``: one
    that tells which parameters an optimizer was given.
    ``decoupled_weight_decay``: what to put into param groups of Adam that lack it; None to leave them as they are.
    ``names``: a file, or ``module:function``, that gives the tensors of safetensors other names.
    """

    to: Target
    template: Path | None = None
    groups: Path | None = None
    leave_out: Sequence[str] = ()
    decoupled_weight_decay: bool | None = None
    names: str | None = None


def plan(checkpoint: Checkpoint, wanted: Wanted, beside: Sequence[Checkpoint] = ()) -> State:
    """The state to write. ``beside`` are other checkpoints of the same run, whose optimizer may know names and shapes.

    Raises :class:`CannotConvert` with what is in the way.
    """
    _refuse_broken(checkpoint)
    state = _leaving_out(State(checkpoint.entries, checkpoint.sequences), wanted.leave_out)
    template = _template(checkpoint, wanted, beside)
    if traits.flat_parameters(state.entries):
        state = flat.unflattened(checkpoint, state, template)
    state = _keyed_by_name(checkpoint, state, wanted, template)
    state = adam.with_decoupled_weight_decay(names.cleaned(state), wanted.decoupled_weight_decay)
    if wanted.to is Target.SAFETENSORS:
        state = _model_alone(state)
        state = ties.once(state if wanted.names is None else renaming.renamed(state, wanted.names))
    if wanted.to is Target.DCP:
        state = spelling.as_folders_spell(state)
    _refuse_lost_moments(checkpoint, state)
    _refuse_rest(checkpoint, state, wanted.to)
    if wanted.to is not Target.FULL:
        _refuse_names_alike(state)
    if wanted.to is not Target.SAFETENSORS:
        _refuse_keys_inside(state)
    state = _noting_numbers(state)
    if any(entry.kind == "sharded" for _, entry in tensors(state.entries)):
        state = state.noting("shapes are only known from the parts: check that the files of all ranks are present")
    if any(file.name == LIGHTNING_FILE for file in checkpoint.found.files):
        state = state.noting(
            f"left out {LIGHTNING_FILE}, in which Lightning keeps epochs and settings: copy it yourself"
        )
    return state


def _refuse_broken(checkpoint: Checkpoint) -> None:
    path = checkpoint.path
    if checkpoint.dangers:
        shown = ", ".join(map(str, checkpoint.dangers[0][1][:3]))
        raise CannotConvert(f"{path}: loading it would execute {shown}; ask its author, and do not load it")
    if checkpoint.problems:
        raise CannotConvert(
            f"{checkpoint.problems[0]}: find the missing or truncated files, or use an earlier checkpoint"
        )
    if checkpoint.found.kind is Kind.PICKLE:
        raise CannotConvert(
            f"{path}: the format of torch before 1.6, or a plain pickle: load it with weights_only=True and "
            "save it again with a current torch"
        )


def is_left_out(key: str, left_out: Sequence[str]) -> bool:
    """Whether ``key`` is one of these keys, or under one."""
    return any(key == name or key.startswith(f"{name}.") for name in left_out)


def _leaving_out(state: State, left_out: Sequence[str]) -> State:
    for name in left_out:
        gone = [key for key in state.entries if is_left_out(spelled(key), (name,))]
        if not gone:
            raise CannotConvert(f"--leave-out {name}: no such key; checkpoint inspect shows all keys")
        many = f"{len(gone)} entr{'y' if len(gone) == 1 else 'ies'}"
        state = state.without(gone).noting(f"left out {name} ({many}), as requested")
    return state


def _refuse_lost_moments(checkpoint: Checkpoint, state: State) -> None:
    """Refuse states that are one tensor (FSDP407): once they are written apart nothing shows that some are lost."""
    for optimizer in traits.optimizers(state.entries):
        shared = traits.shared_moments(state.entries).items()
        lost = [(key, states) for key, states in shared if key[: len(optimizer.prefix)] == optimizer.prefix]
        if lost:
            name = spelled(optimizer.prefix)
            model = f"--leave-out {shlex.quote(name)} converts the model" if name else "there is nothing to convert"
            raise CannotConvert(
                f"{checkpoint.path}: states of {len(lost)} parameters ({spelled(lost[0][0])} first: "
                f"{', '.join(lost[0][1])}) are one tensor, as "
                "FSDP1 saves them on the CPU, and all but one are lost (FSDP407): "
                f"{model}, and the optimizer starts again"
            )


def _template(checkpoint: Checkpoint, wanted: Wanted, beside: Sequence[Checkpoint]) -> Template | None:
    """What was asked for, or what the one optimizer keyed by name beside it tells; its own is looked at anyway."""
    if wanted.template is not None:
        return read_template(wanted.template)
    if template_of_optimizer(checkpoint) is not None:
        return None
    whole = [one for one in beside if not one.problems and not one.dangers]
    found = [template for one in whole if (template := template_of_optimizer(one)) is not None]
    return found[0] if len(found) == 1 else None


def _keyed_by_name(checkpoint: Checkpoint, state: State, wanted: Wanted, template: Template | None) -> State:
    if not any(optimizer.keyed_by == "id" for optimizer in traits.optimizers(state.entries)):
        return state
    if wanted.to is Target.SAFETENSORS and root_of_model(state.entries) is not None:
        return state
    told = read_groups(wanted.groups) if wanted.groups is not None else None
    return raw_optimizer.keyed_by_name(checkpoint, state, told, template)


def _noting_numbers(state: State) -> State:
    """An optimizer without states, such as plain SGD's, has groups alone; numbers in them mix up no states."""
    starts = {key[: key.index("param_groups")] for key in state.entries if "param_groups" in key[:-3]}
    by_name = {optimizer.prefix for optimizer in traits.optimizers(state.entries)}
    for start in sorted(starts - by_name, key=spelled):
        inside = [key for key in state.entries if key[: len(start) + 1] == (*start, "param_groups")]
        if any(key[-2] == "params" and isinstance(_value(state.entries[key]), int) for key in inside):
            name = spelled(start) or "it"
            state = state.noting(
                f"{name} has no states and numbers its parameters: load it with optimizer.load_state_dict"
            )
    return state


def _refuse_names_alike(state: State) -> None:
    """Refuse ``{"a": {"b": ...}, "a.b": ...}`` for a target that joins keys with dots: one would replace the other."""
    found: dict[str, Key] = {}
    # A list without tensors is one value there.
    for key in (*state.entries, *state.sequences):
        other = found.setdefault(spelled(key), key)
        if other != key:
            raise CannotConvert(
                f"{spelled(key)} occurs twice, as {list(other)} and as {list(key)}, and this format joins keys with "
                f"dots: use --to full, or rename one in the program that saves it"
            )


def _refuse_keys_inside(state: State) -> None:
    """Refuse ``("a",)`` beside ``("a", "b")``, which metadata may say and no dictionary can hold."""
    for key in state.entries:
        for end in range(len(key)):
            if key[:end] in state.entries:
                outer = spelled(key[:end]) or "the whole file"
                raise CannotConvert(f"{outer} is an entry and also contains {spelled(key)}: --leave-out {spelled(key)}")


def _value(entry: TensorEntry | ValueEntry) -> object:
    return entry.value if isinstance(entry, ValueEntry) else None


def _model_alone(state: State) -> State:
    """The model's tensors under their names; of the rest safetensors keeps nothing, which is said."""
    root = root_of_model(state.entries)
    if root is None:
        raise CannotConvert("it contains no model, and safetensors have no optimizer: use --to dcp or --to full")
    _refuse_other_models(state, root)
    kept = {
        key
        for key, entry in state.entries.items()
        if isinstance(entry, TensorEntry) and len(key) == len(root) + 1 and key[: len(root)] == root
    }
    rest = sorted({spelled(key[: _differs_at(key, root)]) for key in state.entries if key not in kept})
    model = state.without([key for key in state.entries if key not in kept]).renamed(
        lambda key: key[len(root) :] or key
    )
    model = replace(model, sequences={})
    if not rest:
        return model
    shown = ", ".join(rest[:5]) + (", …" if len(rest) > 5 else "")
    return model.noting(f"left out {shown}: safetensors keep only the tensors of a model")


def _refuse_other_models(state: State, root: Key) -> None:
    """Refuse to leave out what may be another model, or a part of this one, as if it were an epoch or an optimizer."""
    optimizers = [(*optimizer.prefix, "state") for optimizer in traits.optimizers(state.entries)]
    for key, entry in state.entries.items():
        if any(key[: len(start)] == start for start in optimizers):
            continue
        if isinstance(entry, ValueEntry) and "._rebuild_" in entry.made_by and key[:-1] == root:
            raise CannotConvert(
                f"{spelled(key)} is a tensor type that safetensors do not support ({entry.made_by}): "
                f"--leave-out {spelled(key)}"
            )
        if isinstance(entry, TensorEntry) and key[:-1] != root and "float" in entry.dtype and len(entry.shape) > 1:
            other = spelled(key[: _differs_at(key, root)])
            raise CannotConvert(
                f"{spelled(key)} looks like a second model next to the one under {spelled(root) or 'the root'}, and "
                f"safetensors can store only one: --leave-out {other}"
                + (f", or --leave-out {spelled(root)}" if root else "")
            )


def _differs_at(key: Key, root: Key) -> int:
    place = next((place for place, (one, other) in enumerate(zip(key, root, strict=False)) if one != other), len(root))
    return place + 1


def _is_beyond_arrays(shape: tuple[int, ...]) -> bool:
    """Whether numpy has no array of this shape; sizes of 0 do not make the others smaller."""
    return len(shape) > _MOST_DIMENSIONS or math.prod(max(size, 1) for size in shape) >= _MOST_ELEMENTS


def _is_passed_on(entry: TensorEntry, to: Target) -> bool:
    """Whether a tensor of an unknown dtype is written byte for byte: parts of it can neither be joined nor compared."""
    is_one = len(entry.chunks) == 1 and not entry.replicas
    return entry.stored is not None and is_one and to is Target.SAFETENSORS


def _refuse_rest(checkpoint: Checkpoint, state: State, to: Target) -> None:
    found: dict[str, str] = {}
    for name, why in _unconvertible(checkpoint, state, to):
        found.setdefault(name, why)
    if found:
        shown = list(found.items())[:_MOST_NAMED]
        options = " ".join(f"--leave-out {shlex.quote(name)}" for name, _ in shown)
        reasons = [f"{name} {why}" for name, why in shown]
        if len(found) == 1:
            raise CannotConvert(f"{checkpoint.path}: {reasons[0]}: {options}")
        more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        listed = "\n  ".join((f"{checkpoint.path}: {len(found)} keys cannot be converted:", *reasons, *more))
        raise CannotConvert(f"{listed}\n{options}")
    if not any(True for _ in tensors(state.entries)):
        raise CannotConvert(f"{checkpoint.path}: no tensor is left to write")


def _unconvertible(checkpoint: Checkpoint, state: State, to: Target) -> Iterator[tuple[str, str]]:
    """The keys that the target has no place for, as the source names them, each with what is said of it."""
    # Entries keep who they are under all renaming, and --leave-out takes the names of the source.
    before = {id(entry): key for key, entry in checkpoint.entries.items()}
    for key, entry in state.entries.items():
        name = spelled(before.get(id(entry), key))
        if isinstance(entry, ValueEntry) and (entry.made_by or entry.where is not None):
            what = entry.made_by or "a value in a separate file that could not be read"
            if not before.get(id(entry), key):
                raise CannotConvert(f"{checkpoint.path}: it is only {what} and contains no tensors to convert")
            yield name, f"is {what}, which only running code can create"
        if isinstance(entry, TensorEntry) and entry.dtype not in ITEM_SIZES and not _is_passed_on(entry, to):
            yield name, f"is {entry.dtype}, whose size this version does not know"
        if isinstance(entry, TensorEntry) and _is_beyond_arrays(entry.shape):
            elements = math.prod(entry.shape)
            yield name, f"has {len(entry.shape)} dimensions of {elements} elements, more than an array can have"
    left = {id(entry) for entry in state.entries.values()}
    for key, what in checkpoint.lost.items():
        under = [place for place in checkpoint.entries if place[: len(key)] == key]
        if any(id(checkpoint.entries[place]) in left for place in under):
            yield spelled(key), f"cannot be converted: {what}"
    for key in checkpoint.rankwise:
        if id(checkpoint.entries[key]) in left:
            yield spelled(key), "is not sharded but differs from rank to rank"
