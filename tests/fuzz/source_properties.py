"""What holds for every source, whatever is in it."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
import zlib
from collections.abc import Mapping

from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.work import Candidate, Indexer, Rewriter
from fsdp_rules.engine.source_text import decode
from fsdp_rules.project.project import Project
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged
from tests.fuzz import kept

_ENGINE = RulesEngine()
#: libcst's parser takes no such line between the head of a block and its first statement.
_OPENED_BY_A_BACKSLASH = re.compile(rb":[^\r\n]*(\r\n?|\n)[ \t\f]*\\[ \t]*(\r\n?|\n)")
#: What the parser of another reader of Python cannot take is refused with its reason, and nothing is changed.
_REFUSALS = ("too deeply nested", "is nested too deeply", "is unchanged: it defines its own ")


def rewritten(data: bytes, settings: Settings | None = None, path: str = "train.py") -> Result:
    """What becomes of a file with these bytes that is a project of its own."""
    candidate = Candidate(path, data, False)
    facts = Indexer(_ENGINE)(candidate)
    if isinstance(facts, Skipped | Failed):
        return facts
    project: Project = _ENGINE.build([facts], {}, frozenset())
    return Rewriter(_ENGINE, project, settings or Settings())(candidate)


def hold(data: bytes, neutral: Mapping[str, str] | None = None) -> None:
    """Every property of the rewriter; an AssertionError says which one does not hold for ``data``.

    ``neutral`` are texts of statements, by the name that they bind, which a rewrite leaves as they are.
    """
    # The imports of the shim are the simpler half: one source in four is enough for them.
    for settings in (Settings(), Settings(to="shim"))[: 1 if zlib.crc32(data) % 4 else 2]:
        result = rewritten(data, settings)
        if isinstance(result, Skipped | Failed):
            _refused_rightly(data, result)
            continue
        after = result.source if isinstance(result, Changed) else data
        assert compiles(after) or not compiles(data), f"{settings.to}: the output does not compile:\n{_shown(after)}"
        _in_range(result.findings, data)
        _the_same_again(after, result.findings, settings)
        if compiles(data):
            kept.hold(text_of(data), text_of(after), result.findings, neutral or {})


def compiles(data: bytes) -> bool:
    """Whether Python takes ``data`` as a source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "train.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return False
    return True


def text_of(data: bytes) -> str:
    """The text of a source, with line feeds."""
    return decode(data).text.replace("\r\n", "\n").replace("\r", "\n")


def _refused_rightly(data: bytes, result: Skipped | Failed) -> None:
    reason = result.error if isinstance(result, Failed) else result.reason
    assert "internal error" not in reason, reason
    # libcst keeps no carriage return among line feeds and no form feed before a statement: such a file is refused.
    is_odd = reason.startswith("cannot be reproduced exactly") and re.search(rb"\r(?!\n)", data)
    is_odd = is_odd or ("a form feed precedes a statement" in reason and b"\f" in data)
    is_odd = is_odd or (reason.startswith("cannot be decoded") and not _is_utf8(data))
    is_odd = is_odd or (reason.endswith("after a line continuation") and data.rstrip(b"\r\n").endswith(b"\\"))
    is_unknown = compiles(data) and (_annotates_in_parentheses(data) or _OPENED_BY_A_BACKSLASH.search(data) is not None)
    is_odd = is_odd or ("parser error" in reason and is_unknown)
    assert not compiles(data) or is_odd or reason.startswith(_REFUSALS), f"a valid source is refused: {reason}"


def _annotates_in_parentheses(data: bytes) -> bool:
    """Whether there is a ``(name): type``, which libcst has no node for."""
    annotated = [node for node in ast.walk(ast.parse(data)) if isinstance(node, ast.AnnAssign)]
    return any(isinstance(node.target, ast.Name) and not node.simple for node in annotated)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _in_range(findings: tuple[Finding, ...], data: bytes) -> None:
    lines = text_of(data).split("\n")
    for found in findings:
        where = f"{found.rule} at {found.line}:{found.column}-{found.end_line}:{found.end_column}"
        assert 1 <= found.line <= found.end_line <= len(lines), where
        assert 0 <= found.column <= len(lines[found.line - 1]) + 1, where
        assert 0 <= found.end_column <= len(lines[found.end_line - 1]) + 1, where


def _the_same_again(after: bytes, findings: tuple[Finding, ...], settings: Settings) -> None:
    again = rewritten(after, settings)
    assert isinstance(again, Changed | Unchanged), f"a second run: {again}"
    if isinstance(again, Changed):
        pair = [_shown(some).splitlines() for some in (after, again.source)]
        # Code that the first run has rewritten may show more that is left to do, never more that can be rewritten.
        pair = [[line for line in lines if "TODO(fsdp-migrate" not in line] for lines in pair]
        changes = list(difflib.unified_diff(*pair, "once", "twice", "", "", 3, ""))[3:]
        if not changes:
            return
        first = next((line for line in changes if line[:1] in "+-"), "")
        raise AssertionError(f"a second run changes it, {first.strip()[:60]}\n" + "\n".join(changes))
    manual, left = (
        {found.rule for found in some if found.level is Level.MANUAL} for some in (findings, again.findings)
    )
    assert manual <= left, f"a second run no longer reports {manual - left}:\n{_shown(after)}"


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
