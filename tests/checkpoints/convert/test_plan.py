"""What is refused, and why; what is left out or renamed, and that it is said; and odd values that must arrive."""

from __future__ import annotations

import argparse
import collections
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from tests.checkpoints.convert.converting import converted

W = torch.arange(6.0).view(2, 3)


def _saved(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def _saved_as_folder(path: Path, value: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save(value, checkpoint_id=path, no_dist=True)
    return path


def _refused(source: Path, target: Path, to: Target = Target.FULL, **wanted: Any) -> str:
    """Why; nothing is left at or beside the target."""
    before = set(target.parent.iterdir()) if target.parent.is_dir() else set()
    with pytest.raises((CannotConvert, BadCheckpoint)) as error:
        converted(source, target, to, **wanted)
    assert (set(target.parent.iterdir()) if target.parent.is_dir() else set()) == before
    return str(error.value)


def _read(target: Path, to: Target) -> Any:
    if to is Target.FULL:
        return torch.load(target, weights_only=True)
    if to is Target.SAFETENSORS:
        return load_file(target / "model.safetensors")
    dcp_to_torch_save(target, target.with_suffix(".read"))
    return torch.load(target.with_suffix(".read"), weights_only=True)


# Source and target


def test_several_checkpoints(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        _saved(tmp_path / "in" / name, {"w": W})
    said = _refused(tmp_path / "in", tmp_path / "new")
    assert said == (
        f"{tmp_path / 'in'}: 2 checkpoints found in it; pass one of them: "
        f"{tmp_path / 'in' / 'a.pt'}, {tmp_path / 'in' / 'b.pt'}"
    )


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert _refused(tmp_path / "in", tmp_path / "new") == f"{tmp_path / 'in'}: contains no checkpoint"


def test_no_source(tmp_path: Path) -> None:
    assert str(tmp_path / "gone") in _refused(tmp_path / "gone", tmp_path / "new")


def _file(path: Path) -> None:
    path.write_text("mine")


def _folder(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [_file, _folder, _dangling])
@pytest.mark.parametrize("to", list(Target))
def test_a_target_that_is_there(make: Callable[[Path], None], to: Target, tmp_path: Path) -> None:
    make(tmp_path / "new")
    said = _refused(_saved(tmp_path / "in.pt", {"w": W}), tmp_path / "new", to)
    assert said == f"{tmp_path / 'new'}: it already exists, and nothing is overwritten: choose another name"


def test_a_target_in_the_source(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in" / "a.pt", {"w": W}).parent
    assert "it is inside the checkpoint that is read" in _refused(source, source / "new")
    (tmp_path / "link").symlink_to(source)
    assert "it is inside the checkpoint that is read" in _refused(source, tmp_path / "link" / "new")


@pytest.mark.parametrize("to", list(Target))
def test_links_on_the_way_to_a_target(to: Target, tmp_path: Path) -> None:
    """What a target is called may be reached by links; the place itself must be free, of links too."""
    source = _saved(tmp_path / "in.pt", {"w": W})
    (tmp_path / "real").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("real")
    converted(source, tmp_path / "first" / "new", to)
    assert (tmp_path / "real" / "new").exists()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]
    (tmp_path / "loop").symlink_to("loop")
    for taken in (tmp_path / "loop", tmp_path / "first", tmp_path / "first" / "new"):
        assert "it already exists, and nothing is overwritten" in _refused(source, taken, to)
    assert "no such folder" in _refused(source, tmp_path / "loop" / "new", to)


def test_a_source_that_is_reached_by_links_is_only_read(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"w": W})
    (tmp_path / "first.pt").symlink_to("second.pt")
    (tmp_path / "second.pt").symlink_to("in.pt")
    os.link(source, tmp_path / "other.pt")
    source.chmod(0o444)
    before = source.read_bytes(), source.stat().st_mtime_ns, source.stat().st_nlink
    for number, name in enumerate(("first.pt", "other.pt")):
        converted(tmp_path / name, tmp_path / f"new{number}", Target.FULL)
        assert list(_read(tmp_path / f"new{number}", Target.FULL)) == ["w"]
    assert before == (source.read_bytes(), source.stat().st_mtime_ns, source.stat().st_nlink)


def test_a_target_without_a_folder(tmp_path: Path) -> None:
    said = _refused(_saved(tmp_path / "in.pt", {"w": W}), tmp_path / "a" / "new")
    assert said == f"{tmp_path / 'a'}: no such folder: create it with mkdir -p {tmp_path / 'a'}"


# Broken and hostile sources


def test_a_missing_rank_file(two_ranks: Path, tmp_path: Path) -> None:
    source = shutil.copytree(two_ranks / "sharded_orig", tmp_path / "in")
    (source / "rank_1.pt").unlink()
    said = _refused(source, tmp_path / "new", Target.DCP)
    assert "of 2 ranks, the files of 1 are missing" in said
    assert "find the missing or truncated files" in said


@pytest.mark.parametrize("name", ["sharded_orig/rank_1.pt", "fsdp2_dcp/__1_0.distcp", "full_orig.pt"])
def test_files_cut_short(name: str, two_ranks: Path, tmp_path: Path) -> None:
    path = two_ranks / name
    source = tmp_path / "in"
    if "/" in name:
        shutil.copytree(path.parent, source)
    else:
        source.mkdir()
        shutil.copy(path, source)
    file = source / path.name
    file.write_bytes(file.read_bytes()[:-700])
    said = _refused(source, tmp_path / "new", Target.DCP)
    assert str(file) in said
    assert "find the missing or truncated files" in said


def test_elements_that_the_directory_does_not_know_to_be_gone(tmp_path: Path) -> None:
    """Broken in a way that only reading the tensor shows: no target either."""
    _saved_as_folder(tmp_path / "in", {"model": {"w": W}})
    file = tmp_path / "in" / "__0_0.distcp"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"PK\x03\x04", b"XX\x03\x04"))
    for to in Target:
        assert "__0_0.distcp" in _refused(tmp_path / "in", tmp_path / "new", to)


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "sentinel"
    yield path
    assert not path.exists(), "a payload ran"


