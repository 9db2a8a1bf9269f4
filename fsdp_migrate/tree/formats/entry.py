"""What a file of requirements names, without the parser of versions, which takes longer to import than to use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet


@dataclass(frozen=True)
class Entry:
    """One requirement: ``pattern`` finds it in the text of its file, from ``line`` on (counted from 1)."""

    name: str
    allowed: SpecifierSet
    pattern: str
    line: int = 1


@dataclass(frozen=True)
class Include:
    """Another file whose requirements count as well; one that ``constrains`` only narrows those of this file."""

    path: str
    constrains: bool = False
