"""The code in docs/shim.md runs and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch

PAGE = Path(__file__).parents[2] / "docs" / "shim.md"
SECTION = "## Memory, planned and measured"


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block in the section."""
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def printed(rank: int, world_size: int, sources: list[str]) -> list[str]:
    """Worker: what each block prints, all run in one namespace."""
    names: dict[str, Any] = {}
    found = []
    for source in sources:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            # FSDP2 warns that a root's output is a view, as nn.Linear's is.
            warnings.simplefilter("ignore", UserWarning)
            exec(source, names)
        found.append(output.getvalue())
    return found


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the page shows what a CPU prints")
@needs_torch("2.8", "reshard_after_forward=None, which the documentation page prints")
def test_the_page_shows_what_its_code_prints(pool: Pool) -> None:
    sources = [text for language, text in blocks() if language == "python"]
    shown = [text for language, text in blocks() if language == "text"]
    assert len(sources) == len(shown) == 2
    assert pool.run(printed, 2, sources)[0] == shown