@pytest.mark.parametrize("to", list(Target))
@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_payloads_are_refused(name: str, to: Target, tmp_path: Path, sentinel: Path) -> None:
    payload = hostile.PAYLOADS[name](sentinel)
    hostile.archive(payload, tmp_path / "a.pt")
    hostile.in_metadata(payload, tmp_path / "metadata")
    hostile.in_byte_item(payload, tmp_path / "item")
    (tmp_path / "old.pt").write_bytes(b"\x80\x02N." + payload)
    for source in ("a.pt", "metadata", "item", "old.pt"):
        assert "loading it would execute" in _refused(tmp_path / source, tmp_path / "new", to)


def test_payloads_that_are_left_out_are_refused_too(tmp_path: Path, sentinel: Path) -> None:
    hostile.in_byte_item(hostile.by_system(sentinel), tmp_path / "item")
    assert "loading it would execute" in _refused(tmp_path / "item", tmp_path / "new", leave_out=("note",))


@pytest.mark.parametrize("make", [hostile.bomb, hostile.tensor_beyond_its_storage])
def test_archives_made_to_harm(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "a.pt")
    assert "a.pt" in _refused(tmp_path / "a.pt", tmp_path / "new")


@pytest.mark.parametrize(
    "pickled", [hostile.huge_memo(), hostile.many_by_reference(), hostile.nested(100_000), hostile.holding_itself()]
)
def test_pickles_made_to_harm(pickled: bytes, tmp_path: Path) -> None:
    hostile.archive(pickled, tmp_path / "a.pt")
    assert "a.pt" in _refused(tmp_path / "a.pt", tmp_path / "new")


@pytest.mark.parametrize("name", ["../outside.distcp", "/etc/passwd"])
def test_files_outside_of_the_folder(name: str, tmp_path: Path) -> None:
    hostile.with_file_name(name, tmp_path / "in")
    assert "which is not in its folder" in _refused(tmp_path / "in", tmp_path / "new")


def test_the_old_format(tmp_path: Path) -> None:
    torch.save({"w": W}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "save it again with a current torch" in _refused(tmp_path / "old.pt", tmp_path / "new")


# What cannot be carried over, and --leave-out


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
def test_objects_are_refused_and_can_be_left_out(to: Target, tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"model": {"w": W}, "args": argparse.Namespace(lr=1), "step": 3})
    said = _refused(source, tmp_path / "new", to)
    assert said == f"{source}: args is argparse.Namespace, which only running code can create: --leave-out args"
    done = converted(source, tmp_path / "new", to, leave_out=("args",))
    assert done.notes == ("left out args (1 entry), as requested",)
    assert repr(_read(tmp_path / "new", to)) == repr({"model": {"w": W}, "step": 3})


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
def test_all_that_is_in_the_way_is_named_at_once(to: Target, tmp_path: Path) -> None:
    inside = {"one": argparse.Namespace(lr=1), "it's": argparse.Namespace(lr=2)}
    held: Any = collections.OrderedDict(a=W)
    held.scale = W
    source = _saved(tmp_path / "in.pt", {"model": {"w": W}, "args": inside, "held": held, "step": 3})
    said = _refused(source, tmp_path / "new", to)
    assert said.splitlines() == [
        f"{source}: 3 keys cannot be converted:",
        "  args.one is argparse.Namespace, which only running code can create",
        "  args.it's is argparse.Namespace, which only running code can create",
        "  held cannot be converted: it has attributes (scale), which no other format can store",
        """--leave-out args.one --leave-out 'args.it'"'"'s' --leave-out held""",
    ]
    left_out = shlex.split(said.splitlines()[-1])[1::2]
    converted(source, tmp_path / "new", to, leave_out=tuple(left_out))


