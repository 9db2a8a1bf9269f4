"""Which edits of a rewrite make its run differ: a search over their forms, whoever makes the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsdp_migrate.verify.bisect.forms import Edit
from fsdp_migrate.verify.bisect.nearest import nearest
from fsdp_migrate.verify.bisect.smallest import Search, most_runs, smallest
from fsdp_migrate.verify.verdict import EQUAL, Verdict
from fsdp_rules.verdict.finding import Finding


class OfEdits(Protocol):
    """What is asked of :class:`fsdp_migrate.verify.bisect.forms.Forms`."""

    edits: dict[str, Edit]

    def files(self, other: frozenset[str]) -> Mapping[str, bytes]:
        """The files that change, with these edits in their other form."""

    def findings(self, path: str) -> Sequence[tuple[int, Finding]]:
        """What is said of a file, each after its line in the rewrite as it is."""


@dataclass(frozen=True)
class Trial:
    """One run after: its verdict, or what it ``said`` when it failed, in the copy ``tree``."""

    verdict: Verdict | None
    said: str = ""
    tree: Path = Path()

    @property
    def is_equal(self) -> bool:
        return self.verdict is not None and self.verdict.exit_code == EQUAL

    @property
    def last(self) -> str:
        """The last line of what it said, which names the error."""
        return self.said.strip().rpartition("\n")[2]


#: Makes a run with these files in place of those of the tree.
Run = Callable[[Mapping[str, bytes]], Trial]
#: Is told of each run: its number, how many there are at most, the edits in their other form, and what came of it.
Watch = Callable[[int, int, list[Edit], Trial], None]


@dataclass(frozen=True)
class Bisected:
    """``native``: the rewrite as it is. ``search`` is None where that is equal; ``crash``: what is near to one.

    ``edits``: what was found, and ``other`` the whole rewrite with these in their other form.
    """

    native: Trial
    search: Search | None = None
    edits: tuple[Edit, ...] = ()
    other: Mapping[str, bytes] | None = None
    crash: tuple[str, Finding] | None = None


def bisected(forms: OfEdits, run: Run, watch: Watch) -> Bisected:
    """Run the rewrite as it is, and where it differs or fails look for the smallest set of edits that makes it so."""
    native = run(forms.files(frozenset()))
    if native.is_equal:
        return Bisected(native)
    crash = nearest(native.said, native.tree, forms.findings)
    trials: dict[frozenset[tuple[str, bytes]], Trial] = {frozenset(forms.files(frozenset()).items()): native}

    def holds(other: frozenset[str]) -> bool | None:
        files = forms.files(other)
        key = frozenset(files.items())
        if key not in trials:
            trials[key] = run(files)
            told = [edit for name, edit in forms.edits.items() if name in other]
            watch(len(trials) - 1, most_runs(len(forms.edits)), told, trials[key])
        trial = trials[key]
        return trial.is_equal if trial.verdict is not None or trial.last == native.last else None

    search = smallest([*forms.edits], holds, _suspects(forms, native, crash))
    if not search.edits:
        return Bisected(native, search, crash=crash)
    found = tuple(edit for name, edit in forms.edits.items() if name in search.edits)
    return Bisected(native, search, found, forms.files(search.edits), crash)


def _suspects(forms: OfEdits, native: Trial, crash: tuple[str, Finding] | None) -> list[str]:
    """The edits that the cause of the difference names by its rule, or that a traceback names by its line."""
    if crash is not None:
        return [crash[1].edit] if crash[1].edit in forms.edits else []
    cause = native.verdict.cause if native.verdict is not None else None
    named = [name for name, edit in forms.edits.items() if cause is not None and cause.rule in edit.rules]
    return named if len(named) < len(forms.edits) else []
