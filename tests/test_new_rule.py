"""The guide to adding a rule, followed to the letter in a copy of the project."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.pool import ROOT

COPIED = (
    "benchmarks",
    "docs",
    "fixtures",
    "fsdp_migrate",
    "rules",
    "scripts",
    "shim",
    "tests",
    "pyproject.toml",
    "CONTRIBUTING.md",
)


def test_the_commands_of_the_guide_make_a_rule_that_works(tmp_path: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    guide = (tmp_path / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(python scripts/new_rule.py .*?)```", guide, re.DOTALL)
    folders = (tmp_path, tmp_path / "rules", tmp_path / "shim")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    output = ""
    for line in commands.splitlines():
        words = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{line}\n{output}"
    assert " passed" in output
    assert "gather-all" in (tmp_path / "docs" / "rules.md").read_text(encoding="utf-8")
