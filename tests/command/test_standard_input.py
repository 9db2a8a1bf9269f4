"""A text from standard input, as editors give it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = b"""\
# -*- coding: latin-1 -*-
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

name = "caf\xe9"
model = FSDP(model)
handle = model._handle
"""


def run(*arguments: str, cwd: Path, given: bytes = SOURCE) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "fsdp_migrate", *arguments]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, check=False)


def test_a_text_is_rewritten_as_a_file_would_be(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fsdp-migrate]\ntorch = '2.6'\n")
    (tmp_path / "a.py").write_bytes(SOURCE)
    done = run("rewrite", "--stdin-filename", "a.py", "-", cwd=tmp_path)
    assert (tmp_path / "a.py").read_bytes() == SOURCE
    in_place = run("rewrite", "a.py", cwd=tmp_path)
    assert done.returncode == in_place.returncode == 1
    assert done.stdout == (tmp_path / "a.py").read_bytes() != SOURCE
    assert done.stderr == in_place.stdout


def test_a_patch_of_a_text_applies(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "a.py").write_bytes(SOURCE)
    patch = run("rewrite", "--diff", "-", "--stdin-filename", "a.py", cwd=tmp_path).stdout
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch, check=True)
    assert (tmp_path / "a.py").read_bytes() == run("rewrite", "-", cwd=tmp_path).stdout


@pytest.mark.parametrize("given", [b"x = 1\n", b"", b"no FSDP\r\n # here"])
def test_a_text_without_fsdp1_is_printed_as_it_is(given: bytes, tmp_path: Path) -> None:
    done = run("rewrite", "-", cwd=tmp_path, given=given)
    assert (done.stdout == given) is (done.returncode == 0)


def test_a_text_that_does_not_parse_is_not_printed(tmp_path: Path) -> None:
    done = run("rewrite", "-", cwd=tmp_path, given=b"FSDP(\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"-: error: could not parse" in done.stderr


def test_a_text_is_checked(tmp_path: Path) -> None:
    done = run("check", "--format", "json", "--stdin-filename", "src/a.py", "-", cwd=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    assert {finding["path"] for finding in findings} == {"src/a.py"}
    (by_hand,) = [finding for finding in findings if finding["level"] == "manual"]
    line = SOURCE.splitlines()[by_hand["line"] - 1]
    assert line[by_hand["column"] - 1 : by_hand["end_column"] - 1].startswith(b"model")


def test_rules_are_left_out_by_the_name_that_is_given(tmp_path: Path) -> None:
    settings = "[tool.fsdp-migrate.per-file-ignores]\n'src/' = ['FSDP']\n"
    (tmp_path / "pyproject.toml").write_text(settings)
    assert run("check", "--stdin-filename", "src/a.py", "-", cwd=tmp_path).returncode == 0
    assert run("check", "--stdin-filename", "a.py", "-", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_standard_input_is_the_only_path(command: str, tmp_path: Path) -> None:
    done = run(command, "-", "a.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"- is standard input: give it as the only PATH" in done.stderr
    done = run(command, "--stdin-filename", "a.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"--stdin-filename names standard input: give - as the only PATH" in done.stderr


def test_no_command_is_named_that_would_read_the_text_again(tmp_path: Path) -> None:
    checked = run("check", "-", cwd=tmp_path)
    assert checked.stdout.endswith(b"Next: fsdp-migrate rewrite -, with the same text.\n")
    assert b"Next:" not in run("rewrite", "--diff", "-", cwd=tmp_path).stderr
