"""Fixtures that every test may use."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pool import Pool


class _PoolOfThisMachine(Pool):
    """A pool whose jobs skip the test where the machine has too few devices for their ranks."""

    def run(self, fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 120) -> list[Any]:
        # Here, because tests of the rules do without torch, which takes seconds to import.
        from tests.device import skip_beyond

        skip_beyond(world_size)
        return super().run(fn, world_size, *args, timeout=timeout)


def pytest_configure() -> None:
    """Stop before any test is imported if the tests are to run on GPUs and there is none."""
    if os.environ.get("FSDP_COMPAT_TEST_DEVICE") == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.exit("no GPU was found, so there is nothing to run the tests on", returncode=2)


@pytest.fixture(scope="session")
def _cache_folders() -> Iterator[Iterator[str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield (f"{folder}/{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_cache(_cache_folders: Iterator[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache and a state folder of its own, which are empty."""
    folder = next(_cache_folders)
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder}-state")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four worker processes for the whole run; see :class:`tests.pool.Pool`."""
    with _PoolOfThisMachine(4) as workers:
        yield workers
