"""What the pages quote of the command's work on a fixture project is what it does now."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/rewrite.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def minigpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, which requires the first torch that has FSDP2."""
    folder = tmp_path_factory.mktemp("projects")
    shutil.copytree(ROOT / "fixtures/projects/minigpt", folder / "minigpt")
    (folder / "pyproject.toml").write_text('[project]\nname = "minigpt"\ndependencies = ["torch>=2.6"]\n')
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message=m"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def _missing(block: str, source: str) -> list[str]:
    """The paragraphs of a block that are not in ``source``, at whatever indentation they are there."""
    lines = source.splitlines()

    def is_there(quoted: list[str]) -> bool:
        parts = (lines[start : start + len(quoted)] for start in range(len(lines) - len(quoted) + 1))
        return any(textwrap.dedent("\n".join(part)).splitlines() == quoted for part in parts)

    return [part for part in block.strip().split("\n\n") if not is_there(part.splitlines())]


def test_the_page_quotes_code_and_report_as_they_are(
    minigpt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (before, after) = re.findall(r"```python\n(.*?)```", PAGE.partition("## What it does")[0], re.DOTALL)
    (said,) = re.findall(r"and what it prints:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    train = minigpt / "minigpt/train.py"
    assert _missing(before, train.read_text()) == []
    monkeypatch.chdir(minigpt)
    assert main(["rewrite", "minigpt"]) == 0
    assert said.split() == capsys.readouterr().out.split()
    assert _missing(after, train.read_text()) == []


def test_a_quotation_that_is_no_longer_true_is_found() -> None:
    assert _missing("a\n\nb", "    a\n  b\n") == []
    assert _missing("a\nb\n\nc", "    a\n  b\nd\n") == ["a\nb", "c"]
