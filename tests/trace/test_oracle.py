"""The run as the oracle: what it shows of sharded models is edited or reported, and contradicts no sure answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.programs import programs

ROOT = Path(__file__).resolve().parents[2]
#: Every so manieth program; `make trace-matrix` runs all.
PART = 20
NAMES = [one.name for one in programs()[::PART]]


@pytest.mark.whole
def test_both_counts_are_0(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "scripts/trace_matrix.py", *NAMES, "a058-mlp", "minigpt", "--output", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(found.read_text(encoding="utf-8"))
    assert counts["observed"] > 0
    assert (counts["failed"], counts["silent"], counts["contradicted"]) == ([], 0, 0)
