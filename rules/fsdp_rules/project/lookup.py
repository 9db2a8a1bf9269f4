"""What a name of a file may hold, found among the places that values were followed to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_rules.project.classes import Owners
from fsdp_rules.project.flow import Certainty, Held
from fsdp_rules.project.places import INNER, Place, scopes
from fsdp_rules.project.programs import Programs


@dataclass(frozen=True)
class Lookup:
    """``held`` are the places of one kind of value, ``owners`` the classes whose attributes ``self.x`` may be.

    ``programs`` says which files may run together.
    """

    held: Mapping[Place, Held] = field(default_factory=dict)
    owners: Owners = field(default_factory=Owners)
    programs: Programs = field(default_factory=Programs)

    def find(self, path: str, scope: str, text: str) -> Held:
        """What the dotted name ``text`` in ``scope`` (a qualified function name) holds."""
        best, root = NOWHERE, text.partition(".")[0]
        for candidate in scopes(scope):
            best = max(best, self.at(Place("var", path, candidate, text)), key=_certainty)
            if root not in ("self", "cls") and Place("var", path, candidate, root) in self.owners.assigned:
                break
        if text.startswith("self.") and text.count(".") == 1:
            family = (self.at(place) for place in self.owners.inherited(path, scope, text))
            best = max([best, *family], key=_certainty)
        if best.certainty is Certainty.NO and "." in text and not self._is_own(path, scope, text):
            best = self._of_any_object(path, text.rpartition(".")[2])
        if best.certainty is Certainty.NO and text.endswith(INNER):
            return self.find(path, scope, text.rpartition(".")[0])
        return best

    def at(self, place: Place) -> Held:
        """What is at one place."""
        return self.held.get(place, NOWHERE)

    def _of_any_object(self, path: str, name: str) -> Held:
        """What the attribute ``name`` holds in the file at ``path``, whatever object it is of."""
        givers = (one for one in self._assigned.get(name, ()) if self.programs.may_share(one.path, path))
        found = max((self.at(one) for one in givers), key=_certainty, default=NOWHERE)
        return found._replace(certainty=min(found.certainty, Certainty.MAYBE))

    @cached_property
    def _assigned(self) -> dict[str, list[Place]]:
        """The places of each attribute, by its name."""
        found: dict[str, list[Place]] = defaultdict(list)
        for place in self.held:
            if place.kind == "attr" and place.path:
                found[place.name].append(place)
        return found

    @cached_property
    def paths(self) -> frozenset[str]:
        """The files in which some name holds such a value."""
        return frozenset(place.path for place in self.held if place.kind == "var")

    def _is_own(self, path: str, scope: str, text: str) -> bool:
        """Whether ``text`` is ``self.x`` of a class that gives itself an ``x``, which never holds such a value."""
        if not text.startswith("self.") or text.count(".") > 1 or Place("set", name=text[5:]) in self.held:
            return False
        places = self.owners.places(path, scope, text)
        return any(place in self.owners.assigned for place in places) and not any(
            place in self.held for place in places
        )


NOWHERE = Held(Certainty.NO, Place("seed"))


def _certainty(held: Held) -> Certainty:
    return held.certainty
