"""``rewrite --interactive`` on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline.hunks import Choice, chosen, hunks

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)


def unrelated():
    return 1


def also_unrelated():
    return 2


def train(loss):
    loss.backward()
    model.clip_grad_norm_(1.0)
"""
PROMPT = b"[?] help: "


def answered(keys: Sequence[str], *arguments: str, cwd: Path, code: int, editor: str = "true") -> str:
    """What a person sees who presses ``keys``, one at each question."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "EDITOR": editor, "VISUAL": editor}
    environment["XDG_CONFIG_HOME"] = str(cwd.parent / "config")
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--interactive", *arguments]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen, asked = b"", 0
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            # How Linux says that the other end was closed.
            break
        if not part:
            break
        seen += part
        plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen)
        if plain.count(PROMPT) > len(keys):
            process.kill()
        while asked < min(plain.count(PROMPT), len(keys)):
            # What is typed before it reads single keys is thrown away.
            while termios.tcgetattr(leader)[3] & termios.ICANON and process.poll() is None:
                os.sched_yield()
            os.write(leader, keys[asked].encode())
            asked += 1
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r\n", "\n")
    assert process.wait() == code, text
    assert asked == len(keys), text
    return text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SOURCE)
    return folder


def test_a_key_and_enter_are_one_key(project: Path) -> None:
    # Enter is pressed while the command waits for a single key.
    seen = answered(["a\r", "\n\rs", "\rw\r"], "--allow-dirty", "train.py", cwd=project, code=0)
    assert "skip this hunk" not in seen
    assert "fully_shard(model" in (project / "train.py").read_text()
    assert "1 hunk skipped" in seen


def test_one_hunk_is_taken_and_one_is_left(project: Path) -> None:
    seen = answered("?asw", "--allow-dirty", "train.py", cwd=project, code=0)
    assert "train.py:1  file 1 of 1, hunk 1 of 2" in seen
    assert "FSDP101 safe" in seen
    assert "-model = FSDP(model)" in seen
    assert "FSDP201 safe" in seen
    assert "1 hunk skipped: FSDP1 code remains there" in seen
    after = (project / "train.py").read_text()
    assert "fully_shard(model" in after
    assert "model.clip_grad_norm_(1.0)" in after


def test_quitting_writes_nothing_and_the_next_run_continues(project: Path) -> None:
    assert "nothing was written; 1 answer kept" in answered("aq", "--allow-dirty", ".", cwd=project, code=130)
    assert (project / "train.py").read_text() == SOURCE
    seen = answered("a", "--allow-dirty", ".", cwd=project, code=0)
    assert "1 answer of the last run kept" in seen
    assert "hunk 1 of 2" not in seen
    accepted = (project / "train.py").read_text()
    (project / "train.py").write_text(SOURCE)
    assert main(["rewrite", "--allow-dirty", str(project)]) == 0
    assert accepted == (project / "train.py").read_text()
    assert list((project.parent / "config").rglob("*.json")) == []


def test_a_file_can_be_skipped_as_a_whole(project: Path) -> None:
    (project / "second.py").write_text(SOURCE)
    seen = answered("faa", "--allow-dirty", ".", cwd=project, code=0)
    assert "second.py:1  file 1 of 2, hunk 1 of 2" in seen
    assert (project / "second.py").read_text() == SOURCE
    assert "fully_shard(model" in (project / "train.py").read_text()


def test_the_new_lines_can_be_edited_and_must_parse(project: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^fully_shard(model)/mine(model/' \"$1\"\n")
    editor.chmod(0o755)
    seen = answered("eaq", "--allow-dirty", ".", cwd=project, code=130, editor=str(editor))
    assert "these choices do not parse" in seen
    editor.write_text("#!/bin/sh\nsed -i 's/^fully_shard(model)/mine(model)/' \"$1\"\n")
    answered("ea", "--allow-dirty", ".", cwd=project, code=0, editor=str(editor))
    assert "\nmine(model)\n" in (project / "train.py").read_text()


def test_it_needs_a_terminal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", "--interactive", str(project)]) == 2
    assert "--interactive asks on a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_taking_all_or_none_is_one_or_the_other_version(end: str) -> None:
    before = "\n".join(f"line {number}" for number in range(40)).encode() + end.encode()
    after = before.replace(b"line 3\n", b"new 3\nmore\n").replace(b"line 30\n", b"").replace(b"line 39", b"last")
    found = hunks("a.py", before, after)
    assert len(found) == 3
    for taken, wanted in ((True, after), (False, before)):
        assert chosen(before, found, {hunk.key: Choice(taken) for hunk in found}) == wanted


def test_calls_that_do_not_work_with_what_was_accepted_are_asked_about_again(project: Path) -> None:
    seen = answered("asca", "--allow-dirty", ".", cwd=project, code=0)
    assert "The skipped FSDP1 calls do not work with the accepted changes (train.py:16)." in seen
    assert len(re.findall(r"train\.py:\d+  file 1 of 1, hunk 2 of 2", seen)) == 2
    accepted = (project / "train.py").read_text()
    (project / "train.py").write_text(SOURCE)
    assert main(["rewrite", "--allow-dirty", str(project)]) == 0
    assert accepted == (project / "train.py").read_text()


def test_quitting_at_that_question_writes_nothing(project: Path) -> None:
    answered("asq", "--allow-dirty", ".", cwd=project, code=130)
    assert (project / "train.py").read_text() == SOURCE


def test_calls_in_another_file_than_the_wrap_are_asked_about(project: Path) -> None:
    wrap, loop = SOURCE.partition("\n\ndef unrelated")[::2]
    (project / "net.py").write_text(wrap)
    (project / "train.py").write_text(f"from net import model\n\n\ndef unrelated{loop}")
    seen = answered("afw", "--allow-dirty", ".", cwd=project, code=0)
    assert "The skipped FSDP1 calls do not work with the accepted changes (train.py:" in seen
    assert "clip_grad_norm_(1.0)" in (project / "train.py").read_text()


def test_accepted_lines_need_the_imports_of_others(project: Path) -> None:
    gap = "\n".join(f"SIZE_{number} = {number}" for number in range(9))
    (project / "train.py").write_text(SOURCE.replace("\nmodel =", f"\n{gap}\nmodel ="))
    # The imports alone are asked about again, then the calls that do not work with the accepted ones.
    seen = answered("sasaca", "--allow-dirty", ".", cwd=project, code=0)
    assert "train.py: these choices leave fully_shard without a definition or an import: choose again" in seen
    assert "fully_shard(model" in (project / "train.py").read_text()
