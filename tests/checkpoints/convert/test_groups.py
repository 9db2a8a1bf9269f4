"""The file that says which parameters an optimizer was given."""

from __future__ import annotations

import json
import pathlib
from pathlib import Path

import pytest

from fixtures.checkpoints.model import build, optimizer_for
from fsdp_migrate.checkpoints.convert.optimizer.groups import RECIPE, read_groups
from fsdp_migrate.checkpoints.convert.state import CannotConvert


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
        ([["a"], ["_orig_mod.a"]], "a is in it 2 times"),
    ],
)
def test_what_is_no_list_of_names_for_each_group_is_refused(told: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=why):
        _read(tmp_path, told)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=r"cannot be read: .*No such file"):
        read_groups(tmp_path / "groups.json")
