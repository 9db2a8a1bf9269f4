"""FSDP1 configuration that one definition gives to wraps in other places, and what it becomes with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Slot(NamedTuple):
    """What the function ``name`` of the file ``path`` returns (``part``: that element of the tuple), or what the module
    assigns to ``name``."""

    path: str
    name: str
    part: str = ""
    is_call: bool = True


@dataclass(frozen=True)
class Contract:
    """What a slot holds: ``kind`` is ``strategy``, ``precision``, ``policy`` or ``arguments``, a dictionary of them.

    It is ``units`` for a function that gives each module the arguments of its unit (``keys``), ``test`` for one that
    only says which modules are units; ``buffers_like`` is the dtype of their buffers then.

    ``converted``: its definition is rewritten together with every use, so that it holds FSDP2's form. Else it is only
    known what FSDP1's value can be. ``strategies`` are the names of all strategies that it can be. ``casts`` says
    whether a MixedPrecision casts the inputs of units, and of the root; ``buffers_like`` is the field that the buffers'
    dtype equals, "" where they are not cast; ``optional``: there may be no MixedPrecision. ``device`` is the kind of
    device that all wraps name, ``mesh_given`` whether they have a mesh. ``needed_by`` is the place of the use that
    keeps the definition as it is. ``keys`` are what a dictionary holds besides the arguments of a strategy:
    ``auto_wrap_policy`` (FSDP1's) or ``should_shard`` (a test), ``mp_policy``, ``offload_policy``,
    ``sync_module_states``.
    """

    kind: str
    converted: bool = False
    strategies: frozenset[str] = frozenset()
    casts: tuple[bool, bool] = (False, True)
    buffers_like: str = ""
    optional: bool = False
    device: str = "unset"
    mesh_given: bool = False
    needed_by: str = ""
    keys: frozenset[str] = frozenset()
