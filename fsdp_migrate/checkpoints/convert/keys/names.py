"""Names of parameters without what wrappers around modules have left in them."""

from __future__ import annotations

import re

from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import Key, ValueEntry
from fsdp_migrate.checkpoints.judge.loading import root_of_model

#: What FSDP1, activation checkpointing and torch.compile put into names.
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
#: What DistributedDataParallel puts before all of them.
DDP = "module."
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:" + "|".join(map(re.escape, WRAPPERS)) + ")")


def clean(name: str) -> str:
    """The name as the module without wrappers has it; ``module.`` at its start stays, as it may be a module's own."""
    return _WRAPPERS.sub("", name)


def cleaned(state: State) -> State:
    """All names of a state without wrappers, in keys and in the lists of param groups.

    ``module.`` goes where every name of the model starts with it, or every name of an optimizer that is alone.
    Raises :class:`CannotConvert` where two names become one.
    """
    ddp = _all_start_with_ddp(state)

    def shorter(name: str) -> str:
        name = clean(name)
        return name.removeprefix(DDP) if ddp else name

    root = root_of_model(state.entries)
    start = len(root) if root is not None else 0

    def rename(key: Key) -> Key:
        return (*key[:start], *(shorter(part) if isinstance(part, str) else part for part in key[start:]))

    before = {part for key in state.entries for part in key if isinstance(part, str)}
    new = state.renamed(rename)
    for key, entry in new.entries.items():
        if "params" in key and isinstance(entry, ValueEntry) and isinstance(entry.value, str):
            new.entries[key] = ValueEntry(shorter(entry.value))
    changed = {name for name in before if shorter(name) != name}
    if not changed:
        return state
    gone = [wrapper for wrapper in WRAPPERS if any(wrapper in name for name in changed)] + [DDP] * ddp
    many = f"{len(changed)} name{'s' * (len(changed) > 1)}"
    return new.noting(f"removed {', '.join(gone)} from {many}, which FSDP2 models do not have")


def _all_start_with_ddp(state: State) -> bool:
    root = root_of_model(state.entries)
    if root is not None:
        names = [str(key[len(root)]) for key in state.entries if key[: len(root)] == root and len(key) == len(root) + 1]
    else:
        names = [str(key[key.index("state") + 1]) for key in state.entries if "state" in key[:-2]]
    return bool(names) and all(clean(name).startswith(DDP) for name in names)
