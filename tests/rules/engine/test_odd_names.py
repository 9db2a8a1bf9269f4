"""Identifiers in letters that Python reads as others are refused where they could mean a name of FSDP1."""

# ruff: noqa: RUF001
from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{IMPORT}net = ＦSDP(Net())\n", "line 2: ＦSDP means FSDP to Python"),
        (f"{IMPORT}net = FSDP(Net())\nx = net.ｍodule\n", "line 3: ｍodule means module to Python"),
        ("from torch.distributed import ｆsdp\nnet = ｆsdp.FullyＳhardedDataParallel(Net())\n", "line 1: ｆsdp means"),
        (f"{IMPORT}ℓ = FSDP(Net())\nl.no_sync()\n", "line 3: ℓ means l to Python"),
    ],
)
def test_such_a_source_is_refused_and_kept(
    source: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    for command in ("check", "rewrite"):
        assert main([command, str(path)]) == 2
        assert said in "".join(capsys.readouterr())
    assert path.read_text(encoding="utf-8") == source


@pytest.mark.parametrize(
    "source",
    [
        f"{IMPORT}# ＦSDP：分片\nnet = FSDP(Net())\nℓ = 'ＦSDP'\nµs = 1e-6\n",
        f"{IMPORT}net = FSDP(Net())\nＡ变量 = 1\n",
    ],
)
def test_symbols_texts_and_comments_are_no_such_names(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    assert main(["rewrite", str(path)]) == 0, capsys.readouterr()
    assert "fully_shard(net)" in path.read_text(encoding="utf-8")


def test_a_file_without_fsdp1_may_spell_its_names_as_it_likes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("ﬁlter_of = 3\nprint(filter_of)\n", encoding="utf-8")
    assert main(["check", str(tmp_path)]) == 0
    assert "no findings" in capsys.readouterr().out