def test_of_many_that_are_in_the_way_ten_are_named(tmp_path: Path) -> None:
    many = {f"n{number:02}": argparse.Namespace(lr=number) for number in range(13)}
    said = _refused(_saved(tmp_path / "in.pt", {"w": W, **many}), tmp_path / "new").splitlines()
    assert said[0].endswith("13 keys cannot be converted:")
    assert [line.split()[0] for line in said[1:11]] == [f"n{number:02}" for number in range(10)]
    assert said[11:] == ["  and 3 more", " ".join(f"--leave-out n{number:02}" for number in range(10))]


@pytest.mark.parametrize("to", list(Target))
def test_tensors_whose_bytes_are_not_their_elements(to: Target, tmp_path: Path) -> None:
    conjugated = torch.tensor([[1 + 2j]]).conj()
    for number, lazy in enumerate((conjugated, conjugated.imag, W.to_sparse())):
        source = _saved(tmp_path / f"{number}.pt", {"model": {"lazy": lazy, "w": W}})
        assert "--leave-out model.lazy" in _refused(source, tmp_path / "new", to)


def test_values_of_one_rank_alone(two_ranks: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        value = {"w": W, "rng": torch.tensor([rank, 7], dtype=torch.uint8), "seed": rank}
        _saved(tmp_path / "in" / f"rank_{rank}.pt", value)
    for to in (Target.FULL, Target.DCP):
        said = _refused(tmp_path / "in", tmp_path / "new", to, leave_out=("seed",))
        assert "rng is not sharded but differs from rank to rank" in said
        assert "--leave-out rng" in said
    done = converted(tmp_path / "in", tmp_path / "new", Target.FULL, leave_out=("seed", "rng"))
    assert list(_read(tmp_path / "new", Target.FULL)) == ["w"]
    assert len(done.notes) == 2


@pytest.mark.parametrize("to", list(Target))
def test_values_of_one_rank_alone_under_names_that_change(to: Target, tmp_path: Path) -> None:
    """As buffers of a compiled model, which each rank counts for itself."""
    for rank in (0, 1):
        model = {"_orig_mod.w": W, "_orig_mod.mean": torch.full((2, 2), float(rank))}
        _saved(tmp_path / "in" / f"rank_{rank}.pt", {"model": model})
    said = _refused(tmp_path / "in", tmp_path / "new", to)
    assert said.endswith("--leave-out model._orig_mod.mean")
    converted(tmp_path / "in", tmp_path / "new", to, leave_out=("model._orig_mod.mean",))


def test_leaving_out_what_is_not_there(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"model": {"w": W}})
    said = _refused(source, tmp_path / "new", leave_out=("mode",))
    assert said.startswith("--leave-out mode: no such key")


def test_leaving_out_everything(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"model": {"w": W}, "step": 1})
    assert "no tensor is left to write" in _refused(source, tmp_path / "new", leave_out=("model",))


def test_an_optimizer_alone_has_no_place_in_safetensors(two_ranks: Path, tmp_path: Path) -> None:
    said = _refused(two_ranks / "sharded_optim_orig", tmp_path / "new", Target.SAFETENSORS)
    assert said == "it contains no model, and safetensors have no optimizer: use --to dcp or --to full"


def test_safetensors_keep_one_model(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"g": {"w": W, "v": W}, "d": {"w": W}, "ids": torch.arange(3)})
    said = _refused(source, tmp_path / "new", Target.SAFETENSORS)
    assert said == (
        "d.w looks like a second model next to the one under g, and safetensors can store only one: --leave-out d, "
        "or --leave-out g"
    )
    done = converted(source, tmp_path / "new", Target.SAFETENSORS, leave_out=("g",))
    assert "left out ids: safetensors keep only the tensors of a model" in done.notes


