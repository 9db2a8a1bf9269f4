"""Findings about a model that was wrapped before say where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.rules.helpers import findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def wrapped(source: str, **others: str) -> dict[str, str]:
    """What is said of the wrap, by rule, where something is."""
    return {found.rule: found.wrapped for found in findings(source, None, **others) if found.wrapped}


def test_the_line_of_the_same_file_is_named() -> None:
    source = WRAP + "\ndef main(net):\n    net = FSDP(net)\n    return net.module.config\n"
    assert wrapped(source) == {"FSDP206": "line 4"}


def test_of_two_wraps_the_nearest_above_is_named() -> None:
    source = (
        WRAP + "\ndef main(net):\n    net.head = FSDP(net.head)\n    net = FSDP(net)\n    return net.module.config\n"
    )
    assert wrapped(source) == {"FSDP206": "line 5"}


def test_the_file_is_named_where_it_is_another_one() -> None:
    made = WRAP + "\n\ndef build(net):\n    return FSDP(net)\n"
    passing = "from build import build\nfrom example import use\n\n\ndef run(net, work):\n    use([build(net)])\n"
    source = "from copy import deepcopy\n\n\ndef use(nets):\n    deepcopy(nets[0])\n"
    assert wrapped(source, build=made, run=passing) == {"FSDP211": "build.py:5"}


def test_nothing_is_named_where_no_model_is_in_sight() -> None:
    assert wrapped(WRAP + "\ndef count(net):\n    return len(FSDP.fsdp_modules(net))\n") == {}


def test_reports_print_it_and_json_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(tmp_path, "a.py").write_text(
        WRAP + "from copy import deepcopy\n\nnet = FSDP(net)\naverage = deepcopy(net)\n", encoding="utf-8"
    )
    assert main(["check", str(tmp_path)]) == 1
    assert "deepcopy of a sharded model raises an error (wrapped in line 4)" in capsys.readouterr().out
    assert main(["check", "--format", "json", str(tmp_path)]) == 1
    content = json.loads(capsys.readouterr().out)
    assert [found["wrapped"] for found in content["findings"] if found["rule"] == "FSDP211"] == ["line 4"]


@pytest.mark.parametrize("diff", [True, False])
def test_a_rewrite_names_the_lines_that_the_files_have_now(
    diff: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that are gone above the wraps, in the same file and in another one, which is written later."""
    monkeypatch.chdir(tmp_path)
    policy = "from torch.distributed.fsdp import MixedPrecision\n\nmixed = MixedPrecision(\n    None,\n    None,\n)\n"
    for name in ("a", "z"):
        Path(f"{name}.py").write_text(f"{WRAP}{policy}\nnet = FSDP(net, mixed_precision=mixed)\nx = deepcopy(net)\n")
    Path("z.py").write_text("# z\n" + Path("z.py").read_text())
    Path("m.py").write_text("from a import net\nfrom z import net as other\n\nx = deepcopy(net)\ny = deepcopy(other)\n")
    for file in tmp_path.glob("*.py"):
        file.write_text("from copy import deepcopy\n" + file.read_text())
    assert main(["rewrite", ".", *(["--diff"] if diff else ["--report", "out.json"])]) == 1
    output = capsys.readouterr()
    said = output.err if diff else output.out
    now = {file.name: file.read_text().splitlines() for file in tmp_path.glob("*.py")}
    wraps = {
        name: next(number for number, line in enumerate(lines, 1) if line.startswith(("net = FSDP(", "fully_shard(")))
        for name, lines in now.items()
        if name != "m.py"
    }
    assert all(
        f"deepcopy of a sharded model raises an error (wrapped in {place})" in said
        for place in (
            f"line {wraps['a.py']}",
            f"line {wraps['z.py']}",
            f"a.py:{wraps['a.py']}",
            f"z.py:{wraps['z.py']}",
        )
    )
