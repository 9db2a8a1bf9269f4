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
