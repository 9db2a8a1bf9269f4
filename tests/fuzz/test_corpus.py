"""Everything that ever failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import checkpoint_properties, source_properties

CORPUS = Path(__file__).parent / "corpus"
CHECKS: dict[str, Callable[[bytes], None]] = {
    "sources": source_properties.hold,
    "checkpoints": checkpoint_properties.hold,
}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: path.name)
def test_what_failed_once_holds(path: Path) -> None:
    CHECKS[path.parent.name](path.read_bytes())
