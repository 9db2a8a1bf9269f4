"""``tune`` by the command: a program runs through one step, and layouts are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tune.machine import BadMachine, known, machine
from tests.forked import PYTHON
from tests.verify.test_preflight_compare import PROGRAM
from tests.verify.test_verify_command import TORCHRUN

COMMAND = ("--", PYTHON, *TORCHRUN[1:], "train.py")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "train.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


def test_layouts_of_a_program_under_fsdp1_are_printed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["tune", "--show", "whole after forward", *COMMAND])
    out, err = capsys.readouterr()
    assert (code, err) == (1, "")
    assert out.startswith("FSDP1 on 2 ranks, planned for cpu-gloo with 16.0 GiB per rank\n")
    # FSDP1 pads a unit to an even count of numbers, and gathers ahead into whole parameters without a buffer.
    assert "\nFSDP1                                            5         3        0  3.8 KiB   1.3 KiB" in out
    assert "\nnow: the program's units, as FSDP2 runs them\n" in out
    # Two blocks are gathered twice, the root once; FSDP2 pads each parameter to an even count of rows.
    assert "\nnow                                              5         3        0  4.0 KiB     792 B" in out
    assert out.endswith("""
# whole after forward
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

fsdp = {"mesh": init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))}
for unit in model[0:2]:
    fully_shard(unit, reshard_after_forward=False, **fsdp)
fully_shard(model, **fsdp)
""")


def test_layouts_for_other_ranks_and_machines_as_json(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["tune", "--ranks", "32", "--machine", "a100-80gb-sxm", "--format", "json", *COMMAND])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert (found["ranks"], found["machine"], found["kind"]) == (32, "a100-80gb-sxm", "FSDP1")
    layouts = {layout["name"]: layout for layout in found["layouts"]}
    # Replicas of one node each, and units that stay sharded over one: sums in another order, and none.
    assert (layouts["blocks, 4 x 8 ranks"]["shards"], layouts["blocks, 4 x 8 ranks"]["replicas"]) == (8, 4)
    assert layouts["blocks, 4 x 8 ranks"]["sums_in_another_order"]
    assert not layouts["kept over 8"]["sums_in_another_order"]
    assert found["best"] in layouts
    assert found["code"]


def test_a_measured_step_sets_the_speed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "--seconds", "0.5", "--format", "json", *COMMAND])
    layouts = {layout["name"]: layout for layout in json.loads(capsys.readouterr().out)["layouts"]}
    assert layouts["now"]["seconds"] == pytest.approx(0.5, rel=1e-6)
    # Eight collectives of 0.3 ms, which do not get faster.
    assert layouts["now"]["communicating"] == pytest.approx(8 * 3e-4, rel=0.01)


def test_what_fits_into_little_memory(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--memory", "0.000001", *COMMAND]) == 1
    assert "\nnothing fits: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--machine", "abacus"), "abacus is neither a file nor one of h100-sxm"),
        (("--show", "nothing"), "no layout is called 'nothing': "),
        (("--seconds", "0.0001"), "a step of 0.0001 seconds contradicts the link and computing speeds of cpu-gloo"),
        (("--timeout", "0.01"), "did not end within 0.01 seconds"),
    ],
)
def test_what_cannot_be_done_is_said(
    program: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert main(["tune", *options, *COMMAND]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_sharded_is_whole_on_every_rank(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        PROGRAM[: PROGRAM.index("model = FSDP(")] + "model = net\n" + PROGRAM[PROGRAM.index("torch.manual_seed(dist") :]
    )
    program.write_text(text, encoding="utf-8")
    main(["tune", "--ranks", "16", "--format", "json", *COMMAND])
    found = json.loads(capsys.readouterr().out)
    layouts = {layout["name"]: layout for layout in found["layouts"]}
    assert (found["kind"], layouts["now"]["shards"], layouts["now"]["replicas"]) == ("plain", 1, 16)
    assert (layouts["now"]["gathers"], layouts["now"]["reductions"]) == (0, 1)
    assert layouts["blocks"]["shards"] == 16


def test_a_program_without_a_backward_is_refused(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(PROGRAM.replace(".backward()", ""), encoding="utf-8")
    assert main(["tune", *COMMAND]) == 2
    assert "the model had no backward" in capsys.readouterr().err


def test_tensor_parallelism_is_refused(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(
        """
import torch
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
dist.destroy_process_group()
""",
        encoding="utf-8",
    )
    assert main(["tune", *COMMAND]) == 2
    told = capsys.readouterr().err
    assert told.endswith("\nlayouts of models with tensor parallelism are not supported here\n")
    assert "Traceback" not in told


def test_machines_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(
        "[ours]\nflops = { bfloat16 = 1e14 }\nmemory_gib = 24\nranks_per_node = 4\n"
        "inside = { bandwidth = 1e10, latency = 1e-5 }\n"
    )
    ours = machine(str(file))
    assert (ours.name, ours.memory, ours.between) == ("ours", 24 * 2**30, ours.inside)
    assert ours.seconds("gather", 4 * 10**9, 4, spread=False) == pytest.approx(0.3 + 1e-5)
    assert ours.seconds("reduction", 4 * 10**9, 4, spread=False) == pytest.approx(0.6 + 1e-5)
    for text, message in (
        ("[ours]\nflops = {}\n", "inside is missing"),
        ("[ours", "is not a machine file"),
        ("", "has no machine"),
        ("[ours]\ninside = { speed = 1 }\n", "is not a machine file"),
    ):
        file.write_text(text)
        with pytest.raises(BadMachine, match=message):
            machine(str(file))


def test_a_machine_is_measured_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "ours.toml"
    assert main(["preflight", "--measure", str(file), *COMMAND[:-1]]) == 0
    assert capsys.readouterr().out == file.read_text(encoding="utf-8")
    ours = machine(str(file))
    assert (ours.name, ours.node, ours.overlaps) == ("measured", 2, False)
    assert ours.flops.keys() == {"float32", "bfloat16"}
    # A cable takes longer than a nanosecond, and no CPU computes as fast as a GPU.
    assert 1e8 < ours.flops["float32"] < 1e14
    assert 1e-6 < ours.inside.latency < 10
    assert 1e5 < ours.inside.bandwidth < 1e13
    one = [word if word != "2" else "1" for word in COMMAND[:-1]]
    assert main(["preflight", "--measure", str(file), *one]) == 2
    assert "links are measured between ranks: start two or more" in capsys.readouterr().err


def test_known_machines_say_what_they_were_taken_from() -> None:
    assert all(each.source and each.memory and each.flops for each in known().values())
