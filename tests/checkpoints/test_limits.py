"""What is read stays within what its size explains, and what cannot be told apart or carried over is refused."""

from __future__ import annotations

import ast
import glob
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.coverage import union
from fsdp_migrate.checkpoints.entries import BadCheckpoint, Bytes, Chunk, TensorEntry
from fsdp_migrate.checkpoints.judge import loading
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.checkpoints.read.find import SPECIAL
from fsdp_migrate.checkpoints.traits import missing
from fsdp_migrate.cli import main
from tests.checkpoints.convert.converting import converted

W = torch.arange(6.0)


# Pickles that share what they hold


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"}", b"K\x01s."),
        (b"}(", b"K\x01u."),
        (b"(", b"K\x01d."),
    ],
)
def test_keys_that_nobody_could_hash(before: bytes, after: bytes, tmp_path: Path) -> None:
    hostile.archive(b"\x80\x02" + before + hostile.shared_tuples(60) + after, tmp_path / "model.pt")
    (found,) = open_all(tmp_path / "model.pt")
    assert "more than 10000 parts" in found.problems[0]


def test_members_of_sets_that_nobody_could_hash(tmp_path: Path) -> None:
    for number, made in enumerate(
        (b"\x8f(" + hostile.shared_tuples(60) + b"\x90.", b"(" + hostile.shared_tuples(60) + b"\x91.")
    ):
        hostile.archive(b"\x80\x04" + made, tmp_path / f"model{number}x.pt")
        (found,) = open_all(tmp_path / f"model{number}x.pt")
        assert "more than 10000 parts" in found.problems[0]


@pytest.mark.parametrize("place", ["dtype", "storage", "attribute", "path"])
def test_shared_tuples_where_a_name_belongs_are_named_in_few_words(place: str, tmp_path: Path) -> None:
    large = hostile.shared_tuples(60)
    match place:
        case "attribute":
            hostile.archive(b"\x80\x02c__builtin__\ngetattr\n(ctorch\nSize\n" + large + b"tR.", tmp_path / "model.pt")
        case "storage":
            storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + large + b"X\x03\x00\x00\x00cpuK\x04tQ"
            call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x04\x85K\x01\x85\x89}tR."
            hostile.archive(b"\x80\x02" + call, tmp_path / "model.pt")
        case "dtype":
            kind = b"ctorch.storage\nUntypedStorage\n"
            storage = b"(X\x07\x00\x00\x00storage" + kind + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
            call = b"ctorch._utils\n_rebuild_tensor_v3\n(" + storage + b"K\x00K\x04\x85K\x01\x85\x89}" + large + b"tR."
            hostile.archive(b"\x80\x02" + call, tmp_path / "model.pt", **{"data/0": bytes(16)})
        case "path":
            hostile.with_file_name("x.distcp", tmp_path / "step")
            metadata = (tmp_path / "step/.metadata").read_bytes()
            name = b"\x8c\x08x.distcp"
            assert name in metadata
            (tmp_path / "step/.metadata").write_bytes(metadata.replace(name, large))
    (found,) = open_all(tmp_path / ("step" if place == "path" else "model.pt"))
    assert found.problems
    assert len(found.problems[0]) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("where", ["key", "value"])
