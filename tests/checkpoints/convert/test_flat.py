"""Parameters out of flat parameters: bit for bit what FSDP1 gathers, and refused wherever that is not certain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fixtures.checkpoints.model import build
from fsdp_migrate.checkpoints.convert.flat.flat import unflattened
from fsdp_migrate.checkpoints.convert.flat.template import Template, read_template
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests.checkpoints.convert.converting import converted
from tests.checkpoints.convert.templates import (
    as_copies,
    as_json,
    as_safetensors,
    as_state_dict,
    model_of,
    only,
    state_of,
    tensor,
)
from tests.checkpoints.written import expected

RANKS = ("local_orig", "local_flat", "odd_orig", "odd_mixed", "odd_flat")
FOLDERS = tuple(f"{name}_dcp" for name in RANKS)
Made = Callable[[nn.Module, Path], Template]


def _wanted(root: Path, name: str) -> dict[str, torch.Tensor]:
    """The model as FSDP1 gathered it in the run that saved the checkpoint."""
    held = expected(root, name.removesuffix("_dcp"))
    start = ("whole", "model") if name.startswith("local") else ("model",)
    return {key[-1]: value for key, value in held.items() if key[:-1] == start}


def _unflattened(path: Path, template: Template | None) -> State:
    found = only(path)
    return unflattened(found, state_of(found), template)


def _check(state: State, wanted: dict[str, Any], root: tuple[str, ...] = ()) -> None:
    held = {key: entry for key, entry in tensors(state.entries) if key[:-1] == root}
    # Each rank keeps buffers of its own where they are trained; which one a folder has is of no concern here.
    of_ranks = [name for name in wanted if "running" in name]
    assert {key[-1] for key in held} == set(wanted)
    for name, value in wanted.items():
        entry = held[(*root, name)]
        assert entry.shape == value.shape, name
        if name not in of_ranks:
            assert torch.equal(tensor(entry), value), name


@pytest.mark.parametrize("name", [*RANKS, *FOLDERS])
@pytest.mark.parametrize("ranks", [2, 4])
def test_parameters_in_their_order_tell_all(ranks: int, name: str, slices: dict[int, Path], tmp_path: Path) -> None:
    state = _unflattened(slices[ranks] / name, as_json(model_of(name), tmp_path))
    _check(state, _wanted(slices[ranks], name))


@pytest.mark.parametrize("name", [*RANKS, "local_flat_dcp", "odd_flat_dcp"])
@pytest.mark.parametrize("made", [as_state_dict, as_copies])
def test_a_state_dict_tells_what_is_not_beside(made: Made, name: str, slices: dict[int, Path], tmp_path: Path) -> None:
    state = _unflattened(slices[2] / name, made(model_of(name), tmp_path))
    _check(state, _wanted(slices[2], name))


@pytest.mark.parametrize("name", ["local_orig", "odd_orig", "odd_mixed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_need_shapes_alone(ranks: int, name: str, slices: dict[int, Path], tmp_path: Path) -> None:
    state = _unflattened(slices[ranks] / name, as_safetensors(model_of(name), tmp_path))
    _check(state, _wanted(slices[ranks], name))


def test_an_optimizer_in_the_checkpoint_has_the_shapes(slices: dict[int, Path]) -> None:
    state = _unflattened(slices[2] / "odd_mixed_both", None)
    _check(state, _wanted(slices[2], "odd_mixed"), ("model",))


def test_a_frozen_parameter_has_no_shape_in_an_optimizer(slices: dict[int, Path]) -> None:
    with pytest.raises(CannotConvert, match=r"pieces\.0\.shift has 3 elements in .*, but its shape is not in the opti"):
        _unflattened(slices[2] / "odd_orig_both", None)


def test_template_and_optimizer_must_agree(slices: dict[int, Path], tmp_path: Path) -> None:
    template = _json(tmp_path, {**_shapes("odd_mixed"), "stem.weight": [3, 5]})
    with pytest.raises(CannotConvert, match=r"stem\.weight has the shape \(3, 5\) in .* and \(5, 3\) in the optimizer"):
        _unflattened(slices[2] / "odd_mixed_both", template)


def test_all_names_of_a_parameter_come_back(slices: dict[int, Path], tmp_path: Path) -> None:
    for name in ("local_orig", "local_flat", "local_orig_dcp", "local_flat_dcp"):
        state = _unflattened(slices[2] / name, as_json(build(), tmp_path))
        assert state.entries["tok.weight",] == state.entries["head.weight",]


def test_a_name_that_a_template_lacks_is_the_tied_ones(slices: dict[int, Path], tmp_path: Path) -> None:
    state = _unflattened(slices[2] / "local_orig", as_json(build(), tmp_path, tied=False))
    _check(state, _wanted(slices[2], "local_orig"))


def test_what_is_taken_for_tied_is_said(slices: dict[int, Path], tmp_path: Path) -> None:
    (first, second) = _unflattened(slices[2] / "local_flat", as_copies(build(), tmp_path)).notes
    assert first.startswith("split 9 parameters out of 3 flat parameters, names and shapes from ")
    assert second.startswith("assumes head.weight is tied to tok.weight: they have equal elements in ")


def test_what_was_left_out_stays_out(slices: dict[int, Path], tmp_path: Path) -> None:
    found = only(slices[2] / "local_orig")
    state = state_of(found).without([("gain",), ("blocks.0._flat_param",)])
    held = unflattened(found, state, as_json(build(), tmp_path)).entries
    assert ("gain",) not in held
    assert torch.equal(tensor(held["tok.weight",]), _wanted(slices[2], "local_orig")["tok.weight"])


def test_no_flat_parameters_no_change(slices: dict[int, Path]) -> None:
    found = only(slices[2] / "sharded_orig")
    state = state_of(found)
    assert unflattened(found, state, None) is state


def test_wrappers_stay_for_others_to_strip(tmp_path: Path) -> None:
    torch.save({"module.a._fsdp_wrapped_module._flat_param": torch.arange(6.0)}, tmp_path / "a.pt")
    state = _unflattened(tmp_path / "a.pt", _json(tmp_path, {"module.a.w": [2, 3]}))
    assert torch.equal(tensor(state.entries["module.a.w",]), torch.arange(6.0).reshape(2, 3))


def test_one_parameter_needs_no_order(tmp_path: Path) -> None:
    torch.save({"a._flat_param": torch.arange(6.0), "n": torch.ones(2)}, tmp_path / "a.pt")
    save_file({"a.w": torch.zeros(3, 2), "n": torch.ones(2)}, tmp_path / "a.safetensors")
    state = _unflattened(tmp_path / "a.pt", read_template(tmp_path / "a.safetensors"))
    assert torch.equal(tensor(state.entries["a.w",]), torch.arange(6.0).reshape(3, 2))


def test_convolutions_are_noted(tmp_path: Path) -> None:
    torch.save({"_flat_param": torch.arange(16.0)}, tmp_path / "a.pt")
    state = _unflattened(tmp_path / "a.pt", _json(tmp_path, {"w": [2, 2, 2, 2]}))
    assert state.notes[-1] == "assumes w is contiguous, which models in channels_last are not"


def test_what_is_not_contiguous_is_refused(tmp_path: Path) -> None:
    torch.save({"_flat_param": torch.arange(16.0)}, tmp_path / "a.pt")
    torch.save({"w": torch.zeros(2, 2, 2, 2).to(memory_format=torch.channels_last)}, tmp_path / "w.pt")
    with pytest.raises(CannotConvert, match="w is not contiguous"):
        _unflattened(tmp_path / "a.pt", read_template(tmp_path / "w.pt"))


def _shapes(name: str) -> dict[str, Any]:
    return {name: list(value.shape) for name, value in model_of(name).named_parameters()}


def _json(folder: Path, told: dict[str, Any]) -> Template:
    (folder / "template.json").write_text(json.dumps(told))
    return read_template(folder / "template.json")


@pytest.mark.parametrize("name", ["local_flat", "local_flat_dcp", "local_orig_dcp"])
def test_nothing_is_guessed_without_a_template(name: str, slices: dict[int, Path]) -> None:
    with pytest.raises(CannotConvert, match="does not contain the names, shapes and order of its parameters"):
        _unflattened(slices[2] / name, None)


def test_slices_without_shapes_are_refused(slices: dict[int, Path]) -> None:
    with pytest.raises(CannotConvert, match=r"has \d+ elements in .*_flat_param, but its shape is not in a template"):
        _unflattened(slices[2] / "local_orig", None)


@pytest.mark.parametrize("name", ["local_flat", "local_flat_dcp", "local_orig_dcp", "odd_flat"])
def test_several_parameters_need_their_order(name: str, slices: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(
        CannotConvert,
        match="does not contain their order; in a different order, elements would silently be assigned to other",
    ):
        _unflattened(slices[2] / name, as_safetensors(model_of(name), tmp_path))


@pytest.mark.parametrize("name", ["local_flat", "local_orig_dcp"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"blocks.0.up.bias": [24]}, r"has 3(25|30) elements, and the 3 parameters that .* take 324"),
        ({"blocks.0.up.bias": None}, "has 3(25|30) elements, and the 2 parameters that .* take 300"),
        ({"gain": [2, 2]}, "_flat_param has 10[36] elements"),
        ({"tok.weight": [16, 6]}, "_flat_param has 10[36] elements"),
        ({"more": [30]}, "_flat_param has 10[36] elements, and the 3 parameters"),
    ],
)
def test_another_model_does_not_fit(
    change: dict[str, Any], why: str, name: str, slices: dict[int, Path], tmp_path: Path
) -> None:
    with pytest.raises(CannotConvert, match=why):
        _unflattened(
            slices[2] / name, _json(tmp_path, {**_shapes(name), "head.weight": "tok.weight", "mean": None, **change})
        )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"blocks.0.up.bias": [24]}, r"blocks\.0\.up\.bias has 25 elements .* and the shape \(24,\)"),
        ({"blocks.0.up.bias": None}, r"blocks\.0\.up\.bias has 25 elements .* its shape is not in"),
        ({"head.weight": [6, 18]}, r"head\.weight has 102 elements .* and the shape \(6, 18\)"),
        ({"mean": [3]}, r"mean has the shape \(2,\) here, \(3,\) in"),
    ],
)
def test_another_model_has_other_shapes(
    change: dict[str, Any], why: str, slices: dict[int, Path], tmp_path: Path
) -> None:
    with pytest.raises(CannotConvert, match=why):
        _unflattened(slices[2] / "local_orig", _json(tmp_path, {**_shapes("local_orig"), **change}))


def test_tied_parameters_must_be_told(slices: dict[int, Path], tmp_path: Path) -> None:
    template = _json(tmp_path, {**_shapes("local_flat"), "head.weight": [17, 6]})
    with pytest.raises(CannotConvert, match=r"if tok\.weight and head\.weight are tied, say so in the template"):
        _unflattened(slices[2] / "local_flat", template)


def test_what_may_be_a_slice_must_be_told(slices: dict[int, Path], tmp_path: Path) -> None:
    for tied, buffers, name in ((True, False, "mean"), (False, True, r"head\.weight")):
        with pytest.raises(CannotConvert, match=f"{name} is not in .* It may be a buffer, or one rank's slice"):
            _unflattened(slices[2] / "local_orig_dcp", as_json(build(), tmp_path, tied, buffers))


def test_what_fits_in_two_ways_is_refused(slices: dict[int, Path], tmp_path: Path) -> None:
    for name in ("local_orig_dcp", "odd_orig_dcp"):
        with pytest.raises(
            CannotConvert, match="in more than one way; pass a template that separates parameters and buff"
        ):
            _unflattened(slices[2] / name, as_state_dict(model_of(name), tmp_path))


def test_slices_of_all_parameters_must_be_there(slices: dict[int, Path], tmp_path: Path) -> None:
    found = only(slices[2] / "local_orig")
    gone = ("blocks.0.up.bias",)
    ranks = {
        rank: replace(file, entries={key: entry for key, entry in file.entries.items() if key != gone})
        for rank, file in found.ranks.items()
    }
    less = replace(found, ranks=ranks, entries={key: entry for key, entry in found.entries.items() if key != gone})
    with pytest.raises(CannotConvert, match=r"blocks\.0\._flat_param has 330 elements, but the slices .* have 300"):
        unflattened(less, state_of(less), as_json(build(), tmp_path))


def test_slices_of_ranks_must_follow_each_other(slices: dict[int, Path], tmp_path: Path) -> None:
    found = only(slices[2] / "local_orig")
    entries = {**found.ranks[1].entries}
    entries["blocks.0.up.bias",] = entries["blocks.0.down.weight",]
    wrong = replace(found, ranks={**found.ranks, 1: replace(found.ranks[1], entries=entries)})
    with pytest.raises(CannotConvert, match=r"slices of blocks\.0\.up\.bias on several ranks are not contiguous"):
        unflattened(wrong, state_of(wrong), as_json(build(), tmp_path))


def test_ranks_that_are_not_there_are_missed(slices: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(slices[4] / "local_flat", tmp_path / "some")
    (tmp_path / "some" / "rank_2.pt").unlink()
    (found,) = open_all(tmp_path / "some")
    with pytest.raises(CannotConvert, match="26 of the 103 elements of _flat_param are missing"):
        unflattened(found, state_of(found), as_json(build(), tmp_path))


def test_several_flat_parameters_of_one_module_are_refused(tmp_path: Path) -> None:
    torch.save({"flat_param_0": torch.zeros(2), "flat_param_1": torch.zeros(2)}, tmp_path / "a.pt")
    with pytest.raises(CannotConvert, match="the module of flat_param_0 has several flat parameters"):
        _unflattened(tmp_path / "a.pt", _json(tmp_path, {"w": [2]}))


def test_a_dictionary_that_was_copied_tells_no_order(slices: dict[int, Path], tmp_path: Path) -> None:
    """Names may have been sorted, or come from a folder, which keeps no order: nothing says that they were not."""
    torch.save(dict(sorted(build().state_dict().items())), tmp_path / "template.pt")
    with pytest.raises(CannotConvert, match="does not contain their order"):
        _unflattened(slices[2] / "local_flat", read_template(tmp_path / "template.pt"))
    _unflattened(slices[2] / "local_orig", read_template(tmp_path / "template.pt"))


def test_safetensors_hold_tied_parameters_once(slices: dict[int, Path], tmp_path: Path) -> None:
    as_json(build(), tmp_path)
    done = converted(
        slices[2] / "local_flat", tmp_path / "new", Target.SAFETENSORS, template=tmp_path / "template.json"
    )
    held = load_file(tmp_path / "new" / "model.safetensors")
    wanted = _wanted(slices[2], "local_flat")
    assert held.keys() == wanted.keys() - {"head.weight"}
    assert all(torch.equal(value, wanted[name]) for name, value in held.items())
    assert any(note.startswith("left out head.weight") for note in done.notes)
