"""Models that keep FSDP1: of a project's own subclass, under a comment, or beside an FSDP2 alternative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.twins import Twins


@dataclass(frozen=True)
class Kept:
    """``wraps`` are the files and lines of the wraps that stay. ``alone``: the project wraps models in no other way.

    ``by_hand`` are the wraps that are left to be rewritten by hand, each as its file, its place, what is said of it and
    what to do; ``rewritten`` the files in which others are not. ``programs`` says which files may run together.
    """

    wraps: frozenset[tuple[str, int]] = frozenset()
    alone: bool = False
    by_hand: tuple[tuple[str, str, str, str], ...] = ()
    rewritten: frozenset[str] = frozenset()
    programs: Programs = field(default_factory=Programs)

    @classmethod
    def build(cls, files: Sequence[FileFacts], twins: Twins, programs: Programs) -> Kept:
        """Those of all files, beside the functions that have ``twins``."""
        own = frozenset((file.path, line) for file in files for line in file.kept)
        every = own.union((file.path, line) for file in files for line in file.wrapped | file.gated)
        kept = frozenset(place for place in every if place in own or twins.keeps(*place))
        return cls(kept, bool(kept) and kept == every, programs=programs)

    def left_by(self, path: str) -> str:
        """The place of the wrap that keeps the programs of the file at ``path`` on FSDP1: none of theirs is rewritten.

        Empty where one is, or where none is left to be rewritten by hand.
        """
        may_share = self.programs.may_share
        if not self.by_hand or any(may_share(path, one) for one in self.rewritten):
            return ""
        return next((place for one, place, *_ in self.by_hand if may_share(path, one)), "")
