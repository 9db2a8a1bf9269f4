"""Asks which definitions of FSDP1's configuration change, with all that the files of a tree show of their uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.work import Candidate, contained
from fsdp_migrate.tree.files import Source
from fsdp_migrate.tree.regular import read_regular
from fsdp_migrate.tree.selection import Selection
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Failed

if TYPE_CHECKING:
    from fsdp_rules.engine.rewrite import Prepared
    from fsdp_rules.project.project import Project


@dataclass(frozen=True)
class Agreement:
    """What is looked for under these settings."""

    engine: Engine
    settings: Settings
    selection: Selection
    read: Callable[[Path], bytes] = read_regular

    def reached(
        self, project: Project, parsed: Sequence[Candidate], others: Sequence[Candidate], rest: Sequence[Source]
    ) -> tuple[Project, Mapping[str, Prepared]]:
        """``project`` with what its files agree on, and the files that were parsed for it, by their paths.

        ``parsed`` are the files with facts; ``others``, notebooks and ``rest`` may use whatever they name.
        """
        if self.settings.to == "shim":
            return project, {}
        unread = [*others, *(one for one in parsed if one.is_notebook)]
        files = {one.path: one.data for one in parsed if not one.is_notebook}
        known = {*files, *(one.path for one in unread)}

        def texts() -> Iterator[tuple[str, bytes]]:
            yield from ((one.path, one.data) for one in unread)
            for source in rest:
                if source.shown not in known:
                    try:
                        yield source.shown, self.read(source.path)
                    except (OSError, MemoryError):
                        continue

        def settings_of(path: str) -> Settings:
            return self.selection.applied(self.settings, path)

        found = contained(lambda: self.engine.agree(project, files, settings_of, texts))
        # What cannot be decided changes nothing; the files themselves then say what is wrong with them.
        return (project, {}) if isinstance(found, Failed) else (found.project, found.prepared)
