"""A tree without FSDP1 costs a search of its bytes: nothing is parsed, however many files it has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: In every file of the tree: what is compiled, or parsed by ``ast``, and has it, is one of them.
OF_THE_TREE = "of_the_tree"
COUNTED = f"""
import sys

parsed = []

def seen(event, arguments):
    if event == "compile" and isinstance(arguments[0], str | bytes):
        source = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode()
        parsed.extend(["x"] * ("{OF_THE_TREE}" in source))

sys.addaudithook(seen)
from fsdp_migrate.cli import main

code = main(sys.argv[1:])
sys.stderr.write(f"\\n{{len(parsed)}} {{'libcst' in sys.modules}} {{code}}\\n")
"""
LOOP = f"""
import torch

def train({OF_THE_TREE}, loader, optimizer):
    for batch in loader:
        with {OF_THE_TREE}.no_sync():
            {OF_THE_TREE}(batch).backward()
        torch.nn.utils.clip_grad_norm_({OF_THE_TREE}.parameters(), 1.0)
        optimizer.step()
    torch.save({OF_THE_TREE}.module.state_dict(), "model.pt")
"""
WRAP = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from package.loop3 import train

def main({OF_THE_TREE}, loader, optimizer):
    train(FSDP({OF_THE_TREE}), loader, optimizer)
"""


def counted(tree: Path, *command: str) -> tuple[int, bool, int]:
    """How often a file of the ``tree`` was parsed by ``ast``, whether libcst was imported, and the exit code."""
    run = [sys.executable, "-c", COUNTED, *command]
    done = subprocess.run(run, cwd=tree, capture_output=True, text=True, check=False)
    parsed, imported, code = done.stderr.splitlines()[-1].split()
    return int(parsed), imported == "True", int(code)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Thirty training loops and a notebook that say nothing of FSDP1, in three packages."""
    for number in range(30):
        file = tmp_path / ("package", "other", "third")[number % 3] / f"loop{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(LOOP)
    cell = {"cell_type": "code", "source": [LOOP], "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "play.ipynb").write_text(json.dumps(notebook))
    return tmp_path


@pytest.mark.parametrize("command", [("check", "."), ("rewrite", "--diff", "."), ("check", "--format", "json", ".")])
def test_a_tree_without_fsdp1_is_not_parsed(tree: Path, command: tuple[str, ...]) -> None:
    assert counted(tree, *command) == (0, False, 0)


def test_a_wrap_makes_the_files_parsed_that_its_model_reaches(tree: Path) -> None:
    (tree / "main.py").write_text(WRAP)
    parsed, imported, code = counted(tree, "check", ".")
    assert parsed > 0
    assert imported
    assert code == 1
