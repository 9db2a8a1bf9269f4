"""Forty programs, six layouts each: what is predicted is counted, and the losses are those under FSDP1."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from fsdp_migrate.tune.present import present
from fsdp_migrate.tune.replay import replay
from fsdp_rules.settings import Settings
from tests.parity.harness import SCRIPT, files_of, rewritten_files
from tests.parity.programs import Program
from tests.pool import Pool
from tests.sampling import every
from tests.tune.programs import LAYOUTS, chosen, in_layout, layouts, recording


@pytest.mark.parametrize("program", every(10, chosen(), pytest.mark.long), ids=lambda program: program.name)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_a_program_trains_in_every_layout_as_predicted(
    pool: Pool, tmp_path: Path, program: Program, ranks: int
) -> None:
    files = files_of(program)
    saved = tmp_path / "result.pt"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    pool.run_script(tmp_path / SCRIPT, ranks, [str(saved)], prelude=recording)
    before = torch.load(saved, weights_only=True)["losses"]
    found = present(pickle.loads(Path(f"{saved}.recorded.0").read_bytes()))
    offered = layouts(found, program.spec["accumulate"])
    assert len(offered) == LAYOUTS
    for name, text in rewritten_files(files, Settings()).items():
        (tmp_path / name).write_text(text)
    for name, layout in offered.items():
        target = tmp_path / f"{name}.pt"
        Path(f"{target}.layout").write_bytes(pickle.dumps((found.model, layout)))
        pool.run_script(tmp_path / SCRIPT, ranks, [str(target)], prelude=in_layout)
        books = replay(found.model, layout)
        said = (dict(books.counts), dict(books.moved), books.peaks["gathered"], books.peaks["communicated"])
        for rank in range(ranks):
            assert pickle.loads(Path(f"{target}.counted.{rank}").read_bytes()) == said, name
        if ranks == 2:
            # Sums of two numbers have one order.
            assert torch.load(target, weights_only=True)["losses"] == before, name
