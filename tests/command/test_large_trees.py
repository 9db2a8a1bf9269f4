"""Trees in which names lead almost anywhere: what the values lead to is read, and the report says that this is all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main

WRAPS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from helper import use

model = FSDP(net)
use(model)
"""
#: Nothing in it is a name of FSDP1's, so that it is read for what reaches it alone.
HELPER = "def use(thing):\n    return thing.rank\n"


@pytest.mark.parametrize(("bound", "most"), [("modules.MOST", 10), ("interpreter.MOST_FRAMES", 2)])
def test_the_report_says_where_values_are_followed_up_to_a_bound(
    bound: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(f"{WRAPS}\ndef evaluate():\n    from other import settle\n    return settle\n")
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "other.py").write_text("def settle():\n    pass\n")
    main(["check", "--no-cache", str(tmp_path)])
    assert "FSDP223" not in capsys.readouterr().out
    monkeypatch.setattr(f"fsdp_rules.values.{bound}", most)
    main(["check", "--no-cache", str(tmp_path)])
    assert "FSDP223" in capsys.readouterr().out
