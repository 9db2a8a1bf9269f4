"""The command with a real terminal at its end."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
WRAPPERS = {"fsdp": FSDP, "text": "[bold]"}
"""


def on_terminal(*arguments: str, cwd: Path, code: int) -> str:
    """What a person sees, without the escape sequences."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    command = [sys.executable, "-m", "fsdp_migrate", *arguments]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            # How Linux says that the other end was closed.
            break
        if not part:
            break
        seen += part
    os.close(leader)
    assert process.wait() == code, seen.decode()
    assert b"\x1b[" in seen
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r\n", "\n")


def test_progress_then_table_then_what_is_left_then_the_summary(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    seen = on_terminal("rewrite", "train.py", cwd=tmp_path, code=1)
    places = [seen.index(text) for text in ("Reading", "Rewriting", "Writing", "File ", "FSDP901  unknown-fsdp1-use")]
    places += [seen.rindex(text) for text in ("Left to do by hand", "train.py:", "Next: grep -rn 'TODO(fsdp-migrate'")]
    assert places == sorted(places)


def test_a_diff_in_colour(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    seen = on_terminal("rewrite", "--diff", "train.py", cwd=tmp_path, code=1)
    assert '\n WRAPPERS = {"fsdp": FSDP, "text": "[bold]"}\n' in seen
    assert (tmp_path / "train.py").read_text() == SOURCE


def test_a_rule_with_its_example(tmp_path: Path) -> None:
    seen = on_terminal("rules", "FSDP901", cwd=tmp_path, code=0)
    assert seen.index("FSDP901 unknown-fsdp1-use") < seen.index("Before") < seen.index("After")


def test_check_says_the_same_as_to_a_pipe_but_in_colour(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "bad.py").write_text("FSDP(\n")
    seen = on_terminal("check", ".", cwd=tmp_path, code=2)
    command = [sys.executable, "-m", "fsdp_migrate", "check", "."]
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "FSDP901 manual" in piped
    assert seen.endswith(piped)
