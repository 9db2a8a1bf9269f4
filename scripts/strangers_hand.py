"""What a human does in a rewritten program as its findings say, and what they say stays different."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from strangers_compare import Difference


@dataclass
class ByHand:
    """An edits.toml: ``edit`` are edits of the rewritten files.

    ``renamed`` are parts of names that are read by other names in what the old code saved, as FSDP207 says.
    ``stated`` are places of which a finding says that no edit gives FSDP1's value, with its rule and the reason.
    """

    edit: list[dict[str, str]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    stated: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> ByHand:
        """The file at ``path``."""
        return cls(**tomllib.loads(path.read_text()))

    def edited(self, tree: Path, place: Path) -> str:
        """Do the edits in a copy of ``tree``; empty, or what is no longer there."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tree, place)
        for edit in self.edit:
            path = place / edit["file"]
            text = path.read_text()
            if edit["find"] not in text:
                return f"{edit['file']} no longer has {edit['find']!r} after the rewrite"
            path.write_text(text.replace(edit["find"], edit["replace"]))
        return ""

    def unfit(self, rules: Collection[str]) -> str:
        """A rule that is said to state a difference, and has no finding among ``rules``; else empty."""
        return next((f"no finding of {one['rule']}" for one in self.stated if one["rule"] not in rules), "")

    def states(self, difference: Difference) -> bool:
        """Whether a finding says that ``difference`` stays."""
        return any(fnmatchcase(difference.place, one["place"]) for one in self.stated)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """``value`` with ``names`` in all its texts."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, Mapping):
        return {renamed(key, names): renamed(one, names) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [renamed(one, names) for one in value]
    return value
