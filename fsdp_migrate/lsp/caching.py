"""The rules for an editor: what was read from a file is kept until its bytes change, and open files alone move."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Result, Unchanged

if TYPE_CHECKING:
    from fsdp_rules.engine.rewrite import Prepared
    from fsdp_rules.project.project import FileFacts, Project

Value = TypeVar("Value")


class CachingEngine(RulesEngine):
    """Of one project. Facts depend on a file's path and bytes alone, so that they outlive a change of another file."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[str, str], tuple[bytes, Any]] = {}
        self._open: frozenset[Path] = frozenset()

    def look_at(self, paths: Collection[Path]) -> None:
        """Rewrite these files alone, by their real paths."""
        self._open = frozenset(paths)

    def index(self, path: str, data: bytes) -> FileFacts | None:
        return self._once("index", path, data, lambda: super(CachingEngine, self).index(path, data))

    def imports_of(self, path: str, data: bytes) -> frozenset[str]:
        return self._once("imports", path, data, lambda: super(CachingEngine, self).imports_of(path, data))

    def rewrite(
        self, data: bytes, path: str, project: Project, settings: Settings, prepared: Prepared | None = None
    ) -> Result:
        if Path(path).resolve() not in self._open:
            return Unchanged()
        return super().rewrite(data, path, project, settings, prepared)

    def _once(self, what: str, path: str, data: bytes, make: Callable[[], Value]) -> Value:
        kept = self._kept.get((what, path))
        if kept is not None and kept[0] == data:
            value: Value = kept[1]
            return value
        value = make()
        self._kept[what, path] = (data, value)
        return value
