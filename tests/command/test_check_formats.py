"""What ``check`` gives to programs: each format is read back by a reader that is not ours."""

from __future__ import annotations

import json
import re
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from fsdp_migrate.cli import main

Capture = pytest.CaptureFixture[str]
FORMATS = ("text", "json", "sarif", "github", "gitlab", "junit")
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
    assert [kind for kind, _, _ in found] == ["error", "error", "warning", "warning", "warning"]
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
    assert found[0][1] == {"file": "src/bad.py", "title": "could not be checked"}
    assert found[3][1]["file"].startswith('src/a, b:c%20 "é"\\n::error::<x>&\\x1b')


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


def test_gitlab(project: Path, capsys: Capture) -> None:
    issues = json.loads(_output(capsys, "gitlab", "src", code=2))
    assert [issue["severity"] for issue in issues] == ["minor", "major", "minor", "info", "critical"]
    assert issues[1] | {"fingerprint": ""} == {
        "description": "FSDP101: native [bold]manual[/bold]. do it",
        "check_name": "FSDP101",
        "fingerprint": "",
        "severity": "major",
        "location": {"path": "src/plain.py", "lines": {"begin": 2}},
    }
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)


def test_sarif_has_edits_that_make_the_rewrite(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)"
    (tmp_path / "a.py").write_text(source)
    run = _sarif(_output(capsys, "sarif", ".", code=1))
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": f"{tmp_path.as_uri()}/"}}
    (rule,) = [rule for rule in run["tool"]["driver"]["rules"] if rule["id"] == "FSDP101"]
    assert rule["defaultConfiguration"] == {"level": "warning"}
    assert rule["properties"]["tags"] == ["pytorch", "fsdp", "construction"]
    (result,) = [result for result in run["results"] if result["ruleId"] == "FSDP101"]
    ((change,),) = [fix["artifactChanges"] for fix in result["fixes"]]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    assert (region["startLine"], region["startColumn"]) == (1, 1)
    lines = source.split("\n")
    kept = lines[region["endLine"] - 1][region["endColumn"] - 1 :]
    assert main(["rewrite", "--allow-dirty", "a.py"]) == 0
    assert replacement["insertedContent"]["text"] + kept == (tmp_path / "a.py").read_text()
    # With rules left out a rewrite would do less than these edits.
    (tmp_path / "a.py").write_text(source)
    run = _sarif(_output(capsys, "sarif", "--select", "FSDP101", ".", code=1))
    assert "fixes" not in run["results"][0]


def test_addresses_come_from_the_distribution_alone(
    project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _sarif(_output(capsys, "sarif", "src", code=2))["tool"]["driver"]
    assert "informationUri" not in driver
    page = urlsplit(driver["rules"][0]["helpUri"])
    assert page.scheme == "file"
    assert "<h1>FSDP101 constructor-call</h1>" in Path(unquote(page.path)).read_text(encoding="utf-8")
    known = Message()
    known["Project-URL"] = "Repository, https://example.org/fsdp-migrate"
    monkeypatch.setattr("fsdp_migrate.report.offline.metadata", lambda name: known)
    driver = _sarif(_output(capsys, "sarif", "src", code=2))["tool"]["driver"]
    assert driver["informationUri"] == "https://example.org/fsdp-migrate"
    assert driver["rules"][0]["helpUri"] == "https://example.org/fsdp-migrate/blob/HEAD/docs/rules/FSDP101.md"


@pytest.mark.parametrize("arguments", [(), (".",), ("../work",)])
def test_hosts_get_paths_from_the_root_of_the_repository(
    arguments: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "work" / "a.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP(m)\n"
    )
    files = {where["file"] for _, where, _ in _annotations(_output(capsys, "github", *arguments, code=1))}
    assert files == {"work/a.py"}
    assert {one["location"]["path"] for one in json.loads(_output(capsys, "gitlab", *arguments, code=1))} == files
    run = _sarif(_output(capsys, "sarif", *arguments, code=1))
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": f"{tmp_path.as_uri()}/"}}
    artifacts = [one["locations"][0]["physicalLocation"]["artifactLocation"] for one in run["results"]]
    assert {(one["uri"], one["uriBaseId"]) for one in artifacts} == {("work/a.py", "%SRCROOT%")}


def test_a_workflow_gets_a_summary_and_outputs(project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(project / name))
    _output(capsys, "text", "src", code=2)
    assert not (project / "GITHUB_OUTPUT").exists()
    _output(capsys, "github", "src", code=2)
    outputs = (project / "GITHUB_OUTPUT").read_text().splitlines()
    assert outputs == ["exit-code=2", "findings=3", "safe=1", "review=1", "manual=1", "info=0"]
    summary = (project / "GITHUB_STEP_SUMMARY").read_text()
    assert "| FSDP101 | manual | constructor-call | 1 |" in summary
    assert "- src/plain.py:2:7: FSDP101: native \\[bold\\]manual" in summary
    _output(capsys, "github", "src", code=2)
    assert (project / "GITHUB_STEP_SUMMARY").read_text() == summary * 2


@pytest.mark.parametrize("form", FORMATS)
def test_findings_can_be_shown_without_failing(form: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP(m)\n")
    assert main(["check", "--format", form, "--exit-zero", str(tmp_path)]) == 0
    (tmp_path / "a.py").write_text("FSDP(\n")
    assert main(["check", "--format", form, "--exit-zero", str(tmp_path)]) == 2


LEVELS = {
    "manual": ("error", "error", "major"),
    "review": ("warning", "warning", "minor"),
    "safe": ("warning", "warning", "minor"),
    "info": ("note", "notice", "info"),
}


def test_a_level_is_as_loud_in_every_format(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """By place and rule, over findings of all levels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(
        "from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP\n\n"
        "model = FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)\nhandle = model._handle\n"
    )
    content = json.loads(_output(capsys, "json", "--torch", "2.6", ".", code=1))["findings"]
    levels = sorted((found["rule"], found["line"], found["level"]) for found in content)
    assert {level for _, _, level in levels} == LEVELS.keys()
    run = _sarif(_output(capsys, "sarif", "--torch", "2.6", ".", code=1))
    lines = {id(result): result["locations"][0]["physicalLocation"]["region"]["startLine"] for result in run["results"]}
    sarif = sorted((result["ruleId"], lines[id(result)], result["level"]) for result in run["results"])
    assert sarif == sorted((rule, line, LEVELS[level][0]) for rule, line, level in levels)
    annotations = _annotations(_output(capsys, "github", "--torch", "2.6", ".", code=1))
    github = sorted((where["title"].split()[0], int(where["line"]), kind) for kind, where, _ in annotations)
    assert github == sorted((rule, line, LEVELS[level][1]) for rule, line, level in levels)
    entries = json.loads(_output(capsys, "gitlab", "--torch", "2.6", ".", code=1))
    gitlab = sorted((one["check_name"], one["location"]["lines"]["begin"], one["severity"]) for one in entries)
    assert gitlab == sorted((rule, line, LEVELS[level][2]) for rule, line, level in levels)
