"""``check --since``: edits that make a migration pass instead of right are named, and honest ones are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]
TRAIN = '''\
"""Trains."""
import argparse

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

MAX_STEPS = 100


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def resume(model, state):
    model.load_state_dict(state)


def train(model, loader, optimizer, steps=MAX_STEPS):
    torch.manual_seed(1234)
    model = FSDP(model)
    for step in range(50):
        loss = model(torch.ones(2)).sum()
        loss.backward()
        optimizer.step()
        assert loss.isfinite(), "the loss is not finite"
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
    # TODO(fsdp-migrate FSDP203): whole tensors are read here
    save(model._handle)
    return loss
'''
TESTS = """\
import torch
from train import train


def test_losses_are_equal():
    before, after = run("before"), run("after")
    assert before == after
    torch.testing.assert_close(before, after, rtol=1e-6, atol=0.0)


def test_norms_are_equal():
    assert run("norm") == 1.0
"""
BASE = {
    "train.py": TRAIN,
    "tests/test_losses.py": TESTS,
    "config.yaml": "max_steps: 1000\nseed: 3\nstrict: true\n",
    "run.sh": "torchrun train.py --epochs 10 --seed 7\n",
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-q"\n\n[tool.fsdp-migrate]\nextend-exclude = ["old/"]\n',
    ".gitignore": "*.log\n",
}
#: The name of an edit: the rule, the file, what it replaces there, and what it puts in its place.
CHEATS = {
    "an assert is deleted": ("FSDP601", "tests/test_losses.py", "    assert before == after\n", ""),
    "an assert of the loop is deleted": ("FSDP601", "train.py", r"        assert loss.isfinite\(\).*\n", ""),
    "an assert is always true": ("FSDP601", "tests/test_losses.py", "assert before == after", "assert True or before"),
    "an assert compares nothing": (
        "FSDP601",
        "tests/test_losses.py",
        "assert before == after",
        "assert before is not None",
    ),
    "a return is before the asserts": (
        "FSDP601",
        "tests/test_losses.py",
        "    before, after",
        "    return\n    before, after",
    ),
    "the failure is caught": (
        "FSDP601",
        "tests/test_losses.py",
        "    assert before == after\n",
        "    try:\n        assert before == after\n    except Exception:\n        pass\n",
    ),
    "a state is loaded in part": (
        "FSDP602",
        "train.py",
        r"load_state_dict\(state\)",
        "load_state_dict(state, strict=False)",
    ),
    "by position": ("FSDP602", "train.py", r"load_state_dict\(state\)", "load_state_dict(state, False)"),
    "in configuration": ("FSDP602", "config.yaml", "strict: true", "strict: false"),
    "the constant is lower": ("FSDP603", "train.py", "MAX_STEPS = 100", "MAX_STEPS = 2"),
    "the loop is shorter": ("FSDP603", "train.py", r"range\(50\)", "range(3)"),
    "the loop ends early": (
        "FSDP603",
        "train.py",
        "        model\\(batch\\)",
        "        if step >= 2:\n            break\n        model(batch)",
    ),
    "the data is cut": ("FSDP603", "train.py", r"enumerate\(loader\)", "enumerate(itertools.islice(loader, 2))"),
    "the default of an option is lower": ("FSDP603", "train.py", "default=10", "default=1"),
    "a script trains less": ("FSDP603", "run.sh", "--epochs 10", "--epochs 1"),
    "configuration has fewer steps": ("FSDP603", "config.yaml", "max_steps: 1000", "max_steps: 5"),
    "another seed": ("FSDP604", "train.py", r"manual_seed\(1234\)", "manual_seed(1)"),
    "the seed is removed": ("FSDP604", "train.py", r"    torch.manual_seed\(1234\)\n", ""),
    "a seed in a test": (
        "FSDP604",
        "tests/test_losses.py",
        "    before, after",
        "    torch.manual_seed(5)\n    before, after",
    ),
    "a script has another seed": ("FSDP604", "run.sh", "--seed 7", "--seed 8"),
    "a finding is silenced": ("FSDP605", "train.py", r"FSDP\(model\)", "FSDP(model)  # fsdp-migrate: ignore[FSDP101]"),
    "more is excluded": ("FSDP605", "pyproject.toml", r'\["old/"\]', '["old/", "train.py"]'),
    "a file is exempt": (
        "FSDP605",
        "pyproject.toml",
        r'\["old/"\]',
        '["old/"]\nper-file-ignores = {"train.py" = ["FSDP2"]}',
    ),
    "a name is put together": ("FSDP606", "train.py", "model._handle", 'getattr(model, "_han" + "dle")'),
    "a module is named at run time": (
        "FSDP606",
        "train.py",
        "    model = FSDP",
        '    f = importlib.import_module("torch.distributed.fsdp")\n    model = f.X',
    ),
    "the source is in a string": (
        "FSDP606",
        "train.py",
        r"    model = FSDP\(model\)",
        '    exec("model = FSDP(model)")',
    ),
    "the TODO alone is removed": ("FSDP606", "train.py", r"    # TODO\(fsdp-migrate.*\n", ""),
    "a test is skipped": ("FSDP607", "tests/test_losses.py", "def test_losses", "@pytest.mark.skip\ndef test_losses"),
    "a test may fail": (
        "FSDP607",
        "tests/test_losses.py",
        "def test_norms",
        "@pytest.mark.xfail(strict=True)\ndef test_norms",
    ),
    "a test is no longer found": ("FSDP607", "tests/test_losses.py", "def test_norms_are_equal", "def no_test_norms"),
    "a test is deselected": ("FSDP607", "pyproject.toml", '"-q"', '"-q --deselect tests/test_losses.py"'),
    "a tolerance is wider": ("FSDP608", "tests/test_losses.py", "rtol=1e-6", "rtol=0.5"),
}
#: What a migration changes by hand, honestly.
HONEST: Mapping[str, tuple[str, str, str]] = {
    "an assert has the names of FSDP2": (
        "train.py",
        r"assert loss.isfinite\(\)",
        "assert loss.full_tensor().isfinite()",
    ),
    "a comparison allows for nothing": (
        "tests/test_losses.py",
        "assert before == after",
        "assert torch.equal(before, after)",
    ),
    "an assert is added": ("train.py", "    return loss", "    assert loss is not None\n    return loss"),
    "a test is added": (
        "tests/test_losses.py",
        "\\Z",
        "\n\ndef test_more():\n    torch.manual_seed(1)\n    for step in range(2):\n        assert step < 2\n",
    ),
    "a test has another name": ("tests/test_losses.py", "test_norms_are_equal", "test_norms"),
    "an assert moves into a helper": (
        "tests/test_losses.py",
        '    assert run\\("norm"\\) == 1.0\n',
        '    check_norm()\n\n\ndef check_norm():\n    assert run("norm") == 1.0\n',
    ),
    "more steps": ("train.py", "MAX_STEPS = 100", "MAX_STEPS = 200"),
    "a tighter tolerance": ("tests/test_losses.py", "rtol=1e-6", "rtol=0.0"),
    "strict zip": ("train.py", "    return loss", "    pairs = zip(a, b, strict=False)\n    return loss"),
    "the TODO is done": (
        "train.py",
        r"    # TODO\(fsdp-migrate.*\n    save\(model._handle\)\n",
        "    save(model.state_dict())\n",
    ),
    "a layer by its number": (
        "train.py",
        "    return loss",
        '    layer = getattr(model, f"layer{step}")\n    return loss',
    ),
    "evaluation mode": ("train.py", "    return loss", "    model.eval()\n    return loss"),
    "less is excluded": ("pyproject.toml", r'\["old/"\]', "[]"),
    "a new helper has its own loop": (
        "train.py",
        "def resume",
        "def gather(model):\n    for i in range(2):\n        yield model\n\n\ndef resume",
    ),
    "a function has another name": ("train.py", r"def train\(", "def train_native("),
}


@pytest.fixture
def project(tmp_path: Path, git: Callable[..., str], commit: Callable[[], None]) -> Path:
    for name, text in BASE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commit()
    return tmp_path


def named(capsys: Capture) -> set[tuple[str, str]]:
    """The rule and the file of each edit that is named since HEAD."""
    capsys.readouterr()
    code = main(["check", "--since", "HEAD", "--min-level", "manual", "--format", "json", "--jobs", "1"])
    found = json.loads(capsys.readouterr().out)["findings"]
    edits = {(one["rule"], one["path"]) for one in found if one["rule"].startswith("FSDP6")}
    assert code == 1 or not edits
    return edits


def edited(file: Path, pattern: str, instead: str) -> None:
    text, changes = re.subn(pattern, lambda found: instead, file.read_text(), count=1)
    assert changes == 1, pattern
    file.write_text(text)


@pytest.mark.parametrize("name", CHEATS)
def test_an_edit_that_cheats_is_named(name: str, project: Path, capsys: Capture) -> None:
    rule, path, pattern, instead = CHEATS[name]
    edited(project / path, pattern, instead)
    assert {one for one, _ in named(capsys)} == {rule}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_edit_is_not_named(name: str, project: Path, capsys: Capture) -> None:
    path, pattern, instead = HONEST[name]
    edited(project / path, pattern, instead)
    assert named(capsys) == set()


def test_files_that_move_keep_their_asserts(project: Path, capsys: Capture) -> None:
    (project / "src").mkdir()
    (project / "train.py").rename(project / "src/training.py")
    (project / "tests/test_losses.py").rename(project / "tests/test_equal.py")
    assert named(capsys) == set()
    (project / "src/training.py").rename(project / "src/training.py.txt")
    assert ("FSDP606", "src/training.py.txt") in named(capsys)
    (project / "tests/test_equal.py").unlink()
    assert ("FSDP607", "tests/test_losses.py") in named(capsys)


def test_a_file_that_git_no_longer_knows_is_named(project: Path, git: Callable[..., str], capsys: Capture) -> None:
    edited(project / ".gitignore", r"\*\.log", "*.log\ntrain.py")
    # As long as git tracks the file, the check reads it.
    assert named(capsys) == set()
    git("rm", "--quiet", "--cached", "train.py")
    assert ("FSDP606", "train.py") in named(capsys)


def test_neither_comments_nor_settings_nor_paths_hide_an_edit(project: Path, capsys: Capture) -> None:
    edited(project / "tests/test_losses.py", "    assert before == after\n", "")
    words = ["check", "--since", "HEAD", "--ignore", "FSDP6", "--min-level", "manual", "pyproject.toml"]
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "tests/test_losses.py:5" in said
    assert "FSDP601 manual: deleted, or can no longer fail: assert before == after" in said


def test_what_a_rewrite_does_is_honest(tmp_path: Path, commit: Callable[[], None], capsys: Capture) -> None:
    sources = (
        sorted((ROOT / "fixtures/projects").rglob("*.py")) + sorted((ROOT / "fixtures/rewrite").rglob("*.py"))[:40]
    )
    for number, source in enumerate(sources):
        (tmp_path / f"m{number}_{source.name}").write_bytes(source.read_bytes())
    commit()
    assert main(["rewrite", "--quiet", "."]) in (0, 1, 2)
    assert named(capsys) == set()


def test_a_comment_of_a_rewrite_that_no_commit_has_is_missed(
    tmp_path: Path, commit: Callable[[], None], capsys: Capture
) -> None:
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef main(net, other):\n"
        "    model = FSDP(net, use_orig_params=True)\n    model(1).sum().backward()\n"
        "    first = model._handle\n    last = model._flat_param\n    return first, last\n"
    )
    commit()
    assert main(["rewrite", "--quiet", "."]) == 1
    assert named(capsys) == set()
    whole = (tmp_path / "train.py").read_text()
    assert whole.count("TODO(fsdp-migrate FSDP902)") == 2
    edited(tmp_path / "train.py", r" +# TODO\(fsdp-migrate FSDP902\): .*_handle.*\n", "")
    assert named(capsys) == {("FSDP606", "train.py")}
    edited(tmp_path / "train.py", r"model\._handle", "next(model.parameters())")
    assert named(capsys) == set()


def test_it_needs_a_repository_and_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--since", "HEAD"]) == 2
    assert "this is not a git repository" in capsys.readouterr().err


def test_a_commit_that_is_not_there_is_named(project: Path, capsys: Capture) -> None:
    assert main(["check", "--since", "nothing"]) == 2
    assert "--since nothing: git answered" in capsys.readouterr().err
