"""What reads or changes parameters away from the forward, in functions of other files, trained before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity.compare import differ
from tests.parity.elsewhere import OPERATIONS, programs
from tests.parity.trees import rewrite_tree, train_tree
from tests.pool import Pool

PROGRAMS = {(name, where): files for name, text in OPERATIONS.items() for where, files in programs(text).items()}


class Originals:
    """What FSDP1 gives for each operation, wherever it is: each runs once."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool = pool
        self._directory = directory
        self._done: dict[str, Any] = {}

    def train(self, name: str) -> Any:
        """The losses of the program that has the operation ``name`` in the file of its forward."""
        if name not in self._done:
            files = PROGRAMS[name, "the same file"]
            self._done[name] = train_tree(self._pool, files, self._directory / str(len(self._done)), fsdp1=True)
        return self._done[name]


@pytest.fixture(scope="module")
def originals(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(pool, tmp_path_factory.mktemp("originals"))


@pytest.mark.parametrize("program", PROGRAMS, ids=", ".join)
def test_the_rewritten_program_trains_the_same(
    pool: Pool, originals: Originals, tmp_path: Path, program: tuple[str, str]
) -> None:
    after = rewrite_tree(PROGRAMS[program])
    assert after.manual() == []
    losses = train_tree(pool, after.files, tmp_path / "after")
    assert list(differ("losses", originals.train(program[0]), losses)) == []