def test_ids_of_parameters_are_refused(two_ranks: Path, tmp_path: Path) -> None:
    said = _refused(two_ranks / "fsdp2_raw_optimizer_dcp", tmp_path / "new", Target.DCP)
    assert "is keyed by" in said


# Names


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."])
def test_wrappers_leave_names(wrapper: str, to: Target, tmp_path: Path) -> None:
    names = [f"{wrapper}a.weight", f"{wrapper}b.weight"]
    if wrapper != "module.":
        names[1] = f"b.{wrapper}weight"
    optimizer = {
        "state": {name: {"step": torch.tensor(1.0), "exp_avg": W + place} for place, name in enumerate(names)},
        "param_groups": [{"lr": 0.1, "params": names}],
    }
    source = _saved(tmp_path / "in.pt", {"model": dict.fromkeys(names, W), "optim": optimizer})
    done = converted(source, tmp_path / "new", to)
    assert f"removed {wrapper} from 2 names, which FSDP2 models do not have" in done.notes
    held = _read(tmp_path / "new", to)
    assert list(held["model"]) == ["a.weight", "b.weight"]
    assert sorted(held["optim"]["state"]) == ["a.weight", "b.weight"]
    assert held["optim"]["param_groups"][0]["params"] == ["a.weight", "b.weight"]
    assert torch.equal(held["optim"]["state"]["b.weight"]["exp_avg"], W + 1)


def test_a_module_called_module_keeps_its_name(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"model": {"module.a": W, "b": W + 1}})
    done = converted(source, tmp_path / "new", Target.FULL)
    assert done.notes == ()
    assert list(_read(tmp_path / "new", Target.FULL)["model"]) == ["module.a", "b"]


def test_two_names_that_would_be_one(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"model": {"_orig_mod.a": W, "a": W + 1}})
    said = _refused(source, tmp_path / "new")
    assert said == "model._orig_mod.a and model.a would both be called model.a"


# decoupled_weight_decay


def _without_decoupled(path: Path) -> Path:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False, "params": ["w"]}
    states = {"w": {"step": torch.tensor(1.0), "exp_avg": W, "exp_avg_sq": W.clone()}}
    return _saved(path, {"model": {"w": W}, "optim": {"state": states, "param_groups": [group]}})


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
def test_decoupled_weight_decay(to: Target, tmp_path: Path) -> None:
    source = _without_decoupled(tmp_path / "in.pt")
    (note,) = converted(source, tmp_path / "as_is", to).notes
    assert note.startswith("1 param group lack")
    assert "--adamw or --adam" in note
    assert "decoupled_weight_decay" not in _read(tmp_path / "as_is", to)["optim"]["param_groups"][0]
    for value in (True, False):
        done = converted(source, tmp_path / f"new{value}", to, decoupled_weight_decay=value)
        assert done.notes == (f"added decoupled_weight_decay={value} to 1 param group, as requested",)
        assert _read(tmp_path / f"new{value}", to)["optim"]["param_groups"][0]["decoupled_weight_decay"] is value


# Values


def _values() -> dict[str, Any]:
    storage = torch.arange(1000.0)
    return {
        "model": {
            "whole": W,
            "transposed": W.t(),
            "expanded": torch.ones(1, 1).expand(2, 3),
            "strided": storage[10:40:3],
            "view": storage[500:506].view(2, 3),
            "overlapping": storage.as_strided((4, 3), (1, 2)),
            "no dimension": torch.tensor(2.5),
            "no element": torch.zeros(0, 3),
            "none at all": torch.zeros(0),
            "bfloat16": W.bfloat16(),
            "float16": W.half(),
            "float64": W.double(),
            "bool": torch.tensor([True, False]),
            "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
            "e4m3": W.to(torch.float8_e4m3fn),
            "e5m2": W.to(torch.float8_e5m2),
            "complex64": torch.tensor([1 + 2j]),
            "not a number": torch.tensor([float("nan"), float("inf"), -0.0]),
        }
    }


@pytest.mark.parametrize("to", list(Target))
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_tensors_of_all_shapes_and_dtypes(kind: str, to: Target, tmp_path: Path) -> None:
    wanted = _values()
    source = tmp_path / "in.pt"
    (_saved if kind == "file" else _saved_as_folder)(source, wanted)
    converted(source, tmp_path / "new", to)
    held = _read(tmp_path / "new", to)
    held = held if to is Target.SAFETENSORS else held["model"]
    assert held.keys() == wanted["model"].keys()
    for name, value in wanted["model"].items():
        assert held[name].dtype == value.dtype, name
        assert held[name].shape == value.shape, name
        assert _bytes(held[name]) == _bytes(value), name


