"""What every rule test needs: run one source, or several as a project, and hold the output to the house rules."""

from __future__ import annotations

import codecs
import os
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from fsdp_migrate.pipeline import run
from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.run import Request
from fsdp_migrate.report.progress import NoProgress
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged


def rewrite(source: str | bytes, settings: Settings | None = None, **others: str) -> Result:
    """The result of rewriting ``source`` as ``example.py`` beside the files ``others`` (module name → source)."""
    data = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
    files = {"example.py": data, **{f"{name}.py": textwrap.dedent(text).encode() for name, text in others.items()}}
    return rewrite_tree(files, settings).get("example.py", Unchanged())


def rewrite_tree(files: Mapping[str, bytes], settings: Settings | None = None) -> dict[str, Result]:
    """The result of every file that the command looks at closely, in a directory with these ``files``."""
    with tempfile.TemporaryDirectory() as directory:
        for path, data in files.items():
            file = Path(directory, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        before = Path.cwd()
        os.chdir(directory)
        try:
            request = Request((".",), settings or Settings(), diff=True, jobs=1)
            outcomes = run.rewrite(request, RulesEngine(), NoProgress()).outcomes
        finally:
            os.chdir(before)
    return {outcome.path: outcome.result for outcome in outcomes}


def findings(source: str, settings: Settings | None = None, **others: str) -> tuple[Finding, ...]:
    """The findings in ``source``."""
    result = rewrite(source, settings, **others)
    assert isinstance(result, Changed | Unchanged), result
    return result.findings


def check_noop(source: str, settings: Settings | None = None, **others: str) -> None:
    """``source`` is left alone and nothing is said about it."""
    result = rewrite(source, settings, **others)
    assert result == Unchanged(), result


def check_findings(
    source: str, expected: set[tuple[str, str]], settings: Settings | None = None, **others: str
) -> None:
    """``source`` has exactly these (rule, level) findings.

    What is said about imports and once about every wrapped model counts where it is expected.
    """
    found = {(found.rule, found.level.value) for found in findings(source, settings, **others)}
    assert found - ({("FSDP100", "safe"), ("FSDP121", "info"), ("FSDP121", "review")} - expected) == expected


def check_rewrites(before: str, after: str, settings: Settings | None = None, **others: str) -> None:
    """``before`` becomes ``after``, which compiles, stays as it is when rewritten again, and keeps CRLF and BOM."""
    before, after = textwrap.dedent(before), textwrap.dedent(after)
    files = {"example.py": before, **{f"{name}.py": textwrap.dedent(text) for name, text in others.items()}}
    first = _rewritten(files, settings)
    assert first["example.py"] == after
    compile(after, "after.py", "exec", dont_inherit=True)
    assert _rewritten(first, settings)["example.py"] == after, "a second run changes the output"
    crlf = before.replace("\n", "\r\n").encode()
    expected = after.replace("\n", "\r\n").encode()
    result = rewrite(codecs.BOM_UTF8 + crlf, settings, **others)
    if before != after:
        assert isinstance(result, Changed)
        assert result.source == codecs.BOM_UTF8 + expected


def _rewritten(files: Mapping[str, str], settings: Settings | None) -> dict[str, str]:
    results = rewrite_tree({path: text.encode() for path, text in files.items()}, settings)
    return {path: _text(results.get(path, Unchanged()), text) for path, text in files.items()}


def _text(result: Result, before: str) -> str:
    if isinstance(result, Failed | Skipped):
        raise AssertionError(result)
    return result.source.decode() if isinstance(result, Changed) else before
