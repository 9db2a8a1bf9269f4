"""Where the tests run, said once: on CPUs with gloo, or on GPUs with NCCL (``make test-gpu``).

``FSDP_COMPAT_TEST_DEVICE`` is the device's type, ``cpu`` or ``cuda``. ``FSDP_COMPAT_TEST_RANKS`` sets the number of
ranks that there may be: fewer, so that a machine without GPU can show what a machine with one GPU runs, or more than
there are GPUs, which ranks share then.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

KIND = os.environ.get("FSDP_COMPAT_TEST_DEVICE", "cpu")
BACKEND = {"cpu": "gloo", "cuda": "nccl"}[KIND]
# The worker's own device, since workers take theirs before they import a test; the first one elsewhere.
DEVICE = torch.device(KIND, torch.cuda.current_device()) if KIND == "cuda" else torch.device(KIND)


def device_of(rank: int) -> torch.device:
    """The device of the worker of ``rank``."""
    return torch.device(KIND, rank % torch.cuda.device_count()) if KIND == "cuda" else torch.device(KIND)


def max_ranks() -> int:
    """How many ranks a test may have, if nothing is set: one per GPU, or any number on the CPU."""
    here = torch.cuda.device_count() if KIND == "cuda" else sys.maxsize
    return int(os.environ.get("FSDP_COMPAT_TEST_RANKS", here))


def ranks(wanted: int) -> int:
    """``wanted`` ranks, or as many as there are: for tests that mean something on a single rank too."""
    return min(wanted, max_ranks())


def skip_beyond(world_size: int) -> None:
    """Skip the running test, saying why, if there are fewer than ``world_size`` ranks."""
    if world_size > max_ranks():
        pytest.skip(f"needs {world_size} ranks on {KIND}, but there can be {max_ranks()}")
