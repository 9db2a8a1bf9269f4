"""Every report is a function of a result, whatever stands in the user's code."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline.moved_lines import follow
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult, exit_code
from fsdp_migrate.report import summary
from fsdp_migrate.report.rewrite import changes, guide, html_report
from fsdp_migrate.report.rewrite import json_report as json_report
from fsdp_migrate.report.rewrite import markdown_report as markdown
from fsdp_migrate.report.rewrite import terminal_report as terminal
from fsdp_migrate.report.rewrite import text_report as text
from fsdp_migrate.report.rulebook import pages
from fsdp_migrate.report.what_to_test import what_to_test
from fsdp_migrate.tree.torch_release import TorchRelease
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged

NASTY = "x[red]y[/red] \x1b[31m | `a` \udcff\n<b>"


def finding(level: Level, line: int = 3, path: str = "a.py", message: str = NASTY) -> Finding:
    return Finding("FSDP101", "constructor-call", path, line, 4, line, 9, level, message, "do [bold]this[/bold]")


def run(*results: Result, diff: bool = False, refused: tuple[str, ...] = ()) -> RunResult:
    names = [f"{letter}.py" for letter in "abcd"[: len(results)]]
    outcomes = [FileOutcome(name, Path("/", name), b"", result) for name, result in zip(names, results, strict=True)]
    return RunResult(("src dir",), diff, 10, tuple(outcomes), refused, TorchRelease((2, 6), "setup.py"))


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
        (run(Changed(b""), diff=True), "(setup.py). Next: fsdp-migrate rewrite 'src dir'"),
        (run(Changed(b"")), "compare the losses; fsdp-migrate undo 'src dir' restores the old files."),
        (run(Changed(b"", (finding(Level.MANUAL),))), "Next: fsdp-migrate next 'src dir'"),
        (run(Unchanged((finding(Level.MANUAL),))), "do these by hand, then run the same command again."),
        (run(Failed("x")), "1 file could not be processed. Next: fix these files, then run the same command again."),
        (run(Unchanged((finding(Level.REVIEW),))), "stated assumption. Nothing to do."),
    ],
)
def test_the_summary_names_the_next_step(result: RunResult, ending: str) -> None:
    assert summary.paragraph(result).endswith(ending)


TODO = b"# TODO(fsdp-migrate FSDP101): why\n"


@pytest.mark.parametrize(
    ("before", "after", "diff", "said"),
    [
        (b"FSDP\n", TODO + b"FSDP\n", True, "1 with findings, would add 1 TODO comment. "),
        (
            b"f(FSDP)\ng\n",
            TODO + TODO + b"f(FSDP)\n" + TODO + b"g\n",
            False,
            "1 with findings, 3 TODO comments added. ",
        ),
        (TODO + b"FSDP\n", TODO + TODO + b"# a further line\nFSDP\n", True, "would add 1 TODO comment. "),
        (b"FSDP\nold\n", TODO + b"FSDP\nnew\n", True, "1 with findings, 1 would be rewritten. "),
        (
            b'[\n"FSDP\\n",\n"x"]',
            b'[\n"# TODO(fsdp-migrate FSDP101): y\\n",\n"FSDP\\n",\n"x"]',
            True,
            "would add 1 TODO",
        ),
    ],
)
def test_a_rewrite_that_adds_comments_alone_says_so(before: bytes, after: bytes, diff: bool, said: str) -> None:
    result = run(Changed(after, (finding(Level.MANUAL),)), diff=diff)
    outcome = dataclasses.replace(result.outcomes[0], before=before)
    result = dataclasses.replace(result, outcomes=(outcome,))
    assert said in summary.paragraph(result)
    assert "Written for torch" not in summary.paragraph(result) or "rewritten" in said
    first = next(text.lines(result))
    assert ("TODO" in first) == ("TODO" in said)


@pytest.mark.parametrize("diff", [True, False])
def test_a_new_dependency_is_named_in_every_report(diff: bool) -> None:
    """The helpers are of another distribution, without which the output does not train."""
    needs, has = b"    import fsdp_compat\n", b"from fsdp_compat import FSDP\n"
    safe = (finding(Level.SAFE),)
    result = run(
        Changed(needs, safe), Changed(has, safe), Changed(b"# import fsdp_compat\nfsdp_compat = 1\n"), diff=diff
    )
    said = "Install fsdp-compat on the machines that train: 2 files now import fsdp_compat. "
    assert said in summary.paragraph(result)
    step = "Install fsdp-compat on the machines that train: 2 files now import fsdp_compat."
    assert guide.next_steps(result) == [step]
    assert step in markdown.render(result) and step in html_report.render(result)
    assert json.loads(json_report.render(result))["new_imports_of_fsdp_compat"] == ["a.py", "b.py"]
    notebook = Changed(b'{"cells": [{"source": [\n   "import fsdp_compat\\n"]}]}')
    assert "1 file now imports fsdp_compat" in summary.paragraph(run(notebook))
    already = dataclasses.replace(result.outcomes[1], before=has)
    assert "fsdp-compat" not in summary.paragraph(dataclasses.replace(result, outcomes=(already,)))


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
    assert shown.index("FSDP101 manual") < shown.index("1 safe") < shown.index("10 files read")


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
    assert "## Files that could not be processed\n\n- `b.py`: a\\|b\n" in shown


def test_json_is_json_whatever_it_holds() -> None:
    content = json.loads(json_report.render(run(Changed(b"", (finding(Level.MANUAL),)), Failed("why"), Skipped("so"))))
    assert content["findings"][0]["message"] == NASTY
    assert content["findings"][0]["level"] == "manual"
    assert content["errors"] == [{"path": "b.py", "message": "why"}]
    assert content["skipped"] == [{"path": "c.py", "message": "so"}]


def test_findings_are_in_the_order_of_the_files() -> None:
    both = (finding(Level.MANUAL, 9), finding(Level.SAFE, 2))
    assert [found.line for found in run(Changed(b"", both)).findings] == [2, 9]


BEFORE = b"import a\n" + b"x = 1\n" * 9 + b"with FSDP.full(m):\n    use(m)\n" + b"y = 2\n" * 9 + b"FSDP.by_hand()\n"
AFTER = BEFORE.replace(b"with FSDP.full(m):\n    use(m)\n", b"get(m)\nuse(m)\n")


def changed(diff: bool, *findings: Finding) -> RunResult:
    placed = findings if diff else follow(findings, BEFORE, AFTER)
    file = FileOutcome("a.py", Path("/a.py"), BEFORE, Changed(AFTER, tuple(placed)))
    return RunResult(("a.py",), diff, 1, (file,))


@pytest.mark.parametrize("diff", [True, False])
def test_findings_stand_with_the_lines_that_they_changed(diff: bool) -> None:
    result = changed(diff, finding(Level.SAFE, 11), finding(Level.REVIEW, 12), finding(Level.INFO, 1))
    untold, told = changes.Reader(result.outcomes[0], diff).changes()
    assert (untold.hunk, [found.level for found in untold.findings]) == (None, [Level.INFO])
    assert [found.level for found in told.findings] == [Level.SAFE, Level.REVIEW]
    assert told.hunk is not None
    assert told.hunk.header == "@@ -8,8 +8,8 @@"
    assert [line for line in told.hunk.lines if line[0] != " "] == [
        "-with FSDP.full(m):",
        "-    use(m)",
        "+get(m)",
        "+use(m)",
    ]


def test_what_stays_by_hand_is_quoted() -> None:
    result = changed(True, finding(Level.MANUAL, 22))
    (change,) = changes.Reader(result.outcomes[0], True).changes()
    assert change.hunk == changes.Hunk(21, 21, (" y = 2", " FSDP.by_hand()"))
    assert change.hunk.is_excerpt


def test_a_comment_above_a_statement_belongs_to_it() -> None:
    before = b"a\n" * 8 + b"b\n"
    file = FileOutcome(
        "a.py", Path("/a.py"), before, Changed(b"a\n" * 8 + b"# TODO\nb\n", (finding(Level.MANUAL, 10),))
    )
    (change,) = changes.Reader(file, False).changes()
    assert change.hunk is not None
    assert change.hunk.lines[-2:] == ("+# TODO", " b")


def test_quoted_code_is_readable_whatever_the_file_holds() -> None:
    before = "# coding: latin-1\n\t\x1b[31m\u00e9 = 1\r\n".encode("latin-1") + b"z" * 9999 + b"\n"
    file = FileOutcome("a.py", Path("/a.py"), before, Unchanged((finding(Level.MANUAL, 2),)))
    (change,) = changes.Reader(file, False).changes()
    assert change.hunk is not None
    assert change.hunk.lines[1:] == (" " * 9 + "\\x1b[31m\u00e9 = 1", f" {'z' * 400} … (9599 more characters)")


def test_of_a_very_long_line_the_part_that_changed_is_shown() -> None:
    before, after = (b"a" * 5000 + word + b"z" * 5000 + b"\n" for word in (b"FSDP", b"fully_shard"))
    file = FileOutcome("a.py", Path("/a.py"), before, Changed(after, (finding(Level.REVIEW, 1),)))
    (change,) = changes.Reader(file, False).changes()
    assert change.hunk is not None
    assert change.hunk.lines == (
        f"-(4900 characters) … {'a' * 100}FSDP{'z' * 296} … (4704 more characters)",
        f"+(4900 characters) … {'a' * 100}fully_shard{'z' * 289} … (4711 more characters)",
    )


def test_markdown_has_assumptions_tests_and_code_for_what_is_to_be_read() -> None:
    result = changed(False, finding(Level.REVIEW, 11, message="a"), finding(Level.REVIEW, 12, message="a"))
    shown = markdown.render(result)
    assert "- a. What to do: do \\[bold\\]this\\[/bold\\]\n  - `a.py:11` FSDP101\n  - `a.py:12` FSDP101\n" in shown
    assert "## What to test\n\n- Train the first steps" in shown
    assert "```diff\n@@ -8,8 +8,8 @@\n x = 1\n" in shown


def test_a_fence_in_quoted_code_ends_nothing() -> None:
    before = b'"""\n````\n# no heading\n"""\n'
    file = FileOutcome("a.py", Path("/a.py"), before, Unchanged((finding(Level.MANUAL, 3),)))
    assert "`````diff\n@@ " in markdown.render(RunResult(("a.py",), False, 1, (file,)))


