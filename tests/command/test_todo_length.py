"""TODO comments are within the length of lines that the project allows, and are read back as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def table():
    # why it is kept
    return {"fsdp": FSDP}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 60\n")
    (tmp_path / "a.py").write_text(SOURCE)
    return tmp_path


def test_comments_are_broken_between_words(project: Path) -> None:
    assert main(["rewrite"]) == 1
    lines = (project / "a.py").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "TODO(fsdp-migrate FSDP901)" in line)
    comment = [line.strip() for line in lines[first : lines.index('    return {"fsdp": FSDP}')]]
    assert len(comment) > 1
    assert max(map(len, lines[first:])) <= 60
    assert all(line.startswith("#     ") for line in comment[1:])
    text = " ".join(line.removeprefix("#     ") for line in comment)
    assert text.endswith("this use of FullyShardedDataParallel has no FSDP2 equivalent known to this tool")


def test_a_broken_comment_is_one_finding_and_a_second_run_adds_none(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["rewrite"])
    once = (project / "a.py").read_text()
    assert main(["rewrite"]) == 1
    assert (project / "a.py").read_text() == once
    capsys.readouterr()
    assert main(["check", "--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["message"] == "this use of FullyShardedDataParallel has no FSDP2 equivalent known to this tool"


def test_a_comment_that_outlived_its_cause_is_reported_whole(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["rewrite"])
    text = (project / "a.py").read_text().replace('{"fsdp": FSDP}', "{}").splitlines(keepends=True)
    (project / "a.py").write_text("".join(line for line in text if "import" not in line))
    capsys.readouterr()
    main(["check", "--format", "json"])
    messages = [finding["message"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert len(messages) == 1
    assert messages[0].endswith("this use of FullyShardedDataParallel has no FSDP2 equivalent known to this tool")


def test_without_a_length_comments_are_one_line(project: Path) -> None:
    (project / "pyproject.toml").unlink()
    main(["rewrite"])
    (line,) = [line for line in (project / "a.py").read_text().splitlines() if "TODO" in line]
    assert len(line) > 100
