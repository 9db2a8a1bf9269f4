"""Keys and lists as torch.distributed.checkpoint keeps them, with a word about each that it keeps in another way."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import Key, spelled, tensors


def as_folders_spell(state: State) -> State:
    """The state with lists in place of tuples that hold tensors, and with text for the numbers that are keys.

    torch would write such a tuple as one pickle. Raises :class:`CannotConvert` where a dictionary has a number and the
    same number as text for keys.
    """
    return _with_text(_with_lists(state))


def _with_lists(state: State) -> State:
    holding = {key[:place] for key, _ in tensors(state.entries) for place in range(len(key))}
    tuples = [key for key, kind in state.sequences.items() if kind is tuple and key in holding and key]
    if not tuples:
        return state
    lists = dict.fromkeys(tuples, list)
    return replace(state, sequences={**state.sequences, **lists}).noting(
        f"converted tuples to lists, which torch.distributed.checkpoint does not distinguish: {_shown(tuples)}"
    )


def _with_text(state: State) -> State:
    def rename(key: Key) -> Key:
        return tuple(part if key[:place] in state.sequences else str(part) for place, part in enumerate(key))

    renamed = [key for key in state.entries if rename(key) != key]
    if not renamed:
        return state
    return state.renamed(rename).noting(
        f"converted number keys to text, as torch.distributed.checkpoint does: {_shown(renamed)}"
    )


def _shown(keys: list[Key]) -> str:
    return ", ".join(map(spelled, keys[:3])) + (", …" if len(keys) > 3 else "")
