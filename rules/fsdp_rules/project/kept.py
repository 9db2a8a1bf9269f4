"""Models that keep FSDP1: of a project's own subclass, under a comment, or beside an FSDP2 alternative."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.lookup import Lookup


@dataclass(frozen=True)
class Kept:
    """``models`` finds every place that may hold such a model. ``alone``: the project wraps models in no other way.

    ``others`` finds the places that may hold a model whose wrap is rewritten. ``by_hand`` are the wraps that are
    left to be rewritten by hand, each as its file and its place, ``rewritten`` the files in which others are not.
    """

    models: Lookup = field(default_factory=Lookup)
    alone: bool = False
    others: Lookup = field(default_factory=Lookup)
    by_hand: tuple[tuple[str, str], ...] = ()
    rewritten: frozenset[str] = frozenset()

    @classmethod
    def build(cls, models: Lookup, others: Lookup) -> Kept:
        """From the places of models that stay, and of those whose wraps are rewritten."""
        alone = bool(models.held) and not any(one.kind == "seed" and one.path for one in others.held)
        return cls(models, alone, others)

    def keeps(self, path: str, scope: str, text: str) -> bool:
        """Whether the dotted name ``text`` in ``scope`` may be a model that stays FSDP1's, which no rule changes."""
        return self.models.find(path, scope, text).certainty is not Certainty.NO

    def left_by(self, path: str) -> str:
        """The place of the wrap that keeps the programs of the file at ``path`` on FSDP1: none of theirs is rewritten.

        Empty where one is, or where none is left to be rewritten by hand.
        """
        may_share = self.others.programs.may_share
        if not self.by_hand or any(may_share(path, one) for one in self.rewritten):
            return ""
        return next((place for one, place in self.by_hand if may_share(path, one)), "")

    def wraps(self) -> frozenset[tuple[str, int]]:
        """The files and lines of the wraps that stay."""
        origins = {held.origin for held in self.models.held.values()}
        return frozenset((one.path, int(one.part)) for one in origins if one.part.isdecimal())

    def is_either(self, path: str, scope: str, text: str) -> bool:
        """Whether ``text`` may be such a model and also one whose wrap is rewritten, for more than its name."""
        found = [lookup.find(path, scope, text) for lookup in (self.models, self.others)]
        return all(one.certainty is not Certainty.NO and not one.by_name for one in found)
