"""Tests that need a newer torch than the one at hand, or an older one."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_compat.torch_.versions import TORCH


def needs_torch(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test, or one of its parameters, on a torch older than ``version``, which brought ``what``."""
    return pytest.mark.skipif(Version(version) > TORCH, reason=f"needs torch {version}: {what}")


def older_than_torch(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test, or one of its parameters, on torch ``version`` and later, ``what`` says why."""
    return pytest.mark.skipif(Version(version) <= TORCH, reason=f"not on torch {version}, {what}")
