"""``verify --bisect``: the search with real processes, what is written, and what is left as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON

#: Puts a function of its own in place of the one that the native form of a clip calls.
PATCH = """
import torch


def clip_grad_norm_(parameters, max_norm, **options):
    {body}


torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
"""
TRAIN = """
import patch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with model.no_sync():
            model(torch.ones(2, 8)).sum().backward()
        model(torch.ones(2, 8)).sum().backward()
        model.clip_grad_norm_(100.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
#: What that function does.
HALVES = "[each.grad.mul_(0.5) for each in list(parameters)]"
COMMAND = ("--steps", "2", "--no-repeat", "--", PYTHON, "-m", "torch.distributed.run", "--standalone",
           "--nproc-per-node", "2", "train.py")  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return root


def commit(root: Path, body: str, train: str = TRAIN) -> None:
    (root / "train.py").write_text(train, encoding="utf-8")
    (root / "patch.py").write_text(PATCH.format(body=body), encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", *arguments], cwd=root, check=True)


def left_behind(root: Path) -> list[str]:
    return [path.name for path in root.parent.glob("fsdp-migrate-*")]


def test_the_form_that_is_equal_is_written_and_verified(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(project, HALVES)
    assert main(["verify", "--bisect", "--apply", *COMMAND]) == 0
    out, err = capsys.readouterr()
    assert "the runs are equal with the alternative form of this edit\n  train.py:19 FSDP201" in out
    assert "  first difference: step 0, gradients, 0.weight\n    before: " in out
    assert "  +        fsdp_compat.clip_grad_norm_(model, 100.0)" in out
    assert "run 1 of at most 7: " in err
    assert "1 file written with this form" in out
    assert out.splitlines()[-1].startswith("equal: ")
    text = (project / "train.py").read_text(encoding="utf-8")
    assert "fully_shard(" in text
    assert "fsdp_compat.clip_grad_norm_(model, 100.0)" in text
    assert main(["undo"]) == 0
    assert (project / "train.py").read_text(encoding="utf-8") == TRAIN


@pytest.mark.whole
def test_it_is_only_offered_where_nothing_is_to_be_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(project, HALVES)
    assert main(["verify", "--bisect", *COMMAND]) == 1
    assert "nothing was written: pass --apply" in capsys.readouterr().out
    assert (project / "train.py").read_text(encoding="utf-8") == TRAIN
    assert left_behind(project) == []


@pytest.mark.whole
def test_an_interruption_leaves_nothing_behind(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    commit(project, HALVES)
    monkeypatch.setattr("fsdp_migrate.commands.verdicts.echo", interrupted)
    assert main(["verify", "--bisect", "--apply", *COMMAND]) == 130
    assert "interrupted: nothing was written" in capsys.readouterr().err
    assert (project / "train.py").read_text(encoding="utf-8") == TRAIN
    assert left_behind(project) == []


@pytest.mark.whole
def test_what_others_have_written_is_left(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(project, "raise OSError('patched')")
    mine = TRAIN.replace("range(3)", "range(4)")
    (project / "train.py").write_text(mine, encoding="utf-8")
    assert main(["verify", "--bisect", "--apply", *COMMAND]) == 2
    out, err = capsys.readouterr()
    assert "OSError: patched" in out
    assert "the rewrite fails at train.py:24 (line of the rewrite); nearest finding (line of the old code):\n" in out
    assert "\n  train.py:19 FSDP201" in out
    assert "train.py: neither the old code nor its rewrite; nothing was written" in err
    assert (project / "train.py").read_text(encoding="utf-8") == mine


@pytest.mark.whole
def test_where_no_form_is_equal_that_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "    if hasattr(model, 'reshard'):\n        model[0].bias.data.fill_(1.0)\n    optimizer ="
    commit(project, "pass", TRAIN.replace("    optimizer =", other))
    assert main(["verify", "--bisect", *COMMAND]) == 1
    out, _ = capsys.readouterr()
    assert "no alternative form of any edit makes the runs equal (" in out
    assert "the difference first appears at before the first step, initial weights" in out


@pytest.mark.whole
def test_a_program_that_does_not_repeat_itself_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(project, HALVES, TRAIN.replace("manual_seed(0)", "seed()"))
    words = [word for word in COMMAND if word != "--no-repeat"]
    assert main(["verify", "--bisect", *words]) in (0, 1)
    assert "two runs of the old code differ" in capsys.readouterr().out


@pytest.mark.whole
def test_migrate_writes_the_form_that_is_equal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(project, HALVES)
    assert main(["migrate", *(word for word in COMMAND if word != "--no-repeat")]) == 0
    out, err = capsys.readouterr()
    assert "writing the alternative form of train.py:19 FSDP201, to be verified again" in err
    assert "== Why the rewrite differed" in out
    assert "== Left to do by hand\nthe code now imports fsdp_compat: install it on the machines that train" in out
    assert "fsdp_compat.clip_grad_norm_(model, 100.0)" in (project / "train.py").read_text(encoding="utf-8")


#: In the place of a framework that trains otherwise under the version that its configuration names.
FRAMEWORK = """
class TrainingArguments:
    def __init__(self, folder, fsdp, fsdp_config):
        self.scale = fsdp_config.get("version", 1)
"""
CONFIGURED = """
from transformers import TrainingArguments

arguments = TrainingArguments("out", fsdp="full_shard", fsdp_config={"version": 1})
"""


def test_a_configuration_is_not_put_back_to_fsdp1(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.parent / "site/transformers").mkdir(parents=True)
    (project.parent / "site/transformers/__init__.py").write_text(FRAMEWORK, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(project.parent / "site"))
    scaled = TRAIN.replace("lr=0.1", "lr=0.1 * arguments.scale").replace("\n\ndef main", f"{CONFIGURED}\n\ndef main")
    commit(project, "pass", scaled.replace("        model.clip_grad_norm_(100.0)\n", ""))
    assert main(["migrate", *(word for word in COMMAND if word != "--no-repeat")]) == 1
    out, err = capsys.readouterr()
    assert "that form is FSDP1's own configuration: it shows the cause, and is not written" in out
    assert "done: " not in out + err and "the runs differ" in out + err
    assert sum(line.startswith("different: ") for line in out.splitlines()) == 1
    assert '"version": 2' in (project / "train.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("--apply",), ("--bisect", "--to", "shim"), ("--bisect", "--resume", "2")])
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *words, "--", "true"]) == 2
    assert "--bisect compares a commit with its rewrite" in capsys.readouterr().err
