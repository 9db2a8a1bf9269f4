"""Models that keep FSDP1: those of a project's own subclass of its wrapper, and those whose wrap a comment silences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.flow import Certainty, Held
from fsdp_rules.project.places import INNER, Place, scopes


@dataclass(frozen=True)
class Kept:
    """Every place that may hold such a model. ``alone``: the project wraps models in no other way."""

    held: Mapping[Place, Held] = field(default_factory=dict)
    alone: bool = False

    def holds(self, path: str, scope: str, text: str) -> bool:
        """Whether the dotted name ``text`` in ``scope``, or an attribute of that name, may be such a model."""
        while text.endswith(INNER):
            text = text.rpartition(".")[0]
        if any(self._certain(Place("var", path, around, text)) for around in scopes(scope)):
            return True
        return "." in text and self._certain(Place("attr", name=text.rpartition(".")[2]))

    def _certain(self, place: Place) -> bool:
        found = self.held.get(place)
        return found is not None and found.certainty is not Certainty.NO

    @cached_property
    def paths(self) -> frozenset[str]:
        """The files in which some name holds one."""
        return frozenset(place.path for place in self.held if place.kind == "var")
