"""Models that keep FSDP1: those of a project's own subclass of its wrapper, and those whose wrap a comment silences."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.lookup import Lookup


@dataclass(frozen=True)
class Kept:
    """``models`` finds every place that may hold such a model. ``alone``: the project wraps models in no other way."""

    models: Lookup = field(default_factory=Lookup)
    alone: bool = False

    def keeps(self, path: str, scope: str, text: str) -> bool:
        """Whether the dotted name ``text`` in ``scope`` may be a model that stays FSDP1's, which no rule changes."""
        return self.models.find(path, scope, text).certainty is not Certainty.NO
