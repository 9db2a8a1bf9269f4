"""The benchmark runs, and its numbers mean what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rewrite_speed.py"


def test_a_small_run(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    command = [sys.executable, str(SCRIPT), "--files", "5", "--fsdp", "1", "--repeat", "1", "--output", str(output)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert json.loads(output.read_text()) == found
    assert found["files"] == 5
    assert found["cpu_s"]["floor"] < found["cpu_s"]["parse"] < found["cpu_s"]["rewrite"]
    assert found["ratios"]["rewrite_to_peer"] == round(found["cpu_s"]["rewrite"] / found["cpu_s"]["peer"], 2)
    assert 10 < found["peak_mib"]["rewrite"] < 1000


def test_sizes_are_checked() -> None:
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), "--files", "1", "--fsdp", "2"], capture_output=True, check=False
    )
    assert answer.returncode == 2
    assert b"--fsdp must be from 1 to --files" in answer.stderr
