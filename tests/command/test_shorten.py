"""A statement has one entry of a rule, and what repeats is counted, in every report for people; JSON has all."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.check import sarif
from fsdp_migrate.report.check import text as check_text
from fsdp_migrate.report.rewrite import html_report, json_report, markdown_report, terminal_report, text_report
from fsdp_migrate.report.shorten import MOST_NOTES, shortened
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Unchanged


def note(line: int, message: str = "a note", rule: str = "FSDP314", level: Level = Level.INFO) -> Finding:
    return Finding(rule, "partial-load", "a.py", line, 0, line, 9, level, message, "")


NOTES = tuple(note(line) for line in range(1, 16))


def result(*findings: Finding) -> RunResult:
    return RunResult(("a.py",), False, 1, (FileOutcome("a.py", Path("/a.py"), b"x\n" * 20, Unchanged(findings)),))


def on_terminal(run: RunResult) -> str:
    console = Console(file=io.StringIO(), width=200)
    terminal_report.show(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


REPORTS = {
    "text": lambda run: "\n".join(text_report.lines(run)),
    "terminal": on_terminal,
    "markdown": markdown_report.render,
    "html": lambda run: re.sub(r"<[^>]+>", "", html_report.render(run)),
}


def test_what_one_rule_says_of_two_lines_of_one_statement_is_one_entry() -> None:
    first, second = (replace(note(line, f"about line {line}", level=Level.REVIEW), statement=3) for line in (4, 6))
    shown, rest = shortened([first, second])
    assert [(entry.line, entry.message) for entry in shown] == [(4, "about line 4. Also: about line 6")]
    assert not rest


def test_places_of_one_line_that_are_left_by_hand_are_counted() -> None:
    places = [replace(note(3, "left", level=Level.MANUAL), column=column) for column in (0, 8)]
    assert [entry.message for entry in shortened(places)[0]] == ["left (2 times here)"]
    reviews = [replace(entry, level=Level.REVIEW) for entry in places]
    assert [entry.message for entry in shortened(reviews)[0]] == ["left"]


@pytest.mark.parametrize("name", REPORTS)
def test_the_thirteenth_note_of_a_rule_is_counted(name: str) -> None:
    page = REPORTS[name](result(*NOTES))
    assert page.count("a note") == MOST_NOTES == 12
    assert "3 more of FSDP314 in this file" in page
    assert "more of" not in REPORTS[name](result(*NOTES[:12]))


@pytest.mark.parametrize("level", [Level.REVIEW, Level.MANUAL])
def test_what_is_to_be_done_is_never_counted(level: Level) -> None:
    shown, rest = shortened([replace(found, level=level) for found in NOTES])
    assert (len(shown), rest) == (15, [])


def test_rules_and_files_are_counted_apart() -> None:
    other = [replace(found, path="b.py") for found in NOTES] + [replace(found, rule="FSDP121") for found in NOTES[:12]]
    shown, rest = shortened([*NOTES, *other])
    assert len(shown) == 36
    assert [(more.path, more.rule, more.number) for more in rest] == [("a.py", "FSDP314", 3), ("b.py", "FSDP314", 3)]


def test_a_statement_has_one_entry_of_a_rule_and_loses_no_message() -> None:
    twice = [note(3, text, level=Level.MANUAL) for text in ("first", "second")] + [note(3, "first", "FSDP206")]
    shown, _ = shortened(twice)
    assert [(found.rule, found.message) for found in shown] == [
        ("FSDP314", "first. Also: second"),
        ("FSDP206", "first"),
    ]
    assert shortened([note(3), note(3)])[0] == [note(3)]


def test_programs_get_all() -> None:
    assert len(json.loads(json_report.render(result(*NOTES)))["findings"]) == 15
    told = tuple(Told(found, False, False, str(found.line)) for found in NOTES)
    checked = CheckResult(
        paths=("a.py",),
        min_level=Level.SAFE,
        sources=1,
        checkpoints=0,
        told=told,
        known=0,
        below=0,
        skipped=(),
        errors=(),
    )
    assert len(json.loads(sarif.render(checked))["runs"][0]["results"]) == 15
    assert check_text.render(checked).count("a note") == 12
    assert "a.py: 3 more of FSDP314 in this file" in check_text.render(checked)
