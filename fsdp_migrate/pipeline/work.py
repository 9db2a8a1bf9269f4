"""The work on one file: what a worker process does. Nothing here prints, writes or raises."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.tree import notebooks
from fsdp_migrate.tree.selection import ALL_FILES, Selection
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged

if TYPE_CHECKING:
    from fsdp_rules.engine.rewrite import Prepared
    from fsdp_rules.project.project import FileFacts, Project

Value = TypeVar("Value")

TOO_DEEP = "too deeply nested to be analysed"
NEWER = "If a newer Python runs this file, run fsdp-migrate with that"


@dataclass(frozen=True)
class Candidate:
    """A file with an FSDP marker in its bytes. ``path`` is as the user named it."""

    path: str
    data: bytes
    is_notebook: bool


def module_of(candidate: Candidate, engine: Engine) -> bytes | None:
    """The Python module that a file is, or that a notebook's cells make; None for one in another language."""
    if not candidate.is_notebook:
        return candidate.data
    notebook = notebooks.parse(candidate.data, candidate.path, engine.has_marker)
    return None if notebook is None else notebook.module


@dataclass(frozen=True)
class Indexer:
    """Gives the facts of a file, or why there are none."""

    engine: Engine

    def __call__(self, candidate: Candidate) -> FileFacts | Skipped | Failed:
        return contained(lambda: self._index(candidate))

    def _index(self, candidate: Candidate) -> FileFacts | Skipped | Failed:
        module = module_of(candidate, self.engine)
        if module is None:
            return Skipped("a notebook in a language other than Python")
        facts = self.engine.index(candidate.path, module)
        return Failed(why_unparsable(module)) if facts is None else facts


@dataclass(frozen=True)
class Rewriter:
    """Gives what becomes of a file that has facts."""

    engine: Engine
    project: Project
    settings: Settings
    selection: Selection = ALL_FILES
    prepared: Mapping[str, Prepared] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        # Where processes are spawned, parsing a file again costs less than sending its tree.
        return {**self.__dict__, "prepared": {}}

    def __call__(self, candidate: Candidate) -> Result:
        return contained(lambda: self._rewrite(candidate))

    def _rewrite(self, candidate: Candidate) -> Result:
        settings = self.selection.applied(self.settings, candidate.path)
        if candidate.is_notebook:
            return self._rewrite_notebook(candidate, settings)
        result = self.engine.rewrite(
            candidate.data, candidate.path, self.project, settings, self.prepared.get(candidate.path)
        )
        if isinstance(result, Changed) and result.source == candidate.data:
            return Unchanged(result.findings)
        return result

    def _rewrite_notebook(self, candidate: Candidate, settings: Settings) -> Result:
        notebook = notebooks.parse(candidate.data, candidate.path, self.engine.has_marker)
        if notebook is None:
            return Skipped("a notebook in a language other than Python")
        result = self.engine.rewrite(notebook.module, candidate.path, self.project, settings)
        if not isinstance(result, Changed | Unchanged):
            return result
        own = [finding for finding in notebook.findings if settings.enabled(finding.rule)]
        found = tuple(sorted([*own, *map(notebook.relocate, result.findings)], key=_place))
        if isinstance(result, Changed):
            data = notebook.rebuild(result.source)
            if data != candidate.data:
                return Changed(data, found)
        return Unchanged(found)


def why_unparsable(source: bytes) -> str:
    """One line that says what is wrong with a source that does not parse."""
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        ast.parse(source)
    except SyntaxError as error:
        place = f"line {error.lineno}: " if error.lineno else ""
        from fsdp_rules.engine.source_text import parses_elsewhere

        newer = f". {NEWER}" if parses_elsewhere(source) else ""
        return f"could not parse as {version}: {place}{error.msg}{newer}"
    except ValueError as error:
        return f"could not parse as {version}: {error}"
    except MemoryError:
        # What CPython's parser says when its stack is full.
        return TOO_DEEP
    # It does parse, so what failed was the walk over it.
    return TOO_DEEP


def _place(finding: Finding) -> tuple[int, int]:
    return finding.line, finding.column


def contained(work: Callable[[], Value]) -> Value | Failed:
    """The value of ``work``, or what went wrong in it: one bad file must not end the run for the others."""
    try:
        with warnings.catch_warnings():
            # About the user's source, while parsing it: not what this command is asked for.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            return work()
    except notebooks.NotebookError as error:
        return Failed(str(error))
    except MemoryError:
        return Failed("too large for the memory of this machine")
    except Exception as error:  # whatever a rule did wrong, the file is named and the others are done
        if _began_as_recursion(error):
            return Failed(TOO_DEEP)
        return Failed(f"internal error: {type(error).__name__}: {_one_line(error)} ({_origin(error)})")


def _began_as_recursion(error: BaseException | None) -> bool:
    # libcst's own clean-up fails on the way out of a deep tree, and hides the first error behind others.
    while error is not None:
        if isinstance(error, RecursionError):
            return True
        error = error.__context__
    return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _origin(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}" if trace else "no trace"
