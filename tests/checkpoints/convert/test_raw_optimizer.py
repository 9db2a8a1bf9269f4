"""Optimizers keyed by number, by name: bit for bit what FSDP1 gathers, and refused wherever that is not certain."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from fixtures.checkpoints.model import build, optimizer_for
from fsdp_migrate.checkpoints.convert.flat.template import Template, read_template
from fsdp_migrate.checkpoints.convert.optimizer.raw_optimizer import keyed_by_name
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import Key, TensorEntry
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests.checkpoints.convert.converting import converted
from tests.checkpoints.convert.templates import (
    as_json,
    as_safetensors,
    as_state_dict,
    model_of,
    only,
    state_of,
    tensor,
)
from tests.checkpoints.written import expected, flattened

Groups = list[list[str]]
BLOCKS = [f"blocks.{number}.{name}" for number in range(2) for name in ("up.weight", "up.bias", "down.weight")]
ORIG: Groups = [BLOCKS, ["gain", "tok.weight"]]
FLAT: Groups = [["blocks.0._flat_param", "blocks.1._flat_param"], ["_flat_param"]]


def _groups(root: Path, name: str) -> Groups:
    if not name.startswith("odd"):
        return FLAT if name.endswith("flat") else ORIG
    held = torch.load(root.parent / "expected" / root.name / f"{name.removesuffix('_raw')}.pt", weights_only=True)
    groups: Groups = held["groups"]
    return groups


def _wanted(root: Path, name: str) -> dict[Key, Any]:
    """The optimizer as FSDP1 gathered it in the run that saved the checkpoint."""
    held = expected(root, name.removesuffix("_raw"))
    if not name.startswith("odd"):
        return held
    return {key[1:]: value for key, value in held.items() if key[0] == "optim"}


def _without_ignored(model: nn.Module) -> nn.Module:
    if hasattr(model, "ignored"):
        del model.ignored
    return model


def _check(state: State, wanted: Mapping[Key, Any], prefix: Key = ()) -> None:
    held = {key[len(prefix) :]: entry for key, entry in state.entries.items() if key[: len(prefix)] == prefix}
    assert set(held) == set(wanted)
    for key, value in wanted.items():
        entry = held[key]
        if isinstance(value, torch.Tensor):
            assert isinstance(entry, TensorEntry)
            assert entry.shape == value.shape, key
            assert torch.equal(tensor(entry), value), key
        else:
            assert not isinstance(entry, TensorEntry)
            assert entry.value == value, key


ALL = ("raw_orig", "raw_flat", "odd_orig_raw", "odd_flat_raw", "odd_mixed_raw")
HYBRID = ("raw_hybrid_orig", "raw_hybrid_flat")


@pytest.mark.parametrize(("ranks", "name"), [(2, name) for name in ALL] + [(4, name) for name in (*ALL, *HYBRID)])
def test_slices_become_whole_and_named(ranks: int, name: str, slices: dict[int, Path], tmp_path: Path) -> None:
    found = only(slices[ranks] / name)
    template = as_json(_without_ignored(model_of(name)), tmp_path)
    state = keyed_by_name(found, state_of(found), _groups(slices[ranks], name), template)
    _check(state, _wanted(slices[ranks], name))
    assert any("left out ranks 2, 3" in note for note in state.notes) == ("hybrid" in name)


def test_slices_of_parameters_need_no_order(slices: dict[int, Path], tmp_path: Path) -> None:
    found = only(slices[2] / "raw_orig")
    state = keyed_by_name(found, state_of(found), ORIG, as_safetensors(build(), tmp_path))
    _check(state, _wanted(slices[2], "raw_orig"))


def test_whole_states_get_their_names(two_ranks: Path, tmp_path: Path) -> None:
    found = only(two_ranks / "fsdp2_raw_optimizer_dcp")
    names = [name for group in ORIG for name in group]
    wanted = {}
    for key, value in expected(two_ranks, "fsdp2_raw_optimizer_dcp").items():
        match key:
            case ("optimizer", "state", int(number), what):
                wanted["state", names[number], what] = value
            case ("optimizer", "param_groups", _, "params", _):
                wanted[key[1:]] = names[value]
            case ("optimizer", *rest):
                wanted[tuple(rest)] = value
    for template in (None, as_safetensors(build(), tmp_path)):
        state = keyed_by_name(found, state_of(found), ORIG, template)
        _check(state, wanted, ("optimizer",))
        assert state.sequences == found.sequences
        assert {key for key in state.entries if key[0] == "model"} == {
            key for key in found.entries if key[0] == "model"
        }


def _saved(folder: Path, change: Callable[[dict[str, Any]], None] = lambda state: None, named: bool = False) -> Path:
    """An optimizer of one process that has made a step, in a file of its own."""
    model = build()
    optimizer = optimizer_for(model)
    if named:
        pairs = list(model.named_parameters())
        optimizer = torch.optim.AdamW([{"params": pairs[:2]}, {"params": pairs[2:]}])
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    change(state)
    torch.save(state, folder / "optim.pt")
    return folder / "optim.pt"


def _keyed(path: Path, groups: Groups | None, template: Template | None = None) -> State:
    found = only(path)
    return keyed_by_name(found, state_of(found), groups, template)


def test_a_file_of_one_process(tmp_path: Path) -> None:
    state = _keyed(_saved(tmp_path), ORIG, as_state_dict(build(), tmp_path))
    held = dict(flattened(torch.load(tmp_path / "optim.pt", weights_only=True)))
    names = [name for group in ORIG for name in group]
    for number, name in enumerate(names):
        assert torch.equal(tensor(state.entries["state", name, "exp_avg"]), held["state", number, "exp_avg"])
    assert [state.entries["param_groups", 1, "params", place].value for place in (0, 1)] == ORIG[1]  # type: ignore[union-attr]


def test_names_in_the_file_are_taken(tmp_path: Path) -> None:
    names = [name for name, _ in build().named_parameters()]
    path = _saved(tmp_path, named=True)
    for groups in (None, [names[:2], names[2:]]):
        state = _keyed(path, groups)
        assert {key[1] for key in state.entries if key[0] == "state"} == set(names)
    with pytest.raises(CannotConvert, match="they differ from --groups"):
        _keyed(path, [names[1::-1], names[2:]])


def test_nothing_to_rename_no_change(slices: dict[int, Path]) -> None:
    found = only(slices[2] / "full_orig.pt")
    state = state_of(found)
    assert keyed_by_name(found, state, ORIG, None) is state


@pytest.mark.parametrize(
    ("name", "groups", "why"),
    [
        ("raw_orig", None, "does not contain its parameters and their order; pass the groups"),
        ("raw_orig", [BLOCKS], "has 2 param groups, but --groups has 1"),
        ("raw_orig", [BLOCKS, ["gain"]], "param group 1 has 2 parameters, but --groups has 1 names for it"),
        ("raw_orig", FLAT, "param group 0 has 6 parameters, but --groups has 2 names for it"),
        ("raw_orig", [BLOCKS, ["tok.weight", "gain"]], r"(step|exp_avg) of tok\.weight has 1 elements .* has 102"),
        ("raw_orig", [[*BLOCKS[:-1], "other"], ["gain", "tok.weight"]], "does not contain other, which has states in"),
        ("raw_flat", ORIG, "param group 0 has 2 parameters, but --groups has 6"),
        ("raw_flat", [["blocks.0._flat_param", "_flat_param"], ["blocks.1._flat_param"]], "163 elements on each of 2"),
        ("raw_flat", [["blocks.0._flat_param", "gain"], ["_flat_param"]], "gain has 326 elements"),
    ],
)
def test_groups_that_do_not_fit(
    name: str, groups: Groups | None, why: str, slices: dict[int, Path], tmp_path: Path
) -> None:
    with pytest.raises(CannotConvert, match=why):
        _keyed(slices[2] / name, groups, as_json(build(), tmp_path))


def test_slices_need_shapes(slices: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match="the ranks' states are slices without shapes"):
        _keyed(slices[2] / "raw_orig", ORIG)
    with pytest.raises(CannotConvert, match="does not contain their order; in a different order"):
        _keyed(slices[2] / "raw_flat", FLAT, as_safetensors(build(), tmp_path))


def test_flat_parameters_of_another_size(slices: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=r"_flat_param has 52 elements on each of 2 ranks, .* take 105, 53 on each"):
        _keyed(slices[2] / "raw_flat", FLAT, as_state_dict(build(), tmp_path))
    with pytest.raises(CannotConvert, match=r"_flat_param has 8 elements on each of 2 ranks, .* take 45, 23 on each"):
        _keyed(slices[2] / "odd_flat_raw", _groups(slices[2], "odd_flat"), as_json(model_of("odd"), tmp_path))


def test_buffers_that_hide_in_padding(slices: dict[int, Path], tmp_path: Path) -> None:
    (tmp_path / "gain.json").write_text(json.dumps({"tok.weight": [17, 6], "gain": [1]}))
    shapes = {**read_template(tmp_path / "gain.json").shapes, "extra": (1,)}
    shapes |= {name: shape for name, shape in as_json(build(), tmp_path).shapes.items() if name.startswith("blocks")}
    with pytest.raises(CannotConvert, match="fits all entries that it has for it, but also fits without some"):
        _keyed(slices[2] / "raw_flat", FLAT, Template(shapes, True, "it"))


@pytest.mark.parametrize("name", ["raw_orig", "raw_flat"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_files_of_ranks_that_are_not_there(name: str, rank: int, slices: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(slices[4] / name, tmp_path / "some")
    (tmp_path / "some" / f"optim_{rank}.pt").unlink()
    (found,) = open_all(tmp_path / "some")
    with pytest.raises(CannotConvert, match=r"elements on (all ranks together|each of 3 ranks)"):
        keyed_by_name(found, state_of(found), FLAT if name == "raw_flat" else ORIG, as_json(build(), tmp_path))


def _changed(folder: Path, source: Path, rank: int, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the files of ranks, one of them changed."""
    shutil.copytree(source, folder / "some")
    file = folder / "some" / f"optim_{rank}.pt"
    state = torch.load(file, weights_only=True)
    change(state)
    torch.save(state, file)
    return folder / "some"


