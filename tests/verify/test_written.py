"""Checkpoints that both runs write are compared tensor by tensor, whatever file they are in."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from fsdp_migrate.verify.written import Written, compare
from tests.verify.test_verify_command import PYTHON, commit, told

WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)}
CHANGED = {**WEIGHTS, "w": WEIGHTS["w"] + 2**-20}


def _save(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """The same in each format."""
    folder.mkdir()
    torch.save({"model": weights, "step": 3}, folder / "one.pt")
    save_file(weights, folder / "one.safetensors")
    (folder / "ranks").mkdir()
    for rank in range(2):
        torch.save(weights, folder / "ranks" / f"rank_{rank}.pt")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save({"model": weights}, checkpoint_id=folder / "folder", no_dist=True)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    known = tmp_path / "known"
    known.mkdir()
    return known


def test_equal_files_of_every_format(tmp_path: Path, known: Path) -> None:
    for side in ("before", "after"):
        _save(tmp_path / side, WEIGHTS)
    found = compare(tmp_path / "before", tmp_path / "after", known)
    assert sorted(found.equal) == ["folder", "one.pt", "one.safetensors", "ranks/rank_0.pt"]
    assert (found.different, found.only_before, found.only_after) == ((), (), ())


def test_one_changed_tensor_in_every_format(tmp_path: Path, known: Path) -> None:
    _save(tmp_path / "before", WEIGHTS)
    _save(tmp_path / "after", CHANGED)
    found = dict(compare(tmp_path / "before", tmp_path / "after", known).different)
    assert found == {
        "folder": "model.w has other elements",
        "one.pt": "model.w has other elements",
        "one.safetensors": "w has other elements",
        "ranks/rank_0.pt": "w has other elements",
    }


def _optimizer(moment: torch.Tensor, square: torch.Tensor) -> dict[str, object]:
    states = {"exp_avg": moment, "exp_avg_sq": square, "step": torch.tensor(3.0)}
    return {"model": WEIGHTS, "optim": {"state": {"w": states}, "param_groups": [{"lr": 0.1, "params": ["w"]}]}}


@pytest.mark.parametrize("changed", ["nothing", "step", "weight", "square"])
def test_states_that_the_old_file_has_lost(changed: str, tmp_path: Path, known: Path) -> None:
    """FSDP1 on the CPU writes the states of a parameter as one tensor."""
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
    square = torch.arange(6.0)
    torch.save(_optimizer(square, square), tmp_path / "before/one.pt")
    after = _optimizer(square + 1, square.clone())
    if changed == "step":
        after["optim"]["state"]["w"]["step"] = torch.tensor(4.0)  # type: ignore[index]
    if changed == "square":
        after["optim"]["state"]["w"]["exp_avg_sq"] = square + 2  # type: ignore[index]
    if changed == "weight":
        after["model"] = CHANGED
    torch.save(after, tmp_path / "after/one.pt")
    found = compare(tmp_path / "before", tmp_path / "after", known)
    assert found.equal == (("one.pt",) if changed == "nothing" else ())
    assert [name for name, _ in found.different] == ([] if changed == "nothing" else ["one.pt"])
    if changed == "nothing":
        ((name, said),) = found.lost
        assert name == "one.pt" and "exp_avg and exp_avg_sq of 1 parameter are one tensor in the old file" in said


def test_states_that_both_files_lack_are_compared(tmp_path: Path, known: Path) -> None:
    for side, square in (("before", torch.arange(6.0)), ("after", torch.ones(6))):
        (tmp_path / side).mkdir()
        torch.save(_optimizer(square, square), tmp_path / side / "one.pt")
    found = compare(tmp_path / "before", tmp_path / "after", known)
    assert [name for name, _ in found.different] == ["one.pt"] and not found.lost


def test_names_shapes_and_files_of_one_run(tmp_path: Path, known: Path) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        torch.save(WEIGHTS, tmp_path / side / "known.pt")
    torch.save(WEIGHTS, known / "known.pt")
    torch.save(WEIGHTS, tmp_path / "before" / "a.pt")
    torch.save({"module.w": WEIGHTS["w"], "b": WEIGHTS["b"]}, tmp_path / "after" / "a.pt")
    torch.save(WEIGHTS, tmp_path / "before" / "b.pt")
    torch.save({**WEIGHTS, "b": torch.ones(4)}, tmp_path / "after" / "b.pt")
    torch.save(WEIGHTS, tmp_path / "before" / "old.pt")
    torch.save(WEIGHTS, tmp_path / "after" / "new.pt")
    different = (("a.pt", "w is written before only"), ("b.pt", "b is float32 (3,) before and float32 (4,) after"))
    found = compare(tmp_path / "before", tmp_path / "after", known)
    assert found == Written((), different, ("old.pt",), ("new.pt",))


SAVING = """
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{Path.cwd()}/store", rank=0, world_size=1)
torch.manual_seed(0)
model = FSDP(torch.nn.Linear(3, 4), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), f"model_{step}.pt")
"""


def test_the_command_compares_what_the_program_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text(SAVING, encoding="utf-8")
    commit(Path.cwd())
    report = tmp_path / "report.json"
    code, text = told(capsys, "--no-repeat", "--report", str(report), "--", PYTHON, "train.py")
    assert code == 0, text
    assert "checkpoints written          3 of 3 equal" in text
    assert json.loads(report.read_text())["written"]["equal"] == ["model_0.pt", "model_1.pt", "model_2.pt"]
