"""What a project requires, against the combinations of versions that are silent or break."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.configs.versions import judge, rows
from fsdp_migrate.tree.files import is_requirements

TRAINER = {"FSDP552"}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("transformers==4.57.1", False),
        ("transformers==5.10.1", True),
        ("transformers>=4.40", True),
        ("transformers", True),
        ("transformers<5", False),
        ("transformers>=5,<5.10", False),
        ("transformers[torch]~=5.10", True),
        ('    "transformers>=5.0",', True),
        ("  - transformers=5.12.0", True),
        ("# transformers", False),
        ("transformers-stream-generator", False),
        ("transformers @ git+https://example.org/x", True),
        ("sentence-transformers>=5", False),
    ],
)
def test_requirements_in_every_form(requirement: str, expected: bool) -> None:
    text = f"numpy\n{requirement}\n".encode()
    found = list(judge(text, "requirements.txt", TRAINER))
    assert bool(found) is expected
    assert not list(judge(text, "requirements.txt", ()))
    if expected:
        assert (found[0].rule, found[0].level.value, found[0].line) == ("FSDP571", "manual", 2)


def test_every_row_has_a_thread_and_a_short_message() -> None:
    for row in rows():
        assert row.thread
        assert len(f"this {row.message.format(version='5.10.1')}") <= 110


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "setup.cfg", "requirements.txt", "requirements-dev.txt", "environment.yml"]
)
def test_names_of_requirement_files(name: str) -> None:
    assert is_requirements(name)
    assert not is_requirements(f"my-{name}")


def test_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("transformers>=4.40\n")
    (tmp_path / "train.py").write_text("print('nothing')\n")
    assert main(["check", str(tmp_path)]) == 0
    (tmp_path / "train.py").write_text("from transformers import TrainingArguments as T\nT('out', fsdp='full_shard')\n")
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "requirements.txt:1:1: FSDP571 manual" in out
    assert "huggingface/transformers#45640" in out
    assert main(["check", "--ignore", "FSDP5", str(tmp_path)]) == 0
