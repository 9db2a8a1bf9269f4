"""Code that runs on fsdp_compat goes on to FSDP2 by the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_rules.engine.from_shim import as_fsdp1, back_on_shim
from tests.pool import ROOT

FIXTURES = sorted(path.name for path in (ROOT / "fixtures" / "rewrite").iterdir() if path.is_dir())
#: Fixtures whose FSDP1 is beyond the shim's names: private modules, star imports, a loop that `--to shim` changes too.
BEYOND = ("FSDP90", "FSDP100", "FSDP221")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", "x = 1\n"),
        ("from fsdp_compat import FSDP\n", "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"),
        (
            "from fsdp_compat import FullyShardedDataParallel as F, StateDictType\n",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F, StateDictType\n",
        ),
        (
            "from fsdp_compat import CPUOffload, wrap  # why\n",
            "from torch.distributed.fsdp import CPUOffload\nfrom torch.distributed.fsdp.wrap import wrap  # why\n",
        ),
        (
            "import fsdp_compat\nm = fsdp_compat.shard(m, use_orig_params=True)\n",
            "from torch.distributed.fsdp import FullyShardedDataParallel\n"
            "m = FullyShardedDataParallel(m, use_orig_params=True)\n",
        ),
        (
            "import fsdp_compat\nn = fsdp_compat.clip_grad_norm_(self.m, 1.0).item()\n",
            "\nn = self.m.clip_grad_norm_(1.0).item()\n",
        ),
        (
            "import fsdp_compat\nwith fsdp_compat.no_sync(m):\n    pass\n",
            "\nwith m.no_sync():\n    pass\n",
        ),
        ("import fsdp_compat\nprint(fsdp_compat.plan(m))\n", "import fsdp_compat\nprint(fsdp_compat.plan(m))\n"),
        ("from fsdp_compat import shard, (\n", "from fsdp_compat import shard, (\n"),
        (
            "import fsdp_compat\ns = 'ä', fsdp_compat.FSDP, fsdp_compat.memory_report\n",
            "from torch.distributed.fsdp import FullyShardedDataParallel\nimport fsdp_compat\n"
            "s = 'ä', FullyShardedDataParallel, fsdp_compat.memory_report\n",
        ),
        (
            "import fsdp_compat\nwrap = fsdp_compat.wrap\n",
            "import torch.distributed.fsdp.wrap\nwrap = torch.distributed.fsdp.wrap.wrap\n",
        ),
    ],
)
def test_names_of_the_shim_become_those_of_fsdp1(before: str, after: str) -> None:
    assert as_fsdp1(before.encode()).decode() == after


def test_what_is_left_goes_back() -> None:
    source = b"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nclass Mine(FSDP):\n    pass\n"
    back = b"from fsdp_compat import FullyShardedDataParallel as FSDP\n\nclass Mine(FSDP):\n    pass\n"
    assert back_on_shim(source, "a.py") == back


@pytest.mark.parametrize("fixture", [name for name in FIXTURES if not name.startswith(BEYOND)])
def test_over_the_shim_to_what_fsdp1_becomes_at_once(
    fixture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "fixtures" / "rewrite" / fixture / "before.py").read_text()
    for name in ("direct", "over"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(source)
    quiet = ["--jobs", "1", "--torch", "2.6"]
    assert main(["rewrite", "direct", *quiet]) in (0, 1)
    main(["rewrite", "over", "--to", "shim", *quiet])
    shimmed = (tmp_path / "over" / "train.py").read_text()
    assert main(["rewrite", "over", "--from", "shim", *quiet]) in (0, 1)
    direct, over = ((tmp_path / name / "train.py").read_text() for name in ("direct", "over"))
    if "FullyShardedDataParallel" in direct or "TODO" in direct:
        assert "torch.distributed.fsdp import FullyShardedDataParallel" not in over or shimmed == source
        return
    # An import of the shim may have stood elsewhere than that of FSDP1.
    assert sorted(over.splitlines()) == sorted(direct.splitlines())


def test_modes_that_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("from fsdp_compat import FSDP\n\ndef f(m):\n    return FSDP(m)\n")
    assert main(["rewrite", str(tmp_path), "--from", "shim", "--to", "shim"]) == 2
    assert "leave out --to shim" in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path)]) == 0
    assert "rewrite --from shim" in capsys.readouterr().out
