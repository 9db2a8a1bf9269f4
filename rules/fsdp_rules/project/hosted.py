"""A module that a framework shards by a strategy which another file makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hosted:
    """The class ``name`` of the file ``module``, under the strategy that the file ``strategy`` makes in ``line``.

    ``layers`` and ``checkpointed`` are the classes of units and of recomputed layers, by their dotted names.
    ``options`` are the arguments of ``fully_shard`` with their texts, ``dtypes`` those of its policy with dotted names.
    ``root`` is the attribute that holds the model. ``reason`` says why both files are kept, empty if they change
    together.
    """

    strategy: str
    line: int
    module: str = ""
    name: str = ""
    root: str = ""
    layers: tuple[str, ...] = ()
    checkpointed: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    reason: str = ""
