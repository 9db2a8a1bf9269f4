"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four worker processes for the whole run; see :class:`tests.pool.Pool`."""
    with Pool(4) as workers:
        yield workers
