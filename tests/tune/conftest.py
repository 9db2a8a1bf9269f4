"""The programs that are recorded here start by :data:`tests.forked.PYTHON`."""

from __future__ import annotations

import pytest

from tests import forked


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    forked.start()