def test_numbers_that_python_does_not_spell(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = 10**5000
    torch.save({number: W} if where == "key" else {"w": W, "n": number}, tmp_path / "model.pt")
    for form in ("text", "json"):
        code = main(["checkpoint", "inspect", "--format", form, str(tmp_path / "model.pt")])
        assert code == (1 if where == "key" else 0)
        assert ("a key that is a number of 16610 bits" in capsys.readouterr().out) == (where == "key")
    if where == "value":
        with pytest.raises(CannotConvert, match="a number of 16610 bits"):
            converted(tmp_path / "model.pt", tmp_path / "out", Target.FULL)


# Files that are none

SPECIAL_NAMES = ("model.pt", "model.safetensors.index.json", "self.pt")


def test_pipes_devices_and_links_are_named_and_never_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "model.pt")
    (tmp_path / "model.safetensors.index.json").symlink_to("/dev/zero")
    (tmp_path / "self.pt").symlink_to(tmp_path / "self.pt")
    torch.save({"w": W}, tmp_path / "good.pt")
    assert main(["check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in SPECIAL_NAMES:
        assert f"{name}: " in out
    assert [one.path.name for one in open_all(tmp_path)] == ["good.pt"]
    for name in SPECIAL_NAMES:
        assert main(["checkpoint", "inspect", str(tmp_path / name)]) == 2
    capsys.readouterr()
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == sorted(f"{tmp_path / name}: skipped: {SPECIAL}" for name in SPECIAL_NAMES)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_chunk_file_that_is_a_pipe_is_not_called_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dcp.save({"w": W}, checkpoint_id=tmp_path / "step", no_dist=True)
    (tmp_path / "step" / "__0_0.distcp").unlink()
    os.mkfifo(tmp_path / "step" / "__0_0.distcp")
    for words in (["checkpoint", "inspect"], ["check"]):
        assert main([*words, str(tmp_path / "step")]) == 1
        out = capsys.readouterr().out
        assert f"__0_0.distcp: it is {SPECIAL}" in out
        assert "missing\n" not in out


def test_a_path_of_many_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["checkpoint", "inspect"], ["check"]):
        assert main([*command, str(tmp_path / ("x" * 100_000))]) == 2
    assert "Traceback" not in capsys.readouterr().err


# Pieces


def _piece(offset: int, size: int, values: bytes, file: Path) -> Chunk:
    start = file.stat().st_size if file.exists() else 0
    with file.open("ab") as stream:
        stream.write(values)
    return Chunk((offset,), (size,), Bytes(file, start, (1,)))


def test_an_overlap_hides_no_gap() -> None:
    """Two pieces of 2,000 x 2,000 that overlap, and a corner that nobody has; there are too many cuts to tabulate."""
    nowhere = Bytes(Path("x"), 0, (1, 1))
    columns = [Chunk((0, place), (1000, 2), nowhere) for place in range(1998)]
    entry = TensorEntry((1000, 2000), "float32", tuple(columns))
    assert missing(entry) == 1000


def test_the_union_of_boxes_is_counted_exactly() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        dims = int(random.integers(1, 4))
        held = np.zeros((7,) * dims, bool)
        boxes = []
        for _ in range(int(random.integers(1, 9))):
            first = random.integers(0, 7, dims)
            after = first + 1 + random.integers(0, 7 - first)
            boxes.append(tuple((int(a), int(b)) for a, b in zip(first, after, strict=True)))
            held[tuple(slice(a, b) for a, b in boxes[-1])] = True
        assert union(boxes) == held.sum()


def test_boxes_made_to_take_time_are_refused() -> None:
    boxes = [tuple((place * 3 % 1009, place * 7 % 1013 + 1200) for _ in range(6)) for place in range(600)]
    with pytest.raises(BadCheckpoint, match="too many ways"):
        union([tuple((a + dim, b + dim * 5) for dim, (a, b) in enumerate(box)) for box in boxes])


@pytest.mark.parametrize("how", ["overlap", "replica"])
def test_copies_that_differ_are_refused(how: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    one = _piece(0, 4, np.arange(4, dtype="<f4").tobytes(), file)
    same = _piece(2 if how == "overlap" else 0, 4, np.arange(2, 6, dtype="<f4").tobytes(), file)
    if how == "overlap":
        entry = TensorEntry((6,), "float32", (one, same))
        assert elements.whole(entry).tobytes() == np.arange(6, dtype="<f4").tobytes()
        other = _piece(2, 4, np.array([2, 9, 4, 5], "<f4").tobytes(), file)
        entry = TensorEntry((6,), "float32", (one, other))
    else:
        entry = TensorEntry((4,), "float32", (one,), replicas=(same,))
    with pytest.raises(BadCheckpoint, match="differ from another copy"):
        elements.whole(entry)


# Keys and attributes that no format keeps


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({("a", 0): W, ("a", 1): W + 1}, "its key is a tuple"),
        ({torch.Size([1]): W, "b": W}, "its key is torch.Size"),
        ({b"a": W, "b": W}, "its key is"),
        ({None: W, "None": W + 1}, "its key is None"),
        ({True: W, "b": W}, "its key is a bool"),
        ({1.5: W, "b": W}, "its key is a float"),
    ],
)
@pytest.mark.parametrize("to", Target)
def test_keys_that_are_no_text_are_kept_apart_and_refused(
    state: dict[Any, Any], told: str, to: Target, tmp_path: Path
) -> None:
    torch.save({"model": state}, tmp_path / "in.pt")
    (found,) = open_all(tmp_path / "in.pt")
    assert len(found.entries) == len(state)
    with pytest.raises(CannotConvert, match=told):
        converted(tmp_path / "in.pt", tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


class Tagged(torch.Tensor):
    """A tensor class that keeps something of its own."""


def test_attributes_and_classes_of_tensors_do_not_vanish(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(W.clone())
    weight.scale = 3
    torch.save({"w": weight, "b": W}, tmp_path / "in.pt")
    with pytest.raises(CannotConvert, match=r"attributes \(.*scale"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL)
    done = converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL, leave_out=["w"])
    assert done.count == 1
    torch.save({"w": W.as_subclass(Tagged), "b": W}, tmp_path / "tagged.pt")
    with pytest.raises(CannotConvert, match="the tensor class Tagged"):
        converted(tmp_path / "tagged.pt", tmp_path / "out2", Target.FULL)


def test_keys_that_become_one_with_dots_are_refused(tmp_path: Path) -> None:
    torch.save({"a": {"b": W + 1}, "a.b": W}, tmp_path / "in.pt")
    with pytest.raises(CannotConvert, match=r"a\.b occurs twice"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.DCP)
    converted(tmp_path / "in.pt", tmp_path / "out.pt", Target.FULL)
    loaded = torch.load(tmp_path / "out.pt")
    assert torch.equal(loaded["a"]["b"], W + 1)
    assert torch.equal(loaded["a.b"], W)
    torch.save({"a": {"b": (1, 2)}, "a.b": W}, tmp_path / "list.pt")
    with pytest.raises(CannotConvert, match=r"a\.b occurs twice"):
        converted(tmp_path / "list.pt", tmp_path / "list", Target.DCP)


def test_names_that_utf_8_cannot_spell_are_refused(tmp_path: Path) -> None:
    torch.save({"w\udc80": W}, tmp_path / "in.pt")
    with pytest.raises(CannotConvert, match="UTF-8 cannot encode"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL)


# The line that loads


@pytest.mark.parametrize(
    "name", ['a"]; import os; os.system("x")#', "a\nb", "a\\", "{x}", "a'b", "\u2028", "é", "\ud800", "a\0b"]
)
def test_keys_and_names_cannot_leave_their_literal(name: str, tmp_path: Path) -> None:
    torch.save({name: {"w": W, "v": W}, "epoch": 1}, tmp_path / "model.pt")
    (found,) = open_all(tmp_path / "model.pt")
    made = loading.line(found)
    tree = ast.parse(made)
    assert made.isprintable()
    assert name in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert calls <= {"set_model_state_dict", "StateDictOptions"}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("stem", ['a"b_rank', "a{b}_rank", "a\\b_rank", "a'b_rank"])
def test_names_of_rank_files_cannot_leave_their_literal(stem: str, width: int, tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"w": W}, tmp_path / f"{stem}{rank:0{width}}.pt")
    (found,) = open_all(tmp_path)
    made = loading.line(found)
    (argument,) = (
        node.args[0]
        for node in ast.walk(ast.parse(made))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    )

    class _Dist:
        @staticmethod
        def get_rank() -> int:
            return 1

    assert eval(compile(ast.Expression(argument), "line", "eval"), {"dist": _Dist}) == str(
        tmp_path / f"{stem}{1:0{width}}.pt"
    )


