"""A check of a tree that has not changed is not made again, and says the same as without a cache."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline import cached, run
from fsdp_migrate.tree.cache import ENTRIES, Cache

PROJECT = Path(__file__).parents[2] / "fixtures" / "projects" / "minigpt"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that were worked on."""
    made: list[object] = []
    real = run.rewrite

    def counted(request: run.Request, *others: object) -> object:
        made.append(request)
        return real(request, *others)

    monkeypatch.setattr(run, "rewrite", counted)
    return made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef build(net):\n    return FSDP(net)\n"
    )
    (tmp_path / "other.py").write_text("def other():\n    return 1\n")
    return tmp_path


@pytest.fixture
def said(capsys: Capture) -> Callable[..., str]:
    """What ``check`` prints with these arguments."""

    def run(*arguments: str) -> str:
        main(["check", "--jobs", "1", *arguments])
        answer = capsys.readouterr()
        return answer.out + answer.err

    return run


def entries() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json"))


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_the_second_check_says_the_same_without_work(said: Callable[..., str], runs: list[object], form: str) -> None:
    asked = ("--format", form, str(PROJECT))
    without = said("--no-cache", *asked)
    assert entries() == []
    assert said(*asked) == without
    assert len(runs) == 2
    assert said(*asked) == without
    assert len(runs) == 2


def test_what_can_change_an_answer_is_worked_out_again(
    said: Callable[..., str], runs: list[object], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: (project / "other.py").write_text("import train\n"),
        lambda: (project / "more.yaml").write_text("fsdp: true\n"),
        lambda: (project / "other.py").rename(project / "renamed.py"),
        lambda: (project / "requirements.txt").write_text("torch>=2.9\n"),
        lambda: monkeypatch.setattr(sys, "version", "another one"),
        lambda: monkeypatch.setattr(cached, "_code", lambda: "another release"),
    ]
    for number, step in enumerate(steps, start=1):
        step()
        said()
        assert len(runs) == number
        said()
        assert len(runs) == number
    said("--to", "shim")
    assert len(runs) == len(steps) + 1


def test_rules_are_selected_from_what_is_kept(said: Callable[..., str], runs: list[object], project: Path) -> None:
    said()
    assert "FSDP121" not in said("--ignore", "FSDP121")
    assert len(runs) == 1


def resealed(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b"safe", b"info", 1),
        lambda data: b"\x80\x04" + data,
        lambda data: resealed(b"[" * 100_000),
        lambda data: resealed(b"{}"),
        lambda data: resealed(b"null"),
        lambda data: resealed(b'[["nowhere.py","Unchanged",null,[]]]'),
        lambda data: resealed(b'[["train.py","Changed","?",[]]]'),
        lambda data: resealed(b'[["train.py","Odd",null,[]]]'),
        lambda data: resealed(b'[["train.py","Unchanged",null,[["FSDP101"]]]]'),
    ],
)
def test_a_damaged_entry_is_made_anew(
    said: Callable[..., str], runs: list[object], project: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = said()
    (entry,) = entries()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert said() == first
    assert len(runs) == 2
    assert entries() == [entry]
    assert entry.read_bytes() == whole


def test_a_run_with_errors_is_not_kept(said: Callable[..., str], project: Path) -> None:
    (project / "broken.py").write_text("import torch.distributed.fsdp as FSDP(\n")
    assert "broken.py: error" in said()
    assert entries() == []


def test_a_file_that_changes_while_it_is_checked_is_not_kept(
    said: Callable[..., str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run.rewrite

    def changing(*arguments: object) -> object:
        (project / "other.py").write_text("import train\n")
        return real(*arguments)

    monkeypatch.setattr(run, "rewrite", changing)
    said()
    assert entries() == []


def test_without_a_folder_to_write_to_a_check_is_made_each_time(
    said: Callable[..., str], runs: list[object], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "train.py"))
    assert said() == said()
    assert len(runs) == 2


def test_standard_input_is_read_each_time(project: Path, said: Callable[..., str], runs: list[object]) -> None:
    import io

    class Input:
        buffer = io.BytesIO(b"x = 1\n")

    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", Input)
            said("--stdin-filename", "a.py", "-")
    assert len(runs) == 2
    assert entries() == []


def test_the_oldest_entries_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number in range(ENTRIES + 3):
        cache.put(str(number), number)
        os.utime(tmp_path / f"{number}.json", (number, number))
    cache.put("last", ["value", 1])
    assert len(list(tmp_path.iterdir())) == ENTRIES
    assert cache.get("0") is None
    assert cache.get("last") == ["value", 1]
    assert json.loads((tmp_path / "last.json").read_bytes().partition(b"\n")[2]) == ["value", 1]
