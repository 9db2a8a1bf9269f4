"""``skill``: the file for coding agents has the form that they read, and names commands that exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fsdp_migrate.cli import cli, main
from tests.cli_words import called

Capture = pytest.CaptureFixture[str]


def text_of(capsys: Capture) -> str:
    capsys.readouterr()
    assert main(["skill"]) == 0
    return capsys.readouterr().out


def test_it_has_the_form_of_a_skill(capsys: Capture) -> None:
    text = text_of(capsys)
    opening, front, body = text.split("---\n", 2)
    assert opening == ""
    fields = yaml.safe_load(front)
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert len(fields["name"]) <= 64
    assert 0 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    # What is loaded as a whole has to be short.
    assert len(body.splitlines()) < 500
    assert len(text.encode()) < 6000


def test_its_commands_exist_with_their_options(capsys: Capture) -> None:
    found = set()
    for line in re.findall(r"`fsdp-migrate ([^`]+)`", text_of(capsys)):
        command, words, known = called(line.partition(" -- ")[0].split())
        assert command is not cli, line
        assert {word for word in words if word.startswith("--")} <= known, line
        found.add(line.split()[0])
    assert {"migrate", "rewrite", "next", "explain", "check", "verify", "undo", "status", "checkpoint"} <= found


def test_it_is_laid_into_the_project(
    tmp_path: Path, git: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(capsys)
    (tmp_path / ".claude").mkdir()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    for _ in range(2):
        assert main(["skill", "--write"]) == 0
    places = [tmp_path / host / "skills/fsdp-migrate/SKILL.md" for host in (".agents", ".claude")]
    assert [place.read_text(encoding="utf-8") for place in places] == [text, text]
    places[1].write_text("mine\n")
    places[0].unlink()
    assert main(["skill", "--write"]) == 2
    assert "exists with other content and was not changed" in capsys.readouterr().err
    assert places[1].read_text() == "mine\n"
    assert not places[0].exists()
