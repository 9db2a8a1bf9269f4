"""Flat parameters and raw optimizers of two and four ranks, written once per run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool import Pool


@pytest.fixture(scope="session")
def slices(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """For two and for four ranks, a folder of all that LOCAL_STATE_DICT and raw optimizers leave."""
    from fixtures.checkpoints import kinds
    from tests.checkpoints.written import write

    parent = tmp_path_factory.mktemp("slices")
    folders = {2: parent / "two", 4: parent / "four"}
    for world_size, folder in folders.items():
        folder.mkdir()
        for use_orig_params in (True, False):
            pool.run(write, world_size, folder, kinds.write_fsdp1, use_orig_params)
            pool.run(write, world_size, folder, kinds.write_odd, use_orig_params)
    for use_orig_params in (True, False):
        pool.run(write, 4, folders[4], kinds.write_raw_hybrid, use_orig_params)
    return folders
