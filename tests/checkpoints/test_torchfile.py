"""Files of ``torch.save``: every dtype, views, parameters, and places of shards that two ranks cannot show."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.entries import ITEM_SIZES, BadCheckpoint, Bytes, Chunk, Item, TensorEntry, ValueEntry
from fsdp_migrate.checkpoints.read import pieces
from fsdp_migrate.checkpoints.read import torch_save as torchfile
from fsdp_migrate.checkpoints.read.unpickle import Call, Global
from fsdp_migrate.checkpoints.traits import Optimizer, flat_parameters, missing, optimizers
from tests.checkpoints.written import elements

_PLACEMENTS = "torch.distributed.tensor.placement_types"


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES.keys() - {"bool"}))
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    tensor = torch.arange(6 * kind.itemsize, dtype=torch.uint8).view(kind).view(2, 3)
    torch.save({"w": tensor}, tmp_path / "a.pt")
    (entry,) = torchfile.read(tmp_path / "a.pt").entries.values()
    assert isinstance(entry, TensorEntry)
    assert (entry.dtype, entry.shape, entry.nbytes) == (dtype, (2, 3), 6 * kind.itemsize)
    assert entry.chunks[0].sizes == (2, 3)
    where = entry.chunks[0].where
    assert isinstance(where, Bytes)
    data = (tmp_path / "a.pt").read_bytes()[where.offset : where.offset + entry.nbytes]
    assert data == bytes(range(entry.nbytes))


def test_views_parameters_and_tensors_without_elements(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(4, 6)
    saved = {
        "whole": whole,
        "row": whole[1],
        "turned": whole.t(),
        "every_other": whole[::2, 1::2],
        "one_for_all": torch.ones(1).expand(3, 2),
        "parameter": torch.nn.Parameter(whole[:2]),
        "buffer": torch.nn.Buffer(torch.zeros(2)),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
    }
    torch.save(saved, tmp_path / "a.pt")
    file = torchfile.read(tmp_path / "a.pt")
    for name, tensor in saved.items():
        entry = file.entries[(name,)]
        assert isinstance(entry, TensorEntry)
        assert elements(entry).equal(tensor.detach()), name
        assert entry.requires_grad == tensor.requires_grad
    assert file.rank is file.world_size is None


def test_values_between_tensors(tmp_path: Path) -> None:
    saved = OrderedDict(a={"b": [1, 2.5, None]}, c=("x", b"y", True), d={}, e={1}, f={3: {"g": 4}}, h=torch.float16)
    torch.save(saved, tmp_path / "a.pt")
    assert torchfile.read(tmp_path / "a.pt").entries == {
        ("a", "b", 0): ValueEntry(1),
        ("a", "b", 1): ValueEntry(2.5),
        ("a", "b", 2): ValueEntry(None),
        ("c", 0): ValueEntry("x"),
        ("c", 1): ValueEntry(b"y"),
        ("c", 2): ValueEntry(True),
        ("d",): ValueEntry({}),
        ("e",): ValueEntry(made_by="__builtin__.set"),
        ("f", 3, "g"): ValueEntry(4),
        ("h",): ValueEntry(made_by="torch.float16"),
    }


def test_what_needs_code_has_no_value(tmp_path: Path) -> None:
    torch.save({"a": torch.eye(2).to_sparse(), "b": Path("x")}, tmp_path / "a.pt")
    entries = torchfile.read(tmp_path / "a.pt").entries
    assert entries[("a",)] == ValueEntry(made_by="torch._utils._rebuild_sparse_tensor")
    assert entries[("b",)] == ValueEntry(made_by="pathlib.PosixPath")


def test_an_archive_inside_a_file(tmp_path: Path) -> None:
    torch.save(torch.arange(3.0), tmp_path / "a.pt")
    inner = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "b.distcp").write_bytes(b"x" * 101 + inner + b"y" * 57)
    entry = torchfile.tensor_in(Item(tmp_path / "b.distcp", 101, len(inner)))
    assert elements(entry).equal(torch.arange(3.0))
    for offset, length in ((100, len(inner)), (101, len(inner) - 1), (102, len(inner) - 1), (101, 0)):
        with pytest.raises(BadCheckpoint, match=r"b\.distcp, from byte"):
            torchfile.tensor_in(Item(tmp_path / "b.distcp", offset, length))


def _placement(name: str, **state: object) -> Call:
    made = Call(Global(_PLACEMENTS, name))
    made.state = state
    return made


def _mesh(shape: tuple[int, ...], coordinate: tuple[int, ...], **more: object) -> Call:
    """A DeviceMesh as torch before 2.9 pickles it: with a tensor of ranks."""
    ranks = Call(Global("torch._utils", "_rebuild_tensor_v2"), (None, 0, shape, ()))
    made = Call(Global("torch.distributed.device_mesh", "DeviceMesh"))
    made.state = {"mesh": ranks, "_coordinate_on_dim": list(coordinate), **more}
    return made


@pytest.mark.parametrize("world", [(2, 2), (3, 2), (2, 4)])
def test_a_strided_shard_is_cut_after_tensor_parallelism(world: tuple[int, int]) -> None:
    """FSDP2 over tensor parallelism: the rows of a rank are those that cutting for the latter first leaves it."""
    rows = torch.arange(17)
    for data in range(world[0]):
        for tensor in range(world[1]):
            parts = rows.tensor_split([0])[1].chunk(world[1])
            part = parts[tensor] if tensor < len(parts) else rows[:0]
            cut = part.chunk(world[0])
            wanted = cut[data] if data < len(cut) else part[:0]
            spec = {
                "mesh": _mesh(world, (data, tensor)),
                "placements": (_placement("_StridedShard", dim=0, split_factor=world[1]), _placement("Shard", dim=0)),
            }
            place = pieces.of_dtensor(spec, (17, 3))
            assert place.sizes == (len(wanted), 3)
            assert rows[place.offsets[0] : place.offsets[0] + place.sizes[0]].equal(wanted)
            assert place.world_size == world[0] * world[1]


def test_shards_along_two_dimensions() -> None:
    spec = {"mesh": _mesh((2, 3), (1, 2)), "placements": (_placement("Shard", dim=0), _placement("Shard", dim=1))}
    place = pieces.of_dtensor(spec, (5, 7))
    assert (place.offsets, place.sizes) == ((3, 6), (2, 1))


def test_values_spread_over_ranks_are_refused() -> None:
    spec = {"mesh": _mesh((2,), (0,)), "placements": (_placement("Partial"),)}
    with pytest.raises(ValueError, match="the placement Partial"):
        pieces.of_dtensor(spec, (4,))


def _entry(shape: tuple[int, ...], *boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> TensorEntry:
    where = Bytes(Path("a"), 0, (1,) * len(shape))
    return TensorEntry(shape, "float32", tuple(Chunk(offsets, sizes, where) for offsets, sizes in boxes))


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        (_entry((4, 3), ((0, 0), (2, 3)), ((2, 0), (2, 3))), 0),
        (_entry((4, 3), ((0, 0), (2, 3)), ((3, 0), (1, 3))), 3),
        (_entry((4, 3), ((0, 0), (2, 3)), ((0, 0), (2, 3))), 6),
        (_entry((4, 3), ((0, 0), (3, 3)), ((1, 0), (2, 3))), 3),
        (_entry((4, 4), ((0, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 0), (2, 4))), 0),
        (_entry((4, 4), ((0, 0), (3, 3)), ((1, 1), (3, 3))), 2),
        (_entry((), ((), ())), 0),
        (_entry(()), 1),
        (_entry((0, 3)), 0),
        (_entry((2,), ((0,), (2,)), ((2,), (0,))), 0),
        (_entry((5,)), 5),
    ],
)
def test_elements_that_no_chunk_holds(entry: TensorEntry, count: int) -> None:
    assert missing(entry) == count


def test_many_chunks_are_counted_in_time() -> None:
    entry = _entry((100_000, 3), *(((row * 10, 0), (10, 3)) for row in range(10_000) if row != 5))
    assert missing(entry) == 30


def test_how_optimizers_are_keyed() -> None:
    state = _entry((2,), ((0,), (2,)))
    named = {("o", "state", "0", "exp_avg"): state, ("o", "param_groups", 0, "params", 0): ValueEntry("0")}
    spelled = {("o", "state", "0", "exp_avg"): state, ("o", "param_groups", 0, "params", 0): ValueEntry(0)}
    assert optimizers(named) == [Optimizer(("o",), "fqn", 1)]
    assert optimizers(spelled) == [Optimizer(("o",), "id", 1)]
    assert optimizers({("state", 0, "exp_avg"): state}) == []
    assert optimizers({("encoder.state.0.weight",): state}) == []


def test_flat_parameters_by_their_names() -> None:
    entry = _entry((2,), ((0,), (2,)))
    names = ["_flat_param", "layers.0._flat_param", "a._flat_param_1", "flat_param", "x.flat_params", "my_flat_param"]
    found = [key[0] for key in flat_parameters({(name,): entry for name in names})]
    assert found == ["_flat_param", "layers.0._flat_param", "a._flat_param_1", "flat_param"]
