"""The file that says which parameters an optimizer was given."""

from __future__ import annotations

import json
import pathlib
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.checkpoints.model import build, optimizer_for
from fsdp_migrate.checkpoints.convert.optimizer.groups import RECIPE, read_groups
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from tests.checkpoints.convert.converting import converted

W = torch.ones(2, 3)


def _read(folder: Path, told: object) -> list[list[str]]:
    (folder / "groups.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return read_groups(folder / "groups.json")


def test_the_recipe_writes_the_names_of_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = build()
    exec(RECIPE, {"model": model, "optimizer": optimizer_for(model), "json": json, "pathlib": pathlib})
    blocks = [f"blocks.{number}.{name}" for number in range(2) for name in ("up.weight", "up.bias", "down.weight")]
    assert read_groups(tmp_path / "groups.json") == [blocks, ["gain", "tok.weight"]]


def test_wrappers_leave_no_trace(tmp_path: Path) -> None:
    wrapped = [["module._fsdp_wrapped_module.a._fsdp_wrapped_module._flat_param"], ["module._orig_mod.b"], []]
    assert _read(tmp_path, wrapped) == [["a._flat_param"], ["b"], []]
    assert _read(tmp_path, [["module.a"], ["b"]]) == [["module.a"], ["b"]]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("[", "cannot be read"),
        ("[" * 20000, "cannot be read"),
        ({"0": ["a"]}, "not a list of lists"),
        ([], "not a list of lists"),
        (["a"], "not a list of lists"),
        ([["a"], "b"], "not a list of lists"),
        ([["a", 1]], "1 is not a parameter name"),
        ([[""]], '"" is not a parameter name'),
        ([["a"], ["_orig_mod.a"]], "a occurs 2 times"),
    ],
)
def test_what_is_no_list_of_names_for_each_group_is_refused(told: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=why):
        _read(tmp_path, told)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=r"cannot be read: .*No such file"):
        read_groups(tmp_path / "groups.json")


@pytest.mark.parametrize(
    "groups",
    [
        {5: {"params": [0], "lr": 0.1}},
        {0: {"params": [0], "lr": 0.1}, 2: {"params": [1], "lr": 0.1}},
        {-1: {"params": [0], "lr": 0.1}},
    ],
)
def test_groups_that_are_no_list_are_refused(groups: Any, tmp_path: Path) -> None:
    torch.save({"state": {0: {"exp_avg": W}}, "param_groups": groups}, tmp_path / "in.pt")
    names = tmp_path / "groups.json"
    names.write_text(json.dumps([["w"], ["v"]][: len(groups)]))
    with pytest.raises(CannotConvert, match="are not a list, as torch's are"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL, groups=names)


@pytest.mark.parametrize("owner", ["²", "\u0660", "9" * 5000])
def test_numbers_of_other_digits_are_no_parameters(owner: str, tmp_path: Path) -> None:
    states = {0: {"exp_avg": W}, owner: {"exp_avg": W}}
    torch.save({"state": states, "param_groups": [{"params": [0], "lr": 0.1}]}, tmp_path / "in.pt")
    (tmp_path / "groups.json").write_text('[["w"]]')
    with pytest.raises(CannotConvert, match="is the state of a parameter that is not in its param groups"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL, groups=tmp_path / "groups.json")


@pytest.mark.parametrize("group", [W, 3, {1: W}, [W]])
def test_a_group_that_is_none_ends_in_no_traceback(group: Any, tmp_path: Path) -> None:
    state = {"state": {"w": {"exp_avg": W}}, "param_groups": [group, {"params": ["w"], "lr": 0.1}]}
    torch.save(state, tmp_path / "in.pt")
    converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL)
    assert repr(torch.load(tmp_path / "out")) == repr(state)
