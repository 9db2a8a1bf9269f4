"""An engine without rules, so that files, processes and reports are tested for themselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdp_migrate.pipeline import engine
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Unchanged


class WordEngine:
    """Replaces ``FSDP(`` by ``fully_shard(``; some words in a source make it do what real rules must not do."""

    def names_fsdp1(self, data: bytes) -> bool:
        return b"FSDP" in data

    def must_migrate(self, facts: object) -> bool:
        return False

    def is_migrating(self, project: list[str]) -> bool:
        return False

    def shards_natively(self, project: list[str]) -> bool:
        return False

    def has_marker(self, data: bytes) -> bool:
        return b"FSDP" in data

    def index(self, path: str, data: bytes) -> str | None:
        try:
            compile(data, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
        return path

    def build(self, facts: Iterable[str], flags: frozenset[str], batchnorm: frozenset[str]) -> list[str]:
        return sorted(facts)

    def agree(self, project: list[str], files: object, settings_of: object, unread: object) -> SimpleNamespace:
        return SimpleNamespace(project=project, prepared={})

    def has_both(self, project: list[str]) -> bool:
        return False

    def left_whole(self, project: list[str], findings: object) -> None:
        return None

    def released(self, project: list[str], before: object, after: object) -> tuple[list[str], frozenset[str]]:
        return project, frozenset()

    def rewrite(
        self, data: bytes, path: str, project: list[str], settings: Settings, prepared: object = None
    ) -> Result:
        assert path in project
        if b"# die" in data:
            os._exit(3)
        if b"# raise" in data:
            raise ZeroDivisionError("a rule\ndivides by zero")
        if b"# deep" in data:
            raise RecursionError
        if b"# huge" in data:
            raise MemoryError
        if b"# refuse" in data:
            return Failed("refused")
        findings = []
        for number, line in enumerate(data.splitlines(), start=1):
            for word, level in (
                (b"FSDP(", Level.SAFE),
                (b"FSDP.by_hand", Level.MANUAL),
                (b"FSDP.assumed", Level.REVIEW),
            ):
                if word in line:
                    column = line.index(word)
                    message = f"{settings.to} [bold]{level.value}[/bold]"
                    advice = "do it" if level is Level.MANUAL else ""
                    place = (number, column, number, column + 4)
                    findings.append(Finding("FSDP101", "constructor-call", path, *place, level, message, advice))
        new = data.replace(b"FSDP(", b"fully_shard(")
        new = new.replace(b"FSDP.by_hand", b"pass # TODO\nFSDP.by_hand") if b"# TODO" not in data else new
        return Changed(new, tuple(findings)) if new != data else Unchanged(tuple(findings))


@pytest.fixture
def word_engine(monkeypatch: pytest.MonkeyPatch) -> WordEngine:
    """Puts :class:`WordEngine` in the place of the rules, for ``main``."""
    monkeypatch.setattr(engine, "RulesEngine", WordEngine)
    return WordEngine()


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A git repository at ``tmp_path``, which becomes the working directory; call it to run git there."""
    monkeypatch.chdir(tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.org")

    def run(*arguments: str, **options: object) -> str:
        answer = subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, check=True, **options)
        return answer.stdout.decode()

    run("init", "--quiet")
    return run


@pytest.fixture
def commit(git: Callable[..., str]) -> Callable[[], None]:
    """Commits all that is in the repository of :func:`git`."""

    def run() -> None:
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "all")

    return run