def test_json_has_assumptions_tests_and_changes() -> None:
    result = changed(False, finding(Level.INFO, 1), finding(Level.REVIEW, 11), finding(Level.REVIEW, 12))
    content = json.loads(json_report.render(result))
    (assumption,) = content["assumptions"]
    assert assumption["places"] == [{"path": "a.py", "line": 11}, {"path": "a.py", "line": 12}]
    assert content["what_to_test"][0]["rules"] == ["FSDP101"]
    (change,) = content["changes"]
    assert (change["findings"], change["rules"], change["before_line"]) == ([1, 2], ["FSDP101"], 8)
    assert change["before"][3:5] == ["with FSDP.full(m):", "    use(m)"]
    assert change["after"][3:5] == ["get(m)", "use(m)"]


def test_every_rule_says_what_to_test() -> None:
    assert all(what_to_test(page.id).endswith(".") for page in pages())
    assert what_to_test("FSDP104") != what_to_test("FSDP101") == what_to_test("FSDP199")


def test_nothing_is_tested_for_what_is_only_worth_knowing() -> None:
    assert guide.checks(run(Unchanged((finding(Level.INFO),)))) == []


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
    kept = before.splitlines()[line - 1] == after.splitlines()[new - 1]
    assert (moved.line, moved.end_line, moved.column) == (new, new, 4 if kept else 0)


