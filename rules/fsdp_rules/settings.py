"""What a user may ask of a rewrite."""

from __future__ import annotations

from dataclasses import dataclass

#: How long a line may be that a rewrite writes where the project does not say.
LINE_LENGTH = 100
#: The first torch that has FSDP2's public names.
FIRST_TORCH = (2, 6)


@dataclass(frozen=True)
class PlannedUnits:
    """Units of a model as statements, from a recorded step.

    ``{root}`` in ``lines`` is the model, ``{fully_shard}`` the function and ``{arguments}`` what follows its own
    arguments; ``{unit}``, ``{units}`` and ``{place}`` are names. ``behind`` follows the root's call. ``costs`` says
    what a step issues under FSDP1's units and under these, ``order`` why gradients are summed in another order, ""
    where they are not.
    """

    name: str
    lines: tuple[str, ...]
    behind: tuple[str, ...]
    costs: str
    order: str = ""


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a rewrite.

    ``to``: ``native`` (FSDP2) or ``shim`` (imports of ``fsdp_compat``). ``helpers``: whether native output calls
    ``fsdp_compat``: ``never``, where it is ``needed``, or ``always`` where a helper exists. ``select`` and ``ignore``
    hold rule ids or prefixes (``FSDP1``); an empty ``select`` means all. ``traps``: nothing is going to be written, so
    that traps are told of in projects that have no FSDP1 any more, too. ``torch``: the least release (major, minor)
    that the output has to run on. ``raises_torch``: the project may run on an older one now. ``transformers`` and
    ``accelerate``: the newest release (major, minor) that the project allows, None where it says nothing.
    ``line_length``: the longest line that the project allows, None where it is silent.
    ``shards_natively``: the tree shards with FSDP2 and names no FSDP1, so that its own configuration is not FSDP1's.
    ``older_verl``: the tree has verl's own code, which knows no fsdp2. ``strategy_names``: those that its Python
    looks up members of ShardingStrategy by. ``launched``: the low precision that a script gives to ``accelerate
    launch`` beside the settings file. ``other``: the edits, as findings name them, that are made in
    their other form, by a helper or not at all; None where edits need no names. ``both``: what happens to FSDP1's
    branches in a tree that has FSDP2's beside them, ``keep`` or ``retire``; empty where nobody has chosen, which keeps
    them. ``layout``: ``keep`` for FSDP1's units, ``expert`` for those that an expert would choose; ``planned``: those
    that were worked out from a recorded step, in place of both.
    """

    to: str = "native"
    helpers: str = "needed"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    traps: bool = False
    torch: tuple[int, int] = FIRST_TORCH
    raises_torch: bool = True
    line_length: int | None = None
    transformers: tuple[int, int] | None = None
    accelerate: tuple[int, int] | None = None
    shards_natively: bool = False
    older_verl: bool = False
    strategy_names: frozenset[str] = frozenset()
    launched: str = ""
    other: frozenset[str] | None = None
    both: str = ""
    layout: str = "keep"
    planned: PlannedUnits | None = None

    def enabled(self, rule_id: str) -> bool:
        """Whether the rule runs under these settings."""
        if any(rule_id.startswith(prefix) for prefix in self.ignore):
            return False
        return not self.select or any(rule_id.startswith(prefix) for prefix in self.select)

    @property
    def other_layout(self) -> bool:
        """Whether units other than FSDP1's are asked for."""
        return self.layout != "keep" or self.planned is not None

    @property
    def may_help(self) -> bool:
        """Whether native output may call ``fsdp_compat``."""
        return self.helpers != "never"

    @property
    def prefers_helpers(self) -> bool:
        """Whether native output calls ``fsdp_compat`` also where FSDP2 can say it alone."""
        return self.helpers == "always"
