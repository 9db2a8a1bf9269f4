"""Every report is a function of a result, whatever stands in the user's code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fsdp_migrate.moved import follow
from fsdp_migrate.outcome import FileOutcome, RunResult, exit_code
from fsdp_migrate.report import json as json_report
from fsdp_migrate.report import markdown, summary, terminal, text
from fsdp_rules.finding import Changed, Failed, Finding, Level, Result, Skipped, Unchanged

NASTY = "x[red]y[/red] \x1b[31m | `a` \udcff\n<b>"


def finding(level: Level, line: int = 3, path: str = "a.py", message: str = NASTY) -> Finding:
    return Finding("FSDP101", "constructor-call", path, line, 4, line, 9, level, message, "do [bold]this[/bold]")


def run(*results: Result, diff: bool = False, refused: tuple[str, ...] = ()) -> RunResult:
    names = [f"{letter}.py" for letter in "abcd"[: len(results)]]
    outcomes = [FileOutcome(name, Path("/", name), b"", result) for name, result in zip(names, results, strict=True)]
    return RunResult(("src dir",), diff, 10, tuple(outcomes), refused)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (run(), 0),
        (run(Unchanged(), Skipped("why")), 0),
        (run(Changed(b"", (finding(Level.SAFE), finding(Level.REVIEW), finding(Level.INFO)))), 0),
        (run(Changed(b"", (finding(Level.SAFE), finding(Level.MANUAL)))), 1),
        (run(Unchanged((finding(Level.MANUAL),)), diff=True), 1),
        (run(Failed("why"), Unchanged((finding(Level.MANUAL),))), 2),
        (run(Changed(b""), refused=("a.py",)), 2),
    ],
)
def test_exit_codes(result: RunResult, code: int) -> None:
    assert exit_code(result) == code


@pytest.mark.parametrize(
    ("result", "ending"),
    [
        (run(), "10 files read, no FSDP1 code found. Nothing to do."),
        (run(Changed(b""), diff=True), "1 would be rewritten. Next: fsdp-migrate rewrite 'src dir'"),
        (run(Changed(b"")), "Next: git diff, then train a few steps and compare the losses."),
        (run(Changed(b"", (finding(Level.MANUAL),))), "Next: grep -rn 'TODO(fsdp-migrate' 'src dir'"),
        (run(Unchanged((finding(Level.MANUAL),))), "do these by hand, then run the same command again."),
        (run(Failed("x")), "1 file could not be done. Next: mend these files, then run the same command again."),
        (run(Unchanged((finding(Level.REVIEW),))), "named above. Nothing to do."),
    ],
)
def test_the_summary_names_the_next_step(result: RunResult, ending: str) -> None:
    assert summary.paragraph(result).endswith(ending)


def test_plain_lines_hold_no_control_characters() -> None:
    result = run(Changed(b"", (finding(Level.MANUAL),)), Skipped("a\x07b"), Failed("c\rd"))
    lines = [*text.lines(result), *text.error_lines(result)]
    assert "a.py:3:5: FSDP101 manual: x[red]y[/red] \\x1b[31m | `a` \\udcff\\n<b>" in lines
    assert "b.py: skipped: a\\x07b" in lines
    assert lines[-1] == "c.py: error: c\\rd"
    assert all(line.isprintable() for line in lines)


def test_a_terminal_shows_user_code_as_it_is() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, color_system="truecolor")
    terminal.show(run(Changed(b"", (finding(Level.SAFE), finding(Level.MANUAL)))), console)
    shown = stream.getvalue()
    assert "x[red]y[/red] \\x1b[31m | `a`" in shown
    assert "do [bold]this[/bold]" in shown
    assert shown.index("constructor-call") < shown.index("Left to do by hand") < shown.index("10 files read")


def test_a_coloured_diff_keeps_one_line_a_line() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=20, color_system="standard")
    terminal.show_diff([b"@@ -1 +1 @@\n", b"-[bold]" + b"x" * 50 + b"\n", b"+\xff\x1b]0;title\x07\r\n"], console)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert f"-[bold]{'x' * 50}" in lines[1]
    assert "\\xff\\x1b]0;title\\x07" in lines[2]


def test_markdown_escapes_what_it_quotes() -> None:
    shown = markdown.render(run(Changed(b"", (finding(Level.MANUAL),)), Failed("a|b"), diff=True))
    assert "- `a.py:3` FSDP101: x\\[red\\]y\\[/red\\] \\\\x1b\\[31m \\| \\`a\\` \\\\udcff\\\\n\\<b\\>" in shown
    assert "## Files that would be rewritten\n\n- `a.py`\n" in shown
    assert "## Files that could not be done\n\n- `b.py`: a\\|b\n" in shown


def test_json_is_json_whatever_it_holds() -> None:
    content = json.loads(json_report.render(run(Changed(b"", (finding(Level.MANUAL),)), Failed("why"), Skipped("so"))))
    assert content["findings"][0]["message"] == NASTY
    assert content["findings"][0]["level"] == "manual"
    assert content["errors"] == [{"path": "b.py", "message": "why"}]
    assert content["skipped"] == [{"path": "c.py", "message": "so"}]


def test_findings_are_in_the_order_of_the_files() -> None:
    both = (finding(Level.MANUAL, 9), finding(Level.SAFE, 2))
    assert [found.line for found in run(Changed(b"", both)).findings] == [2, 9]


@pytest.mark.parametrize(
    ("before", "after", "line", "new"),
    [
        (b"a\nb\nc\n", b"a\nb\nc\n", 2, 2),
        (b"a\nb\nc\n", b"import x\na\n# TODO\nb\nc\n", 2, 4),
        (b"a\nb\nc\n", b"b\nc\n", 3, 2),
        (b"a\nb\nc\n", b"a\nx\ny\nz\nc\n", 2, 2),
        (b"a\nb\nb2\nc\n", b"a\nx\nc\n", 3, 2),
        (b"a\nb\nc\n", b"a\nc\n", 2, 2),
        (b"a", b"b", 1, 1),
    ],
)
def test_findings_follow_their_lines(before: bytes, after: bytes, line: int, new: int) -> None:
    (moved,) = follow([finding(Level.MANUAL, line)], before, after)
    assert (moved.line, moved.end_line, moved.column) == (new, new, 4)
