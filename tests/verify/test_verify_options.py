"""Each option of the command, on programs of one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON

PROGRAM = """
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
{seeded}
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    (model(torch.randn(4, 3)).square().mean() * {scale}).backward()
    optimizer.step()
    optimizer.zero_grad()
    Path("steps").write_text(str(step))
"""


def program(scale: str = "1", seeded: str = "torch.manual_seed(1)") -> str:
    return PROGRAM.format(scale=scale, seeded=seeded)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program(), encoding="utf-8")
    return tmp_path


def commit(tree: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "train.py"), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", *arguments], cwd=tree, check=True)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["verify", *arguments])
    out, err = capsys.readouterr()
    return code, out + err


RUN = ("--", PYTHON, "train.py")


def test_before_ref_compares_a_commit_with_the_working_tree(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tree)
    (tree / "train.py").write_text(program(scale="2"), encoding="utf-8")
    code, text = told(capsys, "--before-ref", "HEAD", "--no-repeat", "--steps", "1", *RUN)
    assert (code, "first difference: step 0, rank 0, loss" in text) == (1, True), text
    code, text = told(capsys, "--before-ref", "no-such", "--no-repeat", *RUN)
    assert (code, "git could not provide no-such" in text) == (2, True)


def test_link_shows_what_git_does_not_have(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reads = "torch.manual_seed(int(Path('data/seed').read_text()))"
    (tree / "train.py").write_text(program(seeded=reads), encoding="utf-8")
    commit(tree)
    (tree / "data").mkdir()
    (tree / "data" / "seed").write_text("3")
    options = ("--before-ref", "HEAD", "--no-repeat", "--steps", "1")
    code, text = told(capsys, *options, *RUN)
    assert (code, "FileNotFoundError" in text) == (2, True), text
    assert told(capsys, *options, "--link", "data", *RUN)[0] == 0
    code, text = told(capsys, *options, "--link", "nothing", *RUN)
    assert (code, "--link nothing: there is no" in text) == (2, True)


def test_seed_repeats_a_program_that_does_not_seed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "train.py").write_text(program(seeded=""), encoding="utf-8")
    for name in ("one", "two"):
        assert told(capsys, "record", name, "--steps", "1", "--seed", "5", *RUN)[0] == 0
    assert told(capsys, "record", "other", "--steps", "1", "--seed", "6", *RUN)[0] == 0
    assert told(capsys, "compare", "one", "two")[0] == 0
    assert told(capsys, "compare", "one", "other")[0] == 1


def test_tolerance_is_said_in_the_last_line(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "record", "one", "--steps", "2", *RUN)[0] == 0
    (tree / "train.py").write_text(program(scale="1.0001"), encoding="utf-8")
    assert told(capsys, "record", "two", "--steps", "2", *RUN)[0] == 0
    assert told(capsys, "compare", "one", "two")[0] == 1
    code, text = told(capsys, "compare", "one", "two", "--tolerance", "1e-2")
    assert (code, "equal within a tolerance of 0.01" in text.splitlines()[-1]) == (0, True), text
    assert told(capsys, "compare", "one", "two", "--tolerance", "1e-7")[0] == 1


def test_no_stop_lets_the_program_end_by_itself(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "record", "stopped", "--steps", "1", *RUN)[0] == 0
    assert (tree / "steps").read_text() == "0"
    code, text = told(capsys, "record", "whole", "--steps", "1", "--no-stop", *RUN)
    assert (code, text.startswith("1 step on 1 rank recorded in whole")) == (0, True)
    assert (tree / "steps").read_text() == "2"


LAYERS = """
import torch

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
{defects}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 3)).square().mean().backward()
optimizer.step()
"""


def test_feed_names_each_module_that_differs_by_itself(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "train.py").write_text(LAYERS.format(defects=""), encoding="utf-8")
    commit(tree)
    defects = "for n in (1, 3): model[n].register_forward_hook(lambda module, args, output: 1.5 * output)"
    (tree / "train.py").write_text(LAYERS.format(defects=defects), encoding="utf-8")
    code, text = told(
        capsys, "--before-ref", "HEAD", "--no-repeat", "--steps", "1", "--feed", "--report", "r.json", *RUN
    )
    assert code == 1
    assert "first difference: step 0, rank 0, forward of modules, 1, output 0" in text
    assert "with the inputs of the old run, 2 modules still differ\n  1: output 0, rank 0, " in text
    assert [each["name"] for each in json.loads(Path("r.json").read_text())["alone"]] == ["1", "3"]
