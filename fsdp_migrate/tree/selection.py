"""Which files and rules a project leaves out, by patterns as in ``.gitignore``."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_rules.settings import Settings

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: Directories that are not entered where a project does not name others; git's own never is.
SKIPPED_DIRECTORIES = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class Selection:
    """Patterns, each of which is meant from the directory ``base``; outside of it none matches.

    ``exclude`` replaces :data:`SKIPPED_DIRECTORIES` where it is given, ``extend_exclude`` adds to it. With ``include``
    only the files that it matches are found under directories. ``per_file_ignores`` are pairs of a pattern and the
    rules, ids or prefixes, that are left out in the files that it matches.
    """

    base: Path = Path()
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def skipped_directories(self) -> frozenset[str]:
        """The names of directories that are never entered."""
        return SKIPPED_DIRECTORIES if self.exclude is None else frozenset({".git"})

    def excludes(self, path: str | Path, is_directory: bool = False) -> bool:
        """Whether a file or a directory, or a directory around it, is left out."""
        patterns = (*(self.exclude or ()), *self.extend_exclude)
        return self._matches(patterns, path, "/" if is_directory else "")

    def includes(self, path: str | Path) -> bool:
        """Whether a file under a directory is one of those that the project asks for."""
        return not self.include or self._matches(self.include, path)

    def ignores(self, rule: str, path: str | Path) -> bool:
        """Whether the rule with this id is left out in a file."""
        return any(map(rule.startswith, self._ignored(path)))

    def applied(self, settings: Settings, path: str | Path) -> Settings:
        """``settings`` as they are for one file."""
        ignored = self._ignored(path)
        return replace(settings, ignore=(*settings.ignore, *ignored)) if ignored else settings

    def all_rules(self) -> Selection:
        """The same files, with all rules in each."""
        return replace(self, per_file_ignores=())

    def _ignored(self, path: str | Path) -> tuple[str, ...]:
        matching = (rules for pattern, rules in self.per_file_ignores if self._matches((pattern,), path))
        return tuple(rule for rules in matching for rule in rules)

    def _matches(self, patterns: tuple[str, ...], path: str | Path, ending: str = "") -> bool:
        if not patterns:
            return False
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link is matched by its own name
        if not absolute.is_relative_to(self.base):
            return False
        return _spec(patterns).match_file(absolute.relative_to(self.base).as_posix() + ending)


#: Leaves out nothing but the directories that are always skipped.
ALL_FILES = Selection()


@lru_cache(maxsize=64)
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)
