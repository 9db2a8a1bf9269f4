"""Recordings that cannot be read or compared are refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import BadRecording
from tests.pool import Pool
from tests.verify import variants


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recordings")
    variants.alone(str(directory))
    return directory / "alone"


@pytest.fixture
def copied(recording: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recording, tmp_path / "copied"))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def two_ranks(directory: Path) -> None:
    """Make two ranks of a recording of one."""
    found = lines(directory / "rank-0.jsonl")
    start = json.loads(found[0])
    start["environment"]["world size"] = 2
    found[0] = json.dumps(start) + "\n"
    for rank in range(2):
        (directory / f"rank-{rank}.jsonl").write_text("".join(found))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--api-key=hidden", "--lr", "0.1"], ["--api-key", "--lr"]),
        (["-khidden", "-k", "hidden", "run"], ["-k", "-k"]),
        (["trainer.key=hidden", "+model.name=hidden", "https://host/?token=hidden"], ["trainer.key", "+model.name"]),
    ],
)
def test_a_recording_has_names_of_options_and_not_their_values(
    words: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *words])
    variants.alone(str(tmp_path))
    text = (tmp_path / "alone/rank-0.jsonl").read_text()
    assert json.loads(text.partition("\n")[0])["argv"] == ["train.py", *names]
    assert "hidden" not in text


def test_ranks_with_different_numbers_of_steps(copied: Path) -> None:
    two_ranks(copied)
    file = copied / "rank-1.jsonl"
    file.write_text("".join(line for line in lines(file) if '"kind":"end"' not in line and '"step":2,' not in line))
    with pytest.raises(BadRecording, match=r"different numbers of steps \(rank 0: 3, rank 1: 2\)"):
        read(copied)


def test_a_rank_is_missing(copied: Path) -> None:
    two_ranks(copied)
    (copied / "rank-1.jsonl").unlink()
    with pytest.raises(BadRecording, match="1 of 2 ranks were recorded"):
        read(copied)


def test_two_processes_with_one_rank(copied: Path) -> None:
    shutil.copy(copied / "rank-0.jsonl", copied / "rank-0.again-77.jsonl")
    with pytest.raises(BadRecording, match="two processes recorded as rank-0"):
        read(copied)


def test_another_version(copied: Path) -> None:
    file = copied / "rank-0.jsonl"
    file.write_text(file.read_text().replace('"version":2', '"version":99', 1))
    with pytest.raises(BadRecording, match=r"this is fsdp-migrate recording 99, not fsdp-migrate recording 2"):
        read(copied)


def test_the_first_version_is_read(recording: Path, copied: Path) -> None:
    def first(event: Any) -> Any:
        if isinstance(event, dict):
            return {name: first(value) for name, value in event.items()}
        if isinstance(event, list) and len(event) == 8 and isinstance(event[1], str):
            return [*event[:7], dict(zip(map(str, event[7][0]), event[7][1], strict=True))]
        return [first(item) for item in event] if isinstance(event, list) else event

    file = copied / "rank-0.jsonl"
    text = "".join(json.dumps(first(json.loads(line)), separators=(",", ":")) + "\n" for line in lines(file))
    file.write_text(text.replace('"version":2', '"version":1', 1))
    assert '"0":' in text
    assert read(copied) == read(recording)


@pytest.mark.parametrize("junk", ["", "{}\n", "not json\n", '{"kind":"step"}\n', "\x00\x01\n"])
def test_junk(tmp_path: Path, junk: str) -> None:
    (tmp_path / "rank-0.jsonl").write_text(junk)
    with pytest.raises(BadRecording):
        read(tmp_path)


def test_a_process_killed_in_the_middle_of_a_line(copied: Path) -> None:
    file = copied / "rank-0.jsonl"
    kept = [line for line in lines(file) if '"kind":"end"' not in line]
    file.write_text("".join(kept)[: -len(kept[-1]) // 2])
    found = read(copied)
    assert (found.finished, len(found.steps)) == (False, variants.STEPS - 1)


def test_a_recorder_that_failed_says_why(pool: Pool, copied: Path) -> None:
    file = copied / "rank-0.jsonl"
    with file.open("a") as stream:
        stream.write(json.dumps({"kind": "failed", "reason": "TypeError: complex"}) + "\n")
    assert read(copied).failures == ("TypeError: complex",)
