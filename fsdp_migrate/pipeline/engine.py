"""The face that the command sees of the rules, so that files and processes can be tested without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Result

if TYPE_CHECKING:
    from fsdp_rules.engine.agreement import Agreed
    from fsdp_rules.engine.reach import Neighbours
    from fsdp_rules.engine.rewrite import Prepared
    from fsdp_rules.project.programs import Programs
    from fsdp_rules.project.project import FileFacts, Project
    from fsdp_rules.project.value_facts import ValueFacts
    from fsdp_rules.values.derivations import Derivations


_MIGRATING = frozenset({"fsdp1", "gated", "fsdp2", "hosted"})


class Engine(Protocol):
    """Pure steps. An engine crosses process boundaries, so it must be picklable."""

    def names_fsdp1(self, data: bytes) -> bool:
        """Whether these bytes have a spelling of FSDP1's own; a plain search."""

    def has_marker(self, data: bytes) -> bool:
        """Whether these bytes may concern FSDP in a tree with FSDP1; a plain search."""

    def is_migrating(self, project: Project) -> bool:
        """Whether the tree wraps a model, or asks for FSDP1's class, so that other files can be concerned."""

    def must_migrate(self, facts: Sequence[FileFacts]) -> bool:
        """Whether these facts say by themselves that :meth:`is_migrating` holds for every project that has them."""

    def shards_natively(self, project: Project) -> bool:
        """Whether the tree shards with FSDP2 and names nothing of FSDP1."""

    def has_both(self, project: Project) -> bool:
        """Whether code of the tree chooses between a wrap of FSDP1 and FSDP2's."""

    def imports_of(self, path: str, data: bytes) -> frozenset[str]:
        """What these bytes import, fully dotted; a plain search."""

    def neighbours(self, imports: Mapping[str, frozenset[str]]) -> Neighbours:
        """Which files of a tree import which; ``imports`` are those of each file."""

    def index(self, path: str, data: bytes) -> FileFacts | None:
        """The facts that one file gives to the others; None if it does not parse."""

    def flags_in(self, data: bytes) -> frozenset[str]:
        """What these bytes change in what a rule may assume of the tree; a plain search."""

    def programs(self, neighbours: Neighbours, sources: Iterable[tuple[str, bytes]]) -> Programs:
        """Which files of a tree may run together; ``sources`` gives the path and the bytes of each."""

    def build(
        self,
        facts: Iterable[FileFacts],
        flags: Mapping[str, frozenset[str]],
        batchnorm: frozenset[str],
        programs: Programs | None = None,
    ) -> Project:
        """The facts of the whole tree.

        ``flags`` are those of files that have no facts, by path, ``batchnorm`` the files that bring BatchNorm into a
        model.
        Without ``programs`` any two files may run together.
        """

    def values(
        self, project: Project, sources: Mapping[str, bytes], neighbours: Neighbours, indexed: Iterable[str]
    ) -> ValueFacts:
        """What the expressions of a tree may be; ``sources`` are its Python files by path."""

    def agree(
        self,
        project: Project,
        files: Mapping[str, bytes],
        settings_of: Callable[[str], Settings],
        unread: Callable[[], Iterable[tuple[str, bytes]]],
    ) -> Agreed:
        """``project`` with the definitions that change together with all wraps which use them.

        ``files`` are the Python files with facts, ``unread`` gives the path and the bytes of every other file.
        """

    def rewrite(
        self, data: bytes, path: str, project: Project, settings: Settings, prepared: Prepared | None = None
    ) -> Result:
        """What becomes of one file; ``prepared`` is what :meth:`agree` has parsed it to."""

    def left_whole(self, project: Project, findings: Iterable[Finding]) -> Project | None:
        """``project`` as one that keeps FSDP1, where ``findings`` say that each of its wraps is left by hand."""

    def without_fsdp1(
        self, files: Mapping[str, bytes], others: Callable[[], Iterable[tuple[str, bytes]]]
    ) -> dict[str, Result]:
        """What becomes of each of ``files`` where FSDP1's branches are removed; ``others`` are the rest of the tree."""

    def released(
        self, project: Project, before: Mapping[str, bytes], after: Mapping[str, bytes]
    ) -> tuple[Project, frozenset[str]]:
        """``project`` as sources import ``after`` a rewrite, and the files that may drop imports of FSDP1's names."""

    def as_fsdp1(self, data: bytes) -> bytes:
        """The bytes of a file on ``fsdp_compat`` as the FSDP1 code that it stands for."""

    def back_on_shim(self, data: bytes, path: str) -> bytes:
        """The bytes of such a file after a rewrite, with the FSDP1 names that were left imported from the shim."""


