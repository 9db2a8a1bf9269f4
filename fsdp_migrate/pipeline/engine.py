"""The face that the command sees of the rules, so that files and processes can be tested without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Result

if TYPE_CHECKING:
    from fsdp_rules.project.project import FileFacts, Project


class Engine(Protocol):
    """Four pure steps. An engine crosses process boundaries, so it must be picklable."""

    def has_marker(self, data: bytes) -> bool:
        """Whether these bytes may concern FSDP at all; a plain search."""

    def index(self, path: str, data: bytes) -> FileFacts | None:
        """The facts that one file gives to the others; None if it does not parse."""

    def build(self, facts: Iterable[FileFacts]) -> Project:
        """The facts of the whole tree."""

    def rewrite(self, data: bytes, path: str, project: Project, settings: Settings) -> Result:
        """What becomes of one file."""


class RulesEngine:
    """The real rules. Nothing is imported before it is needed: libcst alone costs a third of a second."""

    def has_marker(self, data: bytes) -> bool:
        from fsdp_rules.engine.prefilter import has_marker

        return has_marker(data)

    def index(self, path: str, data: bytes) -> FileFacts | None:
        from fsdp_rules.project.project import index_source

        return index_source(path, data)

    def build(self, facts: Iterable[FileFacts]) -> Project:
        from fsdp_rules.project.project import Project

        return Project.build(facts)

    def rewrite(self, data: bytes, path: str, project: Project, settings: Settings) -> Result:
        from fsdp_rules.engine.rewrite import rewrite_source

        return rewrite_source(data, path, project, settings)
