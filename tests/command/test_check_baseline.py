"""What a project knows of already does not fail its check, wherever its code moves; what is new does."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word_engine: object) -> Path:
    """A file with three findings, two of them alike, and a baseline that has them; also the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("m = FSDP(model)\nFSDP.by_hand()\nm = FSDP(model)\n")
    assert main(["check", "--write-baseline", "known.json", "src"]) == 0
    return tmp_path


def test_known_findings_do_not_fail(project: Path, capsys: Capture) -> None:
    assert main(["check", "--write-baseline", "known.json", "src"]) == 0
    assert capsys.readouterr().out == (
        "3 findings written to known.json. Next: fsdp-migrate check --baseline known.json src\n"
    )
    assert main(["check", "--baseline", "known.json", "src"]) == 0
    assert capsys.readouterr().out == (
        "1 source file and 0 checkpoints checked, no findings. 3 findings known from the baseline.\n"
    )
    assert main(["check", "src"]) == 1


def test_the_command_that_comes_next_works_as_it_is_printed(project: Path, capsys: Capture) -> None:
    (project / "two words").mkdir()
    (project / "two words" / "b.py").write_text("FSDP.by_hand()\n")
    assert main(["check", "--min-level", "manual", "--write-baseline", "all of it.json", "src", "two words"]) == 0
    command = shlex.split(capsys.readouterr().out.partition("Next: ")[2])
    assert command[0] == "fsdp-migrate"
    assert main(command[1:]) == 0


def test_moved_and_indented_code_is_known(project: Path) -> None:
    moved = "import os\n\n\ndef f():\n    FSDP.by_hand()\n    m =  FSDP(model)\n    m = FSDP(model)\n"
    (project / "src" / "a.py").write_text(moved)
    assert main(["check", "--baseline", "known.json", "src"]) == 0


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("m = FSDP(model)\nFSDP.by_hand()\nm = FSDP(other)\n", 3),
        ("m = FSDP(model)\nm = FSDP(model)\nm = FSDP(model)\nFSDP.by_hand()\n", 3),
        ("FSDP.by_hand()\nFSDP.by_hand()\n", 2),
    ],
    ids=["changed", "one more alike", "one more of a rule"],
)
def test_new_findings_fail(source: str, line: int, project: Path, capsys: Capture) -> None:
    (project / "src" / "a.py").write_text(source)
    capsys.readouterr()
    assert main(["check", "--baseline", "known.json", "src"]) == 1
    out = capsys.readouterr().out
    assert out.count("src/a.py:") == 1
    assert f"src/a.py:{line}:" in out


def test_the_same_line_in_another_file_is_new(project: Path) -> None:
    (project / "src" / "b.py").write_text("m = FSDP(model)\n")
    assert main(["check", "--baseline", "known.json", "src"]) == 1


def test_where_the_check_is_started_does_not_matter(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["check", "--baseline", "known.json", str(project)]) == 0
    monkeypatch.chdir(project / "src")
    assert main(["check", "--baseline", "../known.json", "."]) == 0
    (project / "pyproject.toml").write_text('[tool.fsdp-migrate]\nbaseline = "known.json"\n')
    assert main(["check", "a.py"]) == 0
    # Writing one starts from nothing.
    assert main(["check", "--write-baseline", "../again.json", "."]) == 0
    assert (project / "again.json").read_bytes() == (project / "known.json").read_bytes()


def test_a_baseline_is_sorted_and_has_no_lines(project: Path) -> None:
    content = json.loads((project / "known.json").read_text())
    assert content["version"] == 1
    assert [sorted(entry) for entry in content["findings"]] == [["fingerprint", "path", "rule"]] * 3
    assert {entry["path"] for entry in content["findings"]} == {"src/a.py"}
    assert content["findings"] == sorted(content["findings"], key=lambda entry: entry["fingerprint"])


def test_no_baseline_is_written_from_a_check_that_failed(project: Path, capsys: Capture) -> None:
    before = (project / "known.json").read_bytes()
    (project / "src" / "bad.py").write_text("FSDP(\n")
    assert main(["check", "--write-baseline", "known.json", "src"]) == 2
    assert "src/bad.py: error: " in capsys.readouterr().out
    assert (project / "known.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "could not read the baseline known.json: No such file or directory (fsdp-migrate check --write-base"),
        (b"", "the baseline known.json is not JSON: "),
        (b"\xff\xfe\x00", "the baseline known.json is not JSON: "),
        (b"[" * 100_000, "the baseline known.json is not JSON: "),
        (b"[]", "known.json is not a baseline of fsdp-migrate check, version 1"),
        (b'{"version": 2, "findings": []}', "is not a baseline of fsdp-migrate check, version 1"),
        (b'{"version": 1, "findings": [3]}', "the baseline known.json is damaged"),
        (b'{"version": 1, "findings": [{"path": "a"}]}', "the baseline known.json is damaged"),
    ],
)
def test_broken_baselines(content: bytes | None, message: str, project: Path, capsys: Capture) -> None:
    (project / "known.json").unlink()
    if content is not None:
        (project / "known.json").write_bytes(content)
    capsys.readouterr()
    assert main(["check", "--baseline", "known.json", "src"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