def _another_step(state: dict[str, Any]) -> None:
    state["state"][1]["step"] += 1


def _another_lr(state: dict[str, Any]) -> None:
    state["param_groups"][0]["lr"] = 0.5


def _one_state_less(state: dict[str, Any]) -> None:
    del state["state"][1]["exp_avg_sq"]


def _another_dtype(state: dict[str, Any]) -> None:
    state["state"][1]["exp_avg"] = state["state"][1]["exp_avg"].double()


def _a_number_of_nobody(state: dict[str, Any]) -> None:
    state["state"][77] = state["state"][1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            _another_step,
            r"step of blocks\.0\.up\.bias differs from rank to rank \(2, 3\): a rank that did not use the parameter",
        ),
        (_another_lr, r"param_groups\.0\.lr differs from rank to rank"),
        (_one_state_less, r"the ranks have different states of blocks\.0\.up\.bias"),
        (_another_dtype, r"the ranks have different states of blocks\.0\.up\.bias"),
        (_a_number_of_nobody, r"state\.77\.step is the state of a parameter that is not in its param groups"),
    ],
)
def test_ranks_that_disagree(
    change: Callable[[dict[str, Any]], None], why: str, slices: dict[int, Path], tmp_path: Path
) -> None:
    path = _changed(tmp_path, slices[2] / "raw_orig", 1, change)
    with pytest.raises(CannotConvert, match=why):
        _keyed(path, ORIG, as_json(build(), tmp_path))


