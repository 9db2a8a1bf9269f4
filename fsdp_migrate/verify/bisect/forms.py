"""The edits of a rewrite, and what it makes of a tree with some of them in their other form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.pipeline import run
from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.moved_lines import follow
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.report.progress import NoProgress
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.trees import NOTHING
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed


@dataclass(frozen=True)
class Edit:
    """Edits of one place that belong together, with all that is said of them; paths are from the root of the tree."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> set[str]:
        return {finding.rule for finding in self.findings}

    @property
    def is_configuration(self) -> bool:
        """Whether it changes the configuration of a framework, whose other form is FSDP1's own."""
        return any(rule.startswith("FSDP5") for rule in self.rules)

    @property
    def finding(self) -> Finding:
        """What its own rule says; the others speak for arguments, or for what is inside."""
        own = self.name.rpartition(" ")[2]
        return next((finding for finding in self.findings if finding.rule == own), self.findings[0])


class Forms:
    """What ``asked``, a request for one tree, makes of it. Raises :class:`CannotRun` where that is nothing."""

    def __init__(self, asked: Request) -> None:
        self._asked = replace(asked, diff=True, keep=None)
        self.tree = Path(asked.paths[0])
        self._engine = RulesEngine()
        native = self._rewritten(())
        for path, reason in native.errors:
            raise CannotRun(f"{path} could not be rewritten: {reason}")
        self._native = {self._inside(one.path): one for one in native.outcomes}
        found: dict[str, list[Finding]] = defaultdict(list)
        for finding in native.findings:
            if finding.edit:
                found[finding.edit].append(replace(finding, path=self._inside(finding.path)))
        self.edits = {name: Edit(name, tuple(findings)) for name, findings in found.items()}
        self.left = [
            f"{self._inside(one.path)}:{one.line} {one.rule} {one.message}" for one in native.of_level(Level.MANUAL)
        ]
        if not self.files(()):
            raise CannotRun(NOTHING)

    def files(self, other: Iterable[str]) -> Mapping[str, bytes]:
        """The files that change, with the edits named ``other`` in their other form."""
        chosen = frozenset(other)
        outcomes = self._rewritten(chosen).outcomes if chosen else self._native.values()
        made = {self._inside(one.path): (one.before, self._made(one)) for one in outcomes}
        return {path: after for path, (before, after) in made.items() if after != before}

    def findings(self, path: str) -> Sequence[tuple[int, Finding]]:
        """What is said of the file at ``path``, each after its line in the rewrite as it is."""
        one = self._native.get(path)
        if one is None or not isinstance(one.result, Changed):
            return ()
        moved = follow(one.findings, one.before, one.result.source)
        return [(now.line, replace(then, path=path)) for now, then in zip(moved, one.findings, strict=True)]

    def before(self, path: str) -> bytes:
        """What the file holds that is rewritten."""
        return self._native[path].before

    def _rewritten(self, other: Iterable[str]) -> RunResult:
        settings = replace(self._asked.settings, other=frozenset(other))
        return run.rewrite(replace(self._asked, settings=settings), self._engine, NoProgress())

    def _made(self, one: FileOutcome) -> bytes:
        from fsdp_rules.engine.other_forms import KEPT

        source = one.result.source if isinstance(one.result, Changed) else one.before
        is_kept = any(finding.message == KEPT for finding in one.findings)
        return self._engine.back_on_shim(source, one.path) if is_kept else source

    def _inside(self, path: str) -> str:
        return path.removeprefix(f"{self.tree.as_posix()}/")