def _bytes(value: torch.Tensor) -> bytes:
    return bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist()) if value.numel() else b""


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", ["complex128", "complex32"])
def test_dtypes_that_safetensors_lack(dtype: str, tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"w": W, "c": torch.ones(2, dtype=getattr(torch, dtype))})
    said = _refused(source, tmp_path / "new", Target.SAFETENSORS)
    assert said == f"c is {dtype}, which safetensors do not support: use --to full"
    converted(source, tmp_path / "new", Target.FULL)
    assert _bytes(_read(tmp_path / "new", Target.FULL)["c"]) == _bytes(torch.ones(2, dtype=getattr(torch, dtype)))


def _plain_values() -> dict[str, Any]:
    return {
        "model": {"w": W},
        "tuple": (W, W + 1, "a"),
        "of numbers": (1, 2),
        "nested": [[1, [2, W]], [3]],
        "none": None,
        "bytes": b"\xff\x00",
        "float": 1.5,
        "bool": True,
        "large": 10**30,
        "text": "ü",
    }


def test_values_in_a_file(tmp_path: Path) -> None:
    wanted = {**_plain_values(), "numbers": {3: W, 4: {5: "x"}}, "empty": {}, "empty too": [], "and": ()}
    converted(_saved(tmp_path / "in.pt", wanted), tmp_path / "new", Target.FULL)
    assert repr(_read(tmp_path / "new", Target.FULL)) == repr(wanted)


def test_values_in_a_folder(tmp_path: Path) -> None:
    """As torch.distributed.checkpoint has them: tuples with tensors are lists, and keys are text."""
    wanted = {**_plain_values(), "numbers": {3: W, 4: {5: "x"}}, "empty": {}}
    done = converted(_saved(tmp_path / "in.pt", wanted), tmp_path / "new", Target.DCP)
    assert done.notes == (
        "converted tuples to lists, which torch.distributed.checkpoint does not distinguish: tuple",
        "converted number keys to text, as torch.distributed.checkpoint does: numbers.3, numbers.4.5",
    )
    del wanted["empty"]
    wanted |= {"tuple": list(wanted["tuple"]), "numbers": {"3": W, "4": {"5": "x"}}}
    held = _read(tmp_path / "new", Target.DCP)
    assert held.keys() == wanted.keys()
    assert {key: repr(value) for key, value in held.items()} == {key: repr(value) for key, value in wanted.items()}


def test_a_number_and_its_text_are_two_keys(tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", {"w": W, "of": {3: W, "3": W + 1}})
    assert _refused(source, tmp_path / "new", Target.DCP) == "of.3 and of.3 would both be called of.3"


@pytest.mark.parametrize("number", [{"b": W + 1}, [W, W + 1], (W, 1), {"a": W}])
def test_what_is_under_a_number_and_under_its_text_is_not_mixed(number: Any, tmp_path: Path) -> None:
    state = {"of": {"0": {"a": W}, 0: number}}
    source = _saved(tmp_path / "in.pt", state)
    assert _refused(source, tmp_path / "new", Target.DCP) == "of.0 and of.0 would both be called of.0"
    converted(source, tmp_path / "whole", Target.FULL)
    assert repr(_read(tmp_path / "whole", Target.FULL)) == repr(state)


def test_states_of_two_names_that_become_one_are_not_mixed(tmp_path: Path) -> None:
    states = {"w": {"exp_avg": W}, "_fsdp_wrapped_module.w": {"exp_avg_sq": W}}
    source = _saved(tmp_path / "in.pt", {"state": states, "param_groups": [{"params": [*states], "lr": 0.1}]})
    assert "would both be called state.w" in _refused(source, tmp_path / "new", Target.FULL)


@pytest.mark.parametrize("wanted", [[W, {"a": W + 1}], ({"w": W}, 3), W])
def test_what_is_no_dictionary(wanted: Any, tmp_path: Path) -> None:
    source = _saved(tmp_path / "in.pt", wanted)
    converted(source, tmp_path / "new", Target.FULL)
    assert repr(_read(tmp_path / "new", Target.FULL)) == repr(wanted)
    assert "for torch.distributed.checkpoint" in _refused(source, tmp_path / "folder", Target.DCP)
