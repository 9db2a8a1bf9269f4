"""Checkpoints written once per run of the tests, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool import Pool


@pytest.fixture(scope="session")
def two_ranks(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of every kind of checkpoint that two ranks write."""
    from fixtures.checkpoints import kinds
    from tests.checkpoints.written import write

    folder = tmp_path_factory.mktemp("checkpoints") / "two"
    folder.mkdir()
    pool.run(write, 2, folder, kinds.write_fsdp1, True)
    pool.run(write, 2, folder, kinds.write_fsdp1, False)
    pool.run(write, 2, folder, kinds.write_strategies)
    pool.run(write, 2, folder, kinds.write_fsdp2)
    pool.run(write, 2, folder, kinds.write_layouts)
    pool.run(write, 2, folder, kinds.write_by_rank)
    return folder


@pytest.fixture(scope="session")
def four_ranks(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints that four ranks write, hybrid ones among them."""
    from fixtures.checkpoints import kinds
    from tests.checkpoints.written import write

    folder = tmp_path_factory.mktemp("checkpoints") / "four"
    folder.mkdir()
    pool.run(write, 4, folder, kinds.write_fsdp1, True)
    pool.run(write, 4, folder, kinds.write_hybrid)
    return folder
