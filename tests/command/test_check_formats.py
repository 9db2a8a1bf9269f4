"""What ``check`` gives to programs: each format is read back by a reader that is not ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from fsdp_migrate.cli import main

Capture = pytest.CaptureFixture[str]
FORMATS = ("text", "json", "sarif", "github", "junit")
#: Found by ``WordEngine`` in a file whose name is a bad one in every format.
BAD_NAME = 'a, b:c%20 "é"\n::error::<x>&\x1b[31m\udcff.py'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word_engine: object) -> Path:
    """A finding of each level, a file that fails, and a pointer of Git LFS."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / BAD_NAME).write_text("FSDP(model)\n")
    (tmp_path / "src" / "plain.py").write_text("x = 1\nif x: FSDP.by_hand\nFSDP.assumed\n")
    (tmp_path / "src" / "bad.py").write_text("FSDP(\n")
    (tmp_path / "src" / "big.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    return tmp_path


def _output(capsys: Capture, form: str, *arguments: str, code: int) -> str:
    capsys.readouterr()
    assert main(["check", "--format", form, *arguments]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out), "control characters"
    out.encode("utf-8")
    return out


def _sarif(text: str) -> dict[str, Any]:
    """The only run, after the official schema, as a model of pydantic, has found nothing wrong."""
    content = json.loads(text)
    Sarif.model_validate(content)
    (run,) = content["runs"]
    return run


def test_the_schema_would_find_a_mistake(project: Path, capsys: Capture) -> None:
    content = json.loads(_output(capsys, "sarif", "src", code=2))
    content["runs"][0]["results"][0]["level"] = "fatal"
    content["runs"][0]["results"][1]["rule"] = {"identifier": "FSDP101"}
    with pytest.raises(ValueError, match=r"2 validation errors"):
        Sarif.model_validate(content)


def test_sarif(project: Path, capsys: Capture) -> None:
    run = _sarif(_output(capsys, "sarif", "src", code=2))
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["id"] == "FSDP101"
    assert rule["help"]["markdown"].startswith("# FSDP101 constructor-call\n")
    assert "## Before" in rule["help"]["markdown"]
    assert rule["shortDescription"]["text"].endswith(".")
    assert [result["level"] for result in run["results"]] == ["warning", "error", "warning"]
    assert {result["ruleIndex"] for result in run["results"]} == {0}
    where = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert where[1] == {
        "artifactLocation": {"uri": "src/plain.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 2, "startColumn": 7, "endLine": 2, "endColumn": 11},
    }
    assert unquote(where[0]["artifactLocation"]["uri"], errors="surrogateescape") == f"src/{BAD_NAME}"
    assert run["results"][1]["message"]["text"] == "native [bold]manual[/bold]. do it."
    prints = [result["partialFingerprints"]["fsdpMigrate/v1"] for result in run["results"]]
    assert len(set(prints)) == 3
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["exitCode"] == 2
    assert [note["level"] for note in invocation["toolExecutionNotifications"]] == ["error", "note"]


def test_sarif_of_every_rule_and_of_files_elsewhere(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    projects = Path(__file__).parents[2] / "fixtures" / "projects"
    run = _sarif(_output(capsys, "sarif", str(projects), code=1))
    assert len(run["tool"]["driver"]["rules"]) > 15
    for result in run["results"]:
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")


def test_formats_of_a_clean_check(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    run = _sarif(_output(capsys, "sarif", ".", code=0))
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is True
    (suite,) = JUnitXml.fromstring(_output(capsys, "junit", ".", code=0).encode())
    (case,) = suite
    assert case.is_passed
    assert "::" not in _output(capsys, "github", ".", code=0)
    content = json.loads(_output(capsys, "json", ".", code=0))
    assert content["exit_code"] == 0
    assert content["findings"] == []


def test_junit(project: Path, capsys: Capture) -> None:
    text = _output(capsys, "junit", "--min-level", "review", "src", code=2)
    (suite,) = JUnitXml.fromstring(text.encode())
    outcomes = {(case.classname, case.name): [type(entry) for entry in case.result] for case in suite}
    assert outcomes == {
        ("src/plain.py", "FSDP101 constructor-call, line 2"): [Failure],
        ("src/plain.py", "FSDP101 constructor-call, line 3"): [Failure],
        ("src/big.pt", "not checked"): [Skipped],
        ("src/bad.py", "could not be checked"): [Error],
    }
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 2, 1, 1)
    assert "1 finding below level review" in text
    all_levels = _output(capsys, "junit", "src", code=2)
    (suite,) = JUnitXml.fromstring(all_levels.encode())
    assert any(case.classname.startswith('src/a, b:c%20 "é"\\n::error::<x>&\\x1b') for case in suite)


def _annotations(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Read as GitHub's runner reads a log: kind, properties and message of each command, every ``%`` code decoded."""
    found = []
    for line in text.splitlines():
        command = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        if command:
            properties = dict(entry.split("=", 1) for entry in command[2].split(","))
            decoded = {name: _decoded(value) for name, value in properties.items()}
            found.append((command[1], decoded, _decoded(command[3])))
    return found


def _decoded(text: str) -> str:
    for code, character in (("%0A", "\n"), ("%0D", "\r"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_github_annotations(project: Path, capsys: Capture) -> None:
    out = _output(capsys, "github", "src", code=2)
    found = _annotations(out)
    assert len(found) == len(out.splitlines()) - 1
    assert [kind for kind, _, _ in found] == ["error", "error", "error", "warning", "error"]
    assert found[1] == (
        "error",
        {
            "file": "src/plain.py",
            "line": "2",
            "endLine": "2",
            "col": "7",
            "endColumn": "11",
            "title": "FSDP101 constructor-call",
        },
        "native [bold]manual[/bold]\ndo it",
    )
    assert found[0][1]["file"].startswith('src/a, b:c%20 "é"\\n::error::<x>&\\x1b')
    assert found[4][1] == {"file": "src/bad.py", "title": "could not be checked"}


def test_json(project: Path, capsys: Capture) -> None:
    content = json.loads(_output(capsys, "json", "--min-level", "manual", "src", code=2))
    assert content["summary"] == {
        "sources": 3,
        "checkpoints": 0,
        "min_level": "manual",
        "failing": 1,
        "below_level": 2,
        "in_baseline": 0,
        "findings_by_rule": {"FSDP101": 1},
        "findings_by_level": {"safe": 0, "review": 0, "manual": 1, "info": 0},
    }
    (finding,) = content["findings"]
    assert (finding["path"], finding["line"], finding["column"]) == ("src/plain.py", 2, 7)
    assert (finding["fails"], finding["kind"], finding["advice"]) == (True, "source", "do it")
    assert [error["path"] for error in content["errors"]] == ["src/bad.py"]
    assert [skipped["path"] for skipped in content["skipped"]] == ["src/big.pt"]


@pytest.mark.parametrize("form", FORMATS)
def test_output_goes_to_a_file_and_text_to_the_log(form: str, project: Path, capsys: Capture) -> None:
    expected = _output(capsys, form, "src", code=2)
    text = _output(capsys, "text", "src", code=2)
    assert _output(capsys, form, "--output", "out.file", "src", code=2) == text
    assert (project / "out.file").read_text(encoding="utf-8") == expected


def test_an_output_that_cannot_be_written(project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.tree import writing

    def replace(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, "replace", replace)
    assert main(["check", "--output", "out.txt", "src"]) == 2
    assert capsys.readouterr().err == "Error: could not write out.txt: No space left on device\n"
    assert main(["check", "--ignore", "FSDP1", "--write-baseline", "known.json", "src/plain.py"]) == 2
    assert "could not write the baseline known.json: No space left on device" in capsys.readouterr().err
