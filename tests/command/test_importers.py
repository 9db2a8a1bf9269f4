"""What makes its models with something that another file imports FSDP1 for is read and followed, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main

DECORATOR = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sharded(level):
    def decorate(function):
        def inner(*args):
            return FSDP(function(*args), limit_all_gathers=level > 1)
        return inner

    return decorate
"""
DECORATED = """
from wrapping import sharded


@sharded(2)
def small():
    return Net()


def fit(model):
    return torch.topk(next(model.parameters()), 2)


import torch
for make in {"small": small}.values():
    fit(make())
"""
MAKER = """
from functools import partial
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

makers = {"whole": partial(partial(FSDP, use_orig_params=True), device_id=0)}
"""
MADE = """
import torch
import wrapping

model = wrapping.makers["whole"](Net())
print(torch.topk(list(model.parameters())[0], 2))
"""


@pytest.mark.parametrize(("wrapping", "program"), [(DECORATOR, DECORATED), (MAKER, MADE)], ids=["decorator", "table"])
def test_a_file_that_imports_a_maker_of_models(
    wrapping: str, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrapping.py").write_text(wrapping)
    (tmp_path / "program.py").write_text(program)
    main(["check", str(tmp_path), "--min-level", "review"])
    line = next(number for number, text in enumerate(program.splitlines(), 1) if "topk" in text)
    assert f"program.py:{line}:" in capsys.readouterr().out