@pytest.mark.parametrize("folder", ["run[1]", "a*b", "q?", "plain"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("start", ["model-", ""])
def test_the_line_reads_all_shards_and_no_other_file(folder: str, beside: bool, start: str, tmp_path: Path) -> None:
    here = tmp_path / folder
    here.mkdir()
    for number in (1, 2):
        save_file({f"w{number}": W}, here / f"{start}0000{number}-of-00002.safetensors")
    if beside:
        save_file({"w1": W + 1}, here / f"{start}ema.safetensors")
    found = next(one for one in open_all(here) if len(one.found.files) > 1)
    (values,) = (node for node in ast.walk(ast.parse(loading.line(found))) if isinstance(node, ast.DictComp))
    places = {"glob": glob, "safetensors": safetensors}
    loaded = eval(compile(ast.Expression(values), "line", "eval"), places)
    assert sorted(loaded) == ["w1", "w2"]
    assert torch.equal(loaded["w1"], W)


def test_an_index_takes_the_files_that_it_lists(tmp_path: Path) -> None:
    for start in ("model", "model.fp16"):
        save_file({"w": W}, tmp_path / f"{start}-00001-of-00002.safetensors")
        save_file({"v": W}, tmp_path / f"{start}-00002-of-00002.safetensors")
        homes = {"w": f"{start}-00001-of-00002.safetensors", "v": f"{start}-00002-of-00002.safetensors"}
        (tmp_path / f"{start}.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    found = open_all(tmp_path)
    assert [(len(one.found.files), one.problems) for one in found] == [(3, ()), (3, ())]
    assert findings(tmp_path) == []


def test_shards_of_several_models_are_several_checkpoints(tmp_path: Path) -> None:
    for start in ("ema-", "model-"):
        for number in (1, 2):
            save_file({f"w{number}": W}, tmp_path / f"{start}0000{number}-of-00002.safetensors")
    assert [(len(one.found.files), one.problems) for one in open_all(tmp_path)] == [(2, ()), (2, ())]


# Formats that came later


def test_archives_without_checksums_are_whole(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": W, "v": W + 1}, tmp_path / "in.pt")
        for rank in range(2):
            torch.save({"w": W, "seed": torch.tensor([rank])}, tmp_path / f"rank_{rank}.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert findings(tmp_path / "in.pt") == []
    converted(tmp_path / "in.pt", tmp_path / "out.pt", Target.FULL)
    assert torch.equal(torch.load(tmp_path / "out.pt")["v"], W + 1)
    ranks = next(one for one in open_all(tmp_path) if one.path.name == "rank_0.pt")
    assert ranks.rankwise == (("seed",),)


def _safetensors(path: Path, dtype: str, nbytes: int, shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(nbytes)))


@pytest.mark.parametrize(("dtype", "nbytes"), [("F8_E8M0", 4), ("F4", 2), ("F6_E2M3", 3), ("F99_NEW", 5)])
def test_dtypes_that_are_new_are_whole_and_keep_their_bytes(dtype: str, nbytes: int, tmp_path: Path) -> None:
    _safetensors(tmp_path / "model.safetensors", dtype, nbytes, [4])
    assert findings(tmp_path / "model.safetensors") == []
    if dtype == "F8_E8M0":
        converted(tmp_path / "model.safetensors", tmp_path / "out.pt", Target.FULL)
        assert torch.load(tmp_path / "out.pt")["w"].dtype is torch.float8_e8m0fnu
    else:
        with pytest.raises(CannotConvert, match="whose size this version does not know"):
            converted(tmp_path / "model.safetensors", tmp_path / "out.pt", Target.FULL)
    converted(tmp_path / "model.safetensors", tmp_path / "out", Target.SAFETENSORS)
    written = (tmp_path / "out/model.safetensors").read_bytes()
    assert written.endswith(bytes(range(nbytes)))
    assert f'"{dtype}"'.encode() in written


def test_a_new_dtype_hides_no_broken_file(tmp_path: Path) -> None:
    _safetensors(tmp_path / "model.safetensors", "F99_NEW", 5, [4])
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])
    assert [one.rule for one in findings(tmp_path / "model.safetensors")] == ["FSDP405"]


def test_safetensors_that_torch_sharded_are_one_tensor(tmp_path: Path) -> None:
    """As torch's HuggingFaceStorageWriter leaves them with ``save_distributed=True``: a file a rank, with offsets."""
    for rank, (first, rows) in enumerate([(0, 2), (2, 1)]):
        info = json.dumps({"w": {"saved_offsets": [first, 0]}})
        header = json.dumps(
            {
                "__metadata__": {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0"},
                "w": {"dtype": "F32", "shape": [rows, 2], "data_offsets": [0, rows * 8]},
            }
        ).encode()
        header += b" " * (-len(header) % 8)
        values = np.arange(first * 2, (first + rows) * 2, dtype="<f4").tobytes()
        name = f"shard-0000{rank}-model-00001-of-00001.safetensors"
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + values)
    (found,) = open_all(tmp_path)
    assert found.problems == ()
    entry = found.entries[("w",)]
    assert isinstance(entry, TensorEntry)
    assert entry.shape == (3, 2)
    assert elements.whole(entry).tobytes() == np.arange(6, dtype="<f4").tobytes()
