"""Templates: what each kind of file tells about names, shapes and order, and what is refused."""

from __future__ import annotations

import json
import pathlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fixtures.checkpoints import hostile
from fixtures.checkpoints.model import Net, build
from fsdp_migrate.checkpoints.convert.flat.template import RECIPE, Template, read_template, template_of_optimizer
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all

NAMES = [name for name, _ in build().named_parameters()]


@pytest.fixture
def model() -> Net:
    return build()


def _written(path: Path, told: object) -> Template:
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    return read_template(path)


def test_the_recipe_writes_names_shapes_and_ties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.device("meta"):
        model = Net()
    exec(RECIPE, {"model": model, "json": json, "pathlib": pathlib})
    told = read_template(tmp_path / "template.json")
    assert list(told.shapes) == [*NAMES, "head.weight"]
    assert told.shapes["head.weight"] == told.shapes["tok.weight"] == (17, 6)
    assert dict(told.ties) == {"head.weight": "tok.weight"}
    assert told.ordered
    assert told.parameters_only
    assert told.buffers == {"blocks.0.calls", "blocks.1.calls", "count", "mean", "scratch"}


def test_a_state_dict_tells_the_order_and_ties(model: Net, tmp_path: Path) -> None:
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "a.pt")
    told = read_template(tmp_path / "a.pt")
    assert [name for name in told.shapes if name in NAMES] == NAMES
    assert set(told.shapes) == {*NAMES, "head.weight", "mean"}
    assert dict(told.ties) == {"head.weight": "tok.weight"}
    assert told.ordered
    assert not told.parameters_only


def test_copies_of_one_matrix_may_be_tied(model: Net, tmp_path: Path) -> None:
    states = {name: value.clone() for name, value in model.state_dict().items()}
    states["blocks.1.up.bias"] = states["blocks.0.up.bias"].clone()
    torch.save(states, tmp_path / "a.pt")
    told = read_template(tmp_path / "a.pt")
    assert not told.ties
    assert dict(told.alike) == {"head.weight": "tok.weight"}


def test_safetensors_have_no_order(tmp_path: Path) -> None:
    save_file({"b": torch.zeros(2, 3), "a": torch.zeros(4)}, tmp_path / "x-00001-of-00001.safetensors")
    (tmp_path / "x.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(("a", "b"), "x-00001-of-00001.safetensors")})
    )
    for name in ("x-00001-of-00001.safetensors", "x.safetensors.index.json", ""):
        told = read_template(tmp_path / name)
        assert dict(told.shapes) == {"a": (4,), "b": (2, 3)}
        assert not told.ordered


def test_an_optimizer_has_no_order(tmp_path: Path) -> None:
    states = {
        "module.b": {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2, 3)},
        "module._orig_mod.a": {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "row": torch.zeros(1)},
    }
    torch.save({"state": states, "param_groups": [{"params": list(states)}]}, tmp_path / "a.pt")
    told = read_template(tmp_path / "a.pt")
    assert dict(told.shapes) == {"b": (2, 3), "a": (4,)}
    assert not told.ordered


def test_a_checkpoint_without_an_optimizer_gives_no_template(model: Net, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert template_of_optimizer(open_all(tmp_path / "a.pt")[0]) is None


def test_states_of_several_shapes_are_refused(tmp_path: Path) -> None:
    states = {"a": {"exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(5)}}
    torch.save({"state": states, "param_groups": [{"params": ["a"]}]}, tmp_path / "a.pt")
    with pytest.raises(CannotConvert, match=r"state\.a\.exp_avg_sq has the shape \(5,\)"):
        read_template(tmp_path / "a.pt")


@pytest.mark.parametrize("wrapper", ["_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module."])
def test_wrappers_leave_no_trace(wrapper: str, tmp_path: Path) -> None:
    told = _written(tmp_path / "a.json", {f"{wrapper}a.weight": [2], f"{wrapper}b": f"{wrapper}a.weight"})
    assert dict(told.shapes) == {"a.weight": (2,), "b": (2,)}
    assert dict(told.ties) == {"b": "a.weight"}


def test_a_module_called_module_keeps_its_name(tmp_path: Path) -> None:
    told = _written(tmp_path / "a.json", {"module.a": [2], "b": [1]})
    assert list(told.shapes) == ["module.a", "b"]


def test_elements_in_another_order_are_told(tmp_path: Path) -> None:
    for size, strided in ((2, {"weight"}), (1, set())):
        weight = torch.zeros(3, 2, size, size).to(memory_format=torch.channels_last)
        torch.save({"weight": weight}, tmp_path / "a.pt")
        assert read_template(tmp_path / "a.pt").strided == strided


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("{", "not valid JSON"),
        ("{}", "no names"),
        ('{"a": [1], "a": [2]}', "a occurs twice in the template"),
        ({"a": [1.5]}, "a has \\[1.5\\], which is not a shape"),
        ({"a": [-1]}, "which is not a shape"),
        ({"a": [True]}, "which is not a shape"),
        ({"a": None}, "no names"),
        ({"a": "b", "b": None}, "the shape of a is b"),
        ({"a": {"b": [1]}}, "which is not a shape"),
        ({"b": "a", "a": [1]}, "the shape of b is a"),
        ({"a": [1], "b": "a", "c": "b"}, "the shape of c is b"),
        ({"a": [1], "_orig_mod.a": [1]}, "two names in the template become a"),
        ({"weight_map": {"a": "b"}}, "neither a torch.save file nor a safetensors file"),
        ("[1]", "neither a torch"),
        ("{" + '"a": {' * 20000, "not valid JSON"),
    ],
)
def test_json_that_is_no_template(told: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=why):
        _written(tmp_path / "a.json", told)


@pytest.mark.parametrize("payload", hostile.PAYLOADS)
def test_a_template_is_not_unpickled(payload: str, tmp_path: Path) -> None:
    hostile.archive(hostile.PAYLOADS[payload](tmp_path / "sentinel"), tmp_path / "a.pt")
    with pytest.raises(CannotConvert, match=r"a\.pt"):
        read_template(tmp_path / "a.pt")
    assert not (tmp_path / "sentinel").exists()


def _broken(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 and nothing more")


def _of_numbers(path: Path) -> None:
    torch.save({"epoch": 3, "ids": torch.arange(3)}, path)


def _on_meta(path: Path) -> None:
    torch.save(build().to("meta").state_dict(), path)


def _flat(path: Path) -> None:
    torch.save({"_flat_param": torch.zeros(3)}, path)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (_broken, "cannot be read|is incomplete"),
        (_of_numbers, "no model tensors"),
        (_on_meta, "no model tensors"),
        (_flat, "itself has flat parameters"),
    ],
)
def test_files_that_are_no_template(write: Any, why: str, tmp_path: Path) -> None:
    write(tmp_path / "a.pt")
    with pytest.raises(CannotConvert, match=why):
        read_template(tmp_path / "a.pt")


def test_what_is_not_there_or_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match="no such file"):
        read_template(tmp_path / "a.pt")
    with pytest.raises(CannotConvert, match="0 found here"):
        read_template(tmp_path)
    for name in ("a.pt", "b.pt"):
        torch.save({"a": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(CannotConvert, match=r"2 found here: .*a\.pt, .*b\.pt"):
        read_template(tmp_path)
