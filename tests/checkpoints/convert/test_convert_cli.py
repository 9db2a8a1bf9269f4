"""``checkpoint convert`` as people run it: what it prints, how it exits, what it needs, and the bar on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main
from tests.checkpoints.convert import command

_WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Blocked())
from fsdp_migrate.cli import entry_point
entry_point()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.pt"
    weight = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    torch.save({"model": {"_orig_mod.tok.weight": weight, "_orig_mod.head.weight": weight}, "step": 7}, path)
    return path


def _convert(*arguments: object) -> int:
    return main(["checkpoint", "convert", *map(str, arguments)])


def test_text(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(source, tmp_path / "new", "--to", "full") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"wrote {tmp_path / 'new'}: 2 tensors, 24 bytes, read again and equal to {source}",
        "  removed _orig_mod. from 2 names, which FSDP2 models do not have",
        f'load it with: set_model_state_dict(model, torch.load("{tmp_path / "new"}", mmap=True, '
        'weights_only=True)["model"], options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))',
    ]
    assert err == ""


def test_ties_that_safetensors_hold_once(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(source, tmp_path / "new", "--to", "safetensors") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "  left out step: safetensors keep only the tensors of a model",
        "  left out head.weight: the same elements as tok.weight, which the model ties again",
    ]
    assert 'sd["head.weight"] = sd["tok.weight"]; set_model_state_dict(model, sd, ' in lines[4]


@pytest.mark.parametrize("to", command.FORMATS)
def test_a_dry_run_writes_nothing(to: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    assert _convert(source, tmp_path / "new", "--to", to, "--dry-run") == 0
    count = 1 if to == "safetensors" else 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"would write {tmp_path / 'new'}: {count} tensor{'s' * (count > 1)}, {12 * count} bytes"
    assert "  removed _orig_mod. from 2 names, which FSDP2 models do not have" in lines
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_refuses_what_a_run_refuses(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(source, source, "--to", "full", "--dry-run") == 2
    assert "it already exists" in capsys.readouterr().err


def test_errors_are_a_line_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(tmp_path, tmp_path.parent / "new", "--to", "full") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"Error: {tmp_path}: contains no checkpoint\n"


@pytest.mark.parametrize("size", ["5", "5XB", "GB", "-1GB", "1.5GB", "0MB", ""])
def test_sizes_that_are_none(size: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(source, tmp_path / "new", "--to", "safetensors", "--shard-size", size) == 2
    assert f"invalid size '{size}': use for example 5GB, 500MB or 100KB" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_size_of_shards(tmp_path: Path) -> None:
    torch.save({f"w{number}": torch.zeros(200) for number in range(5)}, tmp_path / "in.pt")
    assert _convert(tmp_path / "in.pt", tmp_path / "new", "--to", "safetensors", "--shard-size", "2 kb") == 0
    assert len(list((tmp_path / "new").glob("*.safetensors"))) == 3


@pytest.mark.parametrize(
    "arguments", [[], ["a"], ["a", "b"], ["a", "b", "--to", "zip"], ["a", "b", "c", "--to", "dcp"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(*arguments) == 2
    assert "Usage: fsdp-migrate checkpoint convert" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert("--help") == 0
    out = capsys.readouterr().out
    for word in ("SRC", "DST", "--to", "--leave-out", "--shard-size", "--dry-run", "Exit code:", "--adamw", "--adam"):
        assert word in out
    assert main(["checkpoint", "--help"]) == 0
    assert "Convert a checkpoint to another format." in capsys.readouterr().out


def _run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, "checkpoint", "convert", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_safetensors_need_no_torch(source: Path, tmp_path: Path) -> None:
    done = _run(_WITHOUT_TORCH, source, tmp_path / "new", "--to", "safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new" / "model.safetensors").is_file()


@pytest.mark.parametrize("to", ["dcp", "full"])
def test_the_others_say_that_they_do(to: str, source: Path, tmp_path: Path) -> None:
    done = _run(_WITHOUT_TORCH, source, tmp_path / "new", "--to", to)
    assert done.returncode == 2
    assert done.stderr == f"Error: --to {to} needs torch: install fsdp-migrate with its extra [torch]\n"
    assert sorted(tmp_path.iterdir()) == [source]


def test_it_names_the_extra_that_it_needs(source: Path, tmp_path: Path) -> None:
    done = _run(_WITHOUT_TORCH.replace('"torch"', '"numpy"'), source, tmp_path / "new", "--to", "safetensors")
    assert done.stderr == "Error: convert needs numpy: install fsdp-migrate with its extra [convert]\n"
    assert done.returncode == 2


def test_a_file_where_a_folder_belongs(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _convert(source, source / "new", "--to", "full") == 2
    assert capsys.readouterr().err == f"Error: {source}: no such folder\n"


def test_names_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a [b] *?\t'\"{c} ü"
    folder.mkdir()
    torch.save({"w": torch.ones(2, 2)}, folder / "in.pt")
    for to in command.FORMATS:
        assert _convert(folder / "in.pt", folder / f"new [{to}]", "--to", to) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "in.pt",
        *(f"new [{to}]" for to in sorted(command.FORMATS)),
    ]
    assert "\t" not in capsys.readouterr().out


def test_bytes_on_a_terminal_and_nothing_on_a_pipe(tmp_path: Path) -> None:
    source = command.generate(tmp_path / "in.pt")
    main_end, other_end = pty.openpty()
    process = subprocess.Popen(
        command.arguments(source, tmp_path / "new", "safetensors"),
        stdout=subprocess.PIPE,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(other_end)
    shown = b""
    # Linux ends a terminal that nobody holds any more with an error.
    with contextlib.suppress(OSError):
        while part := os.read(main_end, 65536):
            shown += part
    os.close(main_end)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b" not in out
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"writing .*48\.0 MiB", text)
    assert re.search(r"comparing .*48\.0 MiB", text)

    piped = command.start(source, tmp_path / "other", "safetensors")
    _, err = piped.communicate(timeout=60)
    assert err == ""