def test_a_finding_is_never_at_a_closing_bracket_of_the_new_lines() -> None:
    before = b"a = F(\n  b,\n  c,\n)\nd\n"
    after = b"  if (\n    b\n  ):\n    c\nd\n"
    (moved,) = follow([finding(Level.REVIEW, 3)], before, after)
    assert (moved.line, moved.column) == (2, 4)


def state_finding(level: Level, path: str = "save.py") -> Finding:
    return Finding("FSDP301", "state-dict-type", path, 7, 0, 7, 9, level, "the kind is unknown", "")


@pytest.mark.parametrize(("verbosity", "said"), [("", True), ("stats", True), ("quiet", False)])
def test_the_torch_that_is_assumed_is_in_the_first_line(verbosity: str, said: bool) -> None:
    known = run(Changed(b"", (finding(Level.SAFE),)))
    unknown = dataclasses.replace(known, torch=TorchRelease())
    first = next(text.lines(unknown, verbosity))
    assert first.startswith("The project requires no torch version, so the output is for torch 2.6, ") is said
    assert "Written for torch 2.6 (no file requires one)" in summary.paragraph(unknown)
    assert not next(text.lines(known, verbosity)).startswith("No file")


def test_a_project_between_fsdp1_and_fsdp2_is_told_so_first() -> None:
    result = run(Changed(b"", (finding(Level.SAFE),)), Unchanged((state_finding(Level.MANUAL),)))
    first = next(text.lines(result))
    assert first.startswith("1 FSDP1 call could not be rewritten (save.py) and will not work with the migrated models")
    assert first.endswith("use `fsdp-migrate rewrite --to shim`, which runs all of this project through fsdp_compat.")
    assert guide.next_steps(result)[0] == first
    assert json.loads(json_report.render(result))["between_fsdp1_and_fsdp2"] == first
    console = Console(file=io.StringIO(), width=200)
    terminal.show(result, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("1 FSDP1 call could not be rewritten")


def test_the_shim_is_offered_for_what_it_carries_alone() -> None:
    copied = Finding("FSDP211", "copies", "ema.py", 3, 0, 3, 9, Level.MANUAL, "deepcopy raises", "")
    result = run(Changed(b"", (finding(Level.SAFE),)), Unchanged((copied, state_finding(Level.MANUAL))))
    first = next(text.lines(result))
    assert first.endswith("--to shim`, which also leaves 1 of the 2 manual findings (FSDP211).")


@pytest.mark.parametrize(
    "result",
    [
        run(Changed(b"", (finding(Level.SAFE), state_finding(Level.REVIEW)))),
        run(Unchanged((finding(Level.MANUAL), state_finding(Level.MANUAL)))),
        run(
            Changed(b"", (finding(Level.SAFE), Finding("FSDP902", "private-api", "a.py", 1, 0, 1, 1, Level.MANUAL, "")))
        ),
    ],
)
def test_a_project_that_moved_as_a_whole_or_not_at_all(result: RunResult) -> None:
    assert "could not move" not in "\n".join(text.lines(result))


@pytest.mark.parametrize("name", ["::set-output name=x::y.py", "  ::error::x.py", "##[set-output name=x]y.py"])
def test_no_name_of_a_file_is_a_command_for_a_runner(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model, bogus=1)\n"
    )
    reports = ["--report", "report.md", "--report", "report.json", "--report", "report.html"]
    for arguments in (["check"], ["check", "--format", "github"], ["rewrite", *reports]):
        main([*arguments, "./", "--", name])
        out, err = capsys.readouterr()
        assert out
        for line in (out + err).splitlines():
            # A line that is one command is not searched for another.
            if not line.startswith(("::error file=", "::notice file=")):
                assert "##[" not in line
                assert not line.lstrip().startswith("::")
    assert "::set-output" not in [line.lstrip("#- ")[:12] for line in Path("report.md").read_text().splitlines()]


def test_two_findings_that_are_one_comment_are_one_place() -> None:
    same = [
        Finding("FSDP207", "name", "a.py", 3, column, 3, column + 4, Level.MANUAL, "a name", "") for column in (4, 9)
    ]
    other = Finding("FSDP207", "name", "a.py", 5, 4, 5, 8, Level.MANUAL, "a name", "")
    assert "2 places left to do by hand." in summary.paragraph(run(Unchanged((*same, other))))
    assert "1 place left to do by hand." in summary.paragraph(run(Unchanged(tuple(same))))