class RulesEngine:
    """The real rules. Nothing is imported before it is needed: libcst alone costs a third of a second.

    ``why`` gets the reasons of what expressions may be.
    """

    def __init__(self, why: Derivations | None = None) -> None:
        self._why = why

    def names_fsdp1(self, data: bytes) -> bool:
        from fsdp_rules.engine.prefilter import names_fsdp1

        return names_fsdp1(data)

    def has_marker(self, data: bytes) -> bool:
        from fsdp_rules.engine.prefilter import has_marker

        return has_marker(data)

    def is_migrating(self, project: Project) -> bool:
        flagged = project.flags & _MIGRATING
        return bool(flagged or project.gives_names or project.askers or project.words)

    def must_migrate(self, facts: Sequence[FileFacts]) -> bool:
        # A project has the flags of all its files, or "gated" in place of "fsdp1".
        return any(fact.flags & _MIGRATING for fact in facts)

    def shards_natively(self, project: Project) -> bool:
        return "fsdp2" in project.flags and "fsdp1" not in project.flags

    def has_both(self, project: Project) -> bool:
        return project.has_both

    def imports_of(self, path: str, data: bytes) -> frozenset[str]:
        from fsdp_rules.engine.reach import imports_of

        return imports_of(path, data)

    def neighbours(self, imports: Mapping[str, frozenset[str]]) -> Neighbours:
        from fsdp_rules.engine.reach import Neighbours

        return Neighbours(imports)

    def index(self, path: str, data: bytes) -> FileFacts | None:
        from fsdp_rules.project.project import index_source

        return index_source(path, data)

    def flags_in(self, data: bytes) -> frozenset[str]:
        from fsdp_rules.project.flags import flags_in

        return flags_in(data)

    def programs(self, neighbours: Neighbours, sources: Iterable[tuple[str, bytes]]) -> Programs:
        from fsdp_rules.project.programs import Programs

        return Programs.of(neighbours.imported(), sources)

    def build(
        self,
        facts: Iterable[FileFacts],
        flags: Mapping[str, frozenset[str]],
        batchnorm: frozenset[str],
        programs: Programs | None = None,
    ) -> Project:
        from fsdp_rules.project.project import Project

        return Project.build(facts, flags, batchnorm, programs)

    def values(
        self, project: Project, sources: Mapping[str, bytes], neighbours: Neighbours, indexed: Iterable[str]
    ) -> ValueFacts:
        if "fsdp1" not in project.flags and not project.gives_names:
            return project.values
        from fsdp_rules.values.by_position import facts_of

        start = sorted(path for path, data in sources.items() if self.names_fsdp1(data))
        # A script that runs what another file wraps names nothing of FSDP1 itself.
        alone = {**neighbours.importing(start), **dict.fromkeys(sorted(indexed))}
        facts = facts_of(
            sources,
            [path for path in alone if path in sources],
            alone,
            neighbours.importing,
            project.kept.wraps,
            project.owners.programs,
            project.optimizers.built,
            project.entered.values,
            self._why,
        )
        if "keeps_gathered" not in project.flags:
            return facts
        from fsdp_rules.project.endings import endings_of

        return replace(facts, ends=endings_of(sources.values()))

    def agree(
        self,
        project: Project,
        files: Mapping[str, bytes],
        settings_of: Callable[[str], Settings],
        unread: Callable[[], Iterable[tuple[str, bytes]]],
    ) -> Agreed:
        from fsdp_rules.engine.agreement import agreed

        return agreed(project, files, settings_of, unread)

    def rewrite(
        self, data: bytes, path: str, project: Project, settings: Settings, prepared: Prepared | None = None
    ) -> Result:
        from fsdp_rules.engine.rewrite import rewrite_source

        return rewrite_source(data, path, project, settings, prepared)

    def left_whole(self, project: Project, findings: Iterable[Finding]) -> Project | None:
        from fsdp_rules.engine.left_whole import left_whole

        return left_whole(project, findings)

    def without_fsdp1(
        self, files: Mapping[str, bytes], others: Callable[[], Iterable[tuple[str, bytes]]]
    ) -> dict[str, Result]:
        from fsdp_rules.engine.retired import without_fsdp1

        return without_fsdp1(files, others)

    def released(
        self, project: Project, before: Mapping[str, bytes], after: Mapping[str, bytes]
    ) -> tuple[Project, frozenset[str]]:
        from fsdp_rules.engine.released import released

        return released(project, before, after)

    def as_fsdp1(self, data: bytes) -> bytes:
        from fsdp_rules.engine.from_shim import as_fsdp1

        return as_fsdp1(data)

    def back_on_shim(self, data: bytes, path: str) -> bytes:
        from fsdp_rules.engine.from_shim import back_on_shim

        return back_on_shim(data, path)
