"""``checkpoint inspect`` through ``main``: what it prints, how it exits, and that it needs no torch."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full.pt"
    weight = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    torch.save({"model": {"tok.weight": weight, "head.weight": weight, "count": torch.tensor(3)}, "step": 7}, path)
    return path


def test_text(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", str(full)]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines == [
        str(full),
        "  kind: one file of torch.save, plain tensors",
        "  written by: torch 2.7 or later",
        "  ranks: not told",
        "  tensors: 3, 32 B",
        " tensor             shape   dtype     bytes  saved as",
        " model.tok.weight   2x3     bfloat16   12 B",
        " model.head.weight  2x3     bfloat16   12 B",
        " model.count        scalar  int64       8 B",
        "  tied: model.tok.weight = model.head.weight",
        f'  load: set_model_state_dict(model, torch.load("{full}", mmap=True, weights_only=True)["model"], '
        "options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))",
    ]
    assert err == ""


def test_json(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", "--format", "json", str(full)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == 1
    (found,) = content["checkpoints"]
    assert found["kind"] == "file"
    assert found["written_by"] == {"oldest_torch": "2.7", "newest_torch": None}
    assert found["tensors"][0] == {
        "key": ["model", "tok.weight"],
        "shape": [2, 3],
        "dtype": "bfloat16",
        "bytes": 12,
        "saved_as": "plain",
        "chunks": 1,
    }
    assert found["ties"] == [[["model", "tok.weight"], ["model", "head.weight"]]]
    assert found["findings"] == []


def test_a_long_list_is_cut_unless_all_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({f"w{number}": torch.ones(1) for number in range(25)}, tmp_path / "a.pt")
    main(["checkpoint", "inspect", str(tmp_path)])
    out = capsys.readouterr().out
    assert "and 5 more tensors; --all shows them" in out
    assert "w19 " in out
    assert "w20 " not in out
    main(["checkpoint", "inspect", "--all", str(tmp_path)])
    out = capsys.readouterr().out
    assert "w24 " in out
    assert "more tensors" not in out


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("", "contains no checkpoint"),
        ("x.txt", "neither a torch.save"),
        ("gone", "no such file"),
    ],
)
def test_what_is_none(made: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.txt").write_text("x")
    assert main(["checkpoint", "inspect", str(tmp_path / made)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert told in err
    assert len(err.splitlines()) == 1


def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"[bold]w[/bold]\x1b[31m": torch.ones(1)}, tmp_path / "a.pt")
    assert main(["checkpoint", "inspect", str(tmp_path / "a.pt")]) == 0
    out = capsys.readouterr().out
    assert "[bold]w[/bold]" in out
    assert "\x1b" not in out


def test_torch_is_not_imported_and_size_costs_nothing(tmp_path: Path, two_ranks: Path) -> None:
    """A folder of 100 GB, all of it a hole, is looked into in the memory of its ``.metadata``."""
    folder = shutil.copytree(two_ranks / "sharded_orig_dcp", tmp_path / "large")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.tok.weight"].size = torch.Size([17, 10**9])
    first, second = metadata.state_dict_metadata["model.tok.weight"].chunks
    first.sizes, second.sizes = torch.Size([9, 10**9]), torch.Size([8, 10**9])
    for index, info in metadata.storage_data.items():
        if index.fqn == "model.tok.weight":
            info.offset, info.length = 10**9, 50 * 10**9
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    for file in folder.glob("*.distcp"):
        os.truncate(file, 51 * 10**9)
    code = (
        "import re, sys; from fsdp_migrate.cli import main; code = main(['checkpoint', 'inspect', sys.argv[1]]);"
        "assert 'torch' not in sys.modules;"
        "most = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1];"
        "assert int(most) < 200_000, most; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "63.3 GiB" in done.stdout


def test_many_ties_are_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {str(number): torch.ones(2) for number in range(7)}
    state = {f"{copy}.{name}": weight for name, weight in weights.items() for copy in ("a", "b")}
    torch.save(state, tmp_path / "model.pt")
    assert main(["checkpoint", "inspect", str(tmp_path / "model.pt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("  tied: ")]) == 5
    assert "  and 2 more ties; --all shows them" in lines
    assert main(["checkpoint", "inspect", "--all", str(tmp_path / "model.pt")]) == 0
    assert capsys.readouterr().out.count("  tied: ") == 7