def _packed_steps(state: dict[str, Any]) -> None:
    """All counters as views of one tensor, which the other rank has not."""
    packed = torch.stack([held["step"] for held in state["state"].values()])
    for place, held in enumerate(state["state"].values()):
        held["step"] = packed[place]


def _left_behind(state: dict[str, Any]) -> None:
    """A state without elements whose counter is that of an earlier load."""
    held = state["state"][1]
    state["state"][2] = {name: value[:0] if value.dim() else value - 1 for name, value in held.items()}


@pytest.mark.parametrize(("change", "rank"), [(_packed_steps, 0), (_packed_steps, 1), (_left_behind, 0)])
def test_ranks_that_agree_in_other_bytes(
    change: Callable[[dict[str, Any]], None], rank: int, slices: dict[int, Path], tmp_path: Path
) -> None:
    path = _changed(tmp_path, slices[2] / "raw_orig", rank, change)
    _check(_keyed(path, ORIG, as_json(build(), tmp_path)), _wanted(slices[2], "raw_orig"))


def test_ranks_without_digests_agree(slices: dict[int, Path], tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = _changed(tmp_path, slices[2] / "raw_orig", 1, lambda state: None)
    finally:
        torch.serialization.set_crc32_options(True)
    _check(_keyed(path, ORIG, as_json(build(), tmp_path)), _wanted(slices[2], "raw_orig"))


def _another_value(state: dict[str, Any]) -> None:
    state["state"][7]["exp_avg"][0] += 1


def test_replicas_that_differ_are_none(slices: dict[int, Path], tmp_path: Path) -> None:
    path = _changed(tmp_path, slices[4] / "raw_hybrid_orig", 3, _another_value)
    with pytest.raises(CannotConvert, match="elements on all ranks together"):
        _keyed(path, ORIG, as_json(build(), tmp_path))


def test_replicas_must_be_there_equally_often(slices: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(slices[4] / "raw_hybrid_orig", tmp_path / "some")
    (tmp_path / "some" / "optim_3.pt").unlink()
    with pytest.raises(CannotConvert, match="elements on all ranks together"):
        _keyed(tmp_path / "some", ORIG, as_json(build(), tmp_path))


def _shorter(state: dict[str, Any]) -> None:
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"][1:].clone()


def _without_flat(state: dict[str, Any]) -> None:
    del state["state"][0]


@pytest.mark.parametrize("change", [_shorter, _without_flat])
def test_parts_of_flat_parameters_are_of_one_size(
    change: Callable[[dict[str, Any]], None], slices: dict[int, Path], tmp_path: Path
) -> None:
    path = _changed(tmp_path, slices[2] / "raw_flat", 1, change)
    with pytest.raises(
        CannotConvert,
        match=r"exp_avg of blocks\.0\._flat_param has different sizes on different "
        r"ranks",
    ):
        _keyed(path, FLAT, as_json(build(), tmp_path))


@pytest.mark.parametrize("name", ["_flat_param", "w"])
def test_what_is_not_contiguous_is_refused(name: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        state = {"state": {0: {"exp_avg": torch.rand(8)}}, "param_groups": [{"params": [0]}]}
        torch.save(state, tmp_path / f"optim_{rank}.pt")
    torch.save({"w": torch.zeros(2, 2, 2, 2).to(memory_format=torch.channels_last)}, tmp_path / "w.pth")
    found = next(one for one in open_all(tmp_path) if one.found.ranks)
    with pytest.raises(CannotConvert, match="w is not contiguous"):
        keyed_by_name(found, state_of(found), [[name]], read_template(tmp_path / "w.pth"))
    template = Template({"w": (2, 2, 2, 2)}, True, "it", parameters_only=True)
    notes = keyed_by_name(found, state_of(found), [[name]], template).notes
    assert notes[-1] == "assumes w is contiguous, which models in channels_last are not"


def test_a_folder_has_lost_parts_of_flat_parameters(slices: dict[int, Path], tmp_path: Path) -> None:
    state = torch.load(slices[2] / "raw_flat" / "optim_0.pt", weights_only=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save({"optimizer": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(CannotConvert, match="a folder keeps only one rank's parts"):
        _keyed(tmp_path / "dcp", FLAT, as_json(build(), tmp_path))


def test_one_rank_alone_is_not_taken_for_all(slices: dict[int, Path], tmp_path: Path) -> None:
    shutil.copy(slices[2] / "raw_orig" / "optim_0.pt", tmp_path / "only.pt")
    with pytest.raises(CannotConvert, match="all states have one dimension, like one rank's slices under FSDP1"):
        _keyed(tmp_path / "only.pt", ORIG)
    with pytest.raises(CannotConvert, match="or it is one rank's slice"):
        _keyed(tmp_path / "only.pt", ORIG, as_json(build(), tmp_path))


def test_shapes_that_the_groups_swap(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    swapped = [[*BLOCKS[3:], *BLOCKS[:3][::-1]], ["gain", "tok.weight"]]
    with pytest.raises(CannotConvert, match=r"exp_avg of .* has the shape \(25, 6\), and .* has \(6, 25\)"):
        _keyed(path, swapped, as_json(build(), tmp_path))


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    state = torch.load(path, weights_only=True)
    torch.save({"one": state, "two": state}, path)
    with pytest.raises(CannotConvert, match="leave out all but one of one, two"):
        _keyed(path, ORIG)


def test_a_part_cannot_be_left_out(tmp_path: Path) -> None:
    found = only(_saved(tmp_path))
    less = state_of(found).without([("state", 0, "exp_avg")])
    with pytest.raises(CannotConvert, match="leave out the whole optimizer, or none of it"):
        keyed_by_name(found, less, ORIG, None)


def _no_lists(state: dict[str, Any]) -> None:
    state["param_groups"] = [{"lr": 0.1}, {"lr": 0.2}]


def test_groups_without_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match="do not contain the numbers of each group"):
        _keyed(_saved(tmp_path, _no_lists), ORIG)


def test_an_optimizer_without_states_is_carried_and_noted(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    torch.save({"model": model.state_dict(), "optim": torch.optim.SGD(model.parameters()).state_dict()}, tmp_path / "a")
    done = converted(tmp_path / "a", tmp_path / "new", Target.FULL)
    assert any(note.startswith("optim has no states and numbers its parameters") for note in done.notes)
    groups = torch.load(tmp_path / "new", weights_only=True)["optim"]["param_groups"]
    assert groups[0]["params"] == [0, 1]


def _by_hand(folder: Path, states: list[dict[int, dict[str, Any]]], shapes: dict[str, list[int]]) -> State:
    """What rank files with these ``states`` become; the parameters are those of ``shapes``, in one group."""
    folder.mkdir()
    for rank, state in enumerate(states):
        group = {"params": list(range(len(shapes))), "lr": 0.1}
        torch.save({"state": state, "param_groups": [group]}, folder / f"optim_{rank}.pt")
    (folder.parent / "template.json").write_text(json.dumps(shapes))
    (folder.parent / "groups.json").write_text(json.dumps([list(shapes)]))
    target = folder.parent / "new.pt"
    converted(
        folder, target, Target.FULL, template=folder.parent / "template.json", groups=folder.parent / "groups.json"
    )
    return state_of(only(target))


def test_a_parameter_that_one_rank_holds_whole(tmp_path: Path) -> None:
    """The others have no state of it, or an empty one that made no step, as Adagrad fills it in from the start."""
    one, two = torch.arange(3.0), torch.arange(3.0, 4.0)
    whole, empty = torch.arange(2.0) + 7, torch.zeros(0)
    ranks = [
        {0: {"step": torch.tensor(2.0), "sum": one}, 1: {"step": torch.tensor(0.0), "sum": empty}},
        {
            0: {"step": torch.tensor(2.0), "sum": two},
            1: {"step": torch.tensor(2.0), "sum": whole},
            2: {"step": torch.tensor(2.0), "sum": whole * 2},
        },
    ]
    state = _by_hand(tmp_path / "ranks", ranks, {"a": [2, 2], "b": [2], "c": [2]})
    found = {key: tensor(entry) for key, entry in state.entries.items() if key[0] == "state"}
    assert found["state", "a", "sum"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert found["state", "b", "sum"].tolist() == [7.0, 8.0]
    assert found["state", "c", "sum"].tolist() == [14.0, 16.0]
    assert {found["state", name, "step"].item() for name in "abc"} == {2.0}


def test_a_state_of_its_own_shape(tmp_path: Path) -> None:
    """It is no slice where it has one shape for every parameter, and the others of each parameter do not."""
    pair = torch.tensor([1.0, 0.5])
    ranks = [
        {0: {"m": torch.full((3,), 1.0 * rank), "pair": pair}, 1: {"m": torch.ones(1), "pair": pair}}
        for rank in range(2)
    ]
    state = _by_hand(tmp_path / "ranks", ranks, {"a": [3, 2], "b": [2]})
    assert tensor(state.entries["state", "a", "pair"]).tolist() == [1.0, 0.5]
    assert tensor(state.entries["state", "a", "m"]).tolist() == [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]


def test_states_of_one_shape_that_differ_from_rank_to_rank(tmp_path: Path) -> None:
    ranks = [
        {0: {"m": torch.ones(3), "pair": torch.full((2,), 1.0 * rank)}, 1: {"m": torch.ones(1)}} for rank in range(2)
    ]
    with pytest.raises(CannotConvert, match="pair of a differs from rank to rank"):
        _by_hand(tmp_path / "ranks", ranks, {"a": [3, 2], "b": [2]})
