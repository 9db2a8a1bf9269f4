"""Several names for the same elements, which safetensors keep once."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.entries import spelled


def once(state: State) -> State:
    """The state with the first of all names for the same elements, as the library keeps it; the others are noted."""
    for first, *others in traits.ties(state.entries):
        left = ", ".join(map(spelled, others))
        aliases = tuple((spelled(other), spelled(first)) for other in others)
        state = replace(state.without(others), aliases=(*state.aliases, *aliases)).noting(
            f"left out {left}: the same elements as {spelled(first)}, which the model ties again"
        )
    return state
