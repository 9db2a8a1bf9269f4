"""``status`` and ``--stats``: how far a project is, by folder, owner and commit."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from fsdp_migrate.cli import main
from fsdp_migrate.report.summary import printable

Capture = pytest.CaptureFixture[str]
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"


@pytest.fixture
def project(git: Callable[..., str], commit: Callable[[], None], tmp_path: Path) -> Path:
    files = {
        "train/a.py": SOURCE,
        "train/deep/b.py": "from torch.distributed.fsdp import fully_shard\n\nfully_shard(model)\n",
        "eval/c.py": SOURCE + "handle = model._handle\n",
        "top.py": "from fsdp_compat import FSDP\n\nmodel = FSDP(model)\n",
        "other.py": "x = 1\n",
        ".github/CODEOWNERS": "# who\n*  @all\n/train/ @team-a @team-b\n/eval/c.py\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    commit()
    return tmp_path


def content(capsys: Capture, *arguments: str) -> dict[str, dict[str, int]]:
    capsys.readouterr()
    assert main(["status", "--format", "json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row.pop("name"): row for row in [*found["rows"], found["total"]]}


def test_files_are_counted_by_folder(project: Path, capsys: Capture) -> None:
    assert content(capsys) == {
        ".": {"native": 0, "shim": 1, "fsdp1": 0, "manual": 0, "places_by_hand": 0},
        "eval": {"native": 0, "shim": 0, "fsdp1": 0, "manual": 1, "places_by_hand": 1},
        "train": {"native": 1, "shim": 0, "fsdp1": 1, "manual": 0, "places_by_hand": 0},
        "total": {"native": 1, "shim": 1, "fsdp1": 1, "manual": 1, "places_by_hand": 1},
    }
    assert set(content(capsys, "train", "eval")) == {"train", "train/deep", "eval", "total"}


def test_files_are_counted_by_owner(project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(content(capsys, "--by", "owner")) == {"@all", "@team-a @team-b", "(no owner)", "total"}
    # The patterns are meant from the root of the repository, whichever folder the command runs in.
    monkeypatch.chdir(project / "train")
    assert set(content(capsys, "--by", "owner")) == {"@team-a @team-b", "total"}


def test_an_earlier_commit_is_compared(project: Path, capsys: Capture) -> None:
    assert main(["rewrite", "--quiet", "train"]) == 0
    capsys.readouterr()
    assert main(["status", "--since", "HEAD"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said if line.startswith("train")] == [
        ["train", "2", "(+1)", "0", "0", "(-1)", "0", "0"]
    ]
    assert said[-1] == "3 of 4 files moved, 1 place left to do by hand (at HEAD: 2 of 4, 1 place)."
    assert main(["status", "--since", "nothing"]) == 2
    assert "Error: --since nothing: git answered" in capsys.readouterr().err


HOSTILE = ["<b>|x", "[a](javascript:x)", "`` ` ``` |", "@somebody ![i](j)", "]]> & &lt;", "a\n::error::b"]


@pytest.mark.parametrize("form", ["md", "html"])
def test_markup_in_names_does_no_harm(form: str, tmp_path: Path, capsys: Capture) -> None:
    for name in HOSTILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(SOURCE)
    assert main(["status", "--format", form, str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("## Migration to FSDP2\n" if form == "md" else "<!doctype html>")
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(said) if form == "md" else said
    # In Markdown a name is a code span, in which no reader finds a mention.
    names = re.findall(r"<tr>\s*<td>(?:<code>)?(.*?)(?:</code>)?</td>", page)
    assert {html.unescape(name) for name in names} == {*map(printable, HOSTILE), "total"}
    assert not re.search("<(b|a|img)[ >]", page)


def test_an_error_about_a_path_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a\n::error::b.py").write_text("from torch.distributed.fsdp import FSDP\nmodel = FSDP(\n")
    assert main(["status", str(tmp_path)]) == 2
    assert not [line for line in capsys.readouterr().err.splitlines() if line.startswith("::")]


def test_configuration_that_asks_for_fsdp2_is_native(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n")
    assert content(capsys, str(tmp_path))["total"]["fsdp1"] == 1
    assert main(["rewrite", "--quiet", "--allow-dirty", str(tmp_path)]) == 0
    (tmp_path / "verl.yaml").write_text("actor:\n  strategy: fsdp2\n")
    (tmp_path / "other.yaml").write_text("text: fully_shard\nfsdp_version: 1\n")
    assert content(capsys, str(tmp_path))["total"]["native"] == 2


def test_a_tree_without_fsdp_says_so(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No file uses FSDP.\n"
    assert main(["status", "--by", "owner", str(tmp_path)]) == 2
    assert main(["status", "--since", "HEAD", str(tmp_path)]) == 2


def test_stats_are_one_line_for_each_rule(project: Path, capsys: Capture) -> None:
    assert main(["check", "--stats", "train", "eval"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert ["2", "FSDP101", "safe", "constructor-call"] in [line.split() for line in said[:-1]]
    assert ":1:" not in "".join(said)
    assert main(["rewrite", "--stats", "train"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["1", "FSDP101", "safe", "constructor-call"] in [line.split() for line in said[:-1]]
    assert said[-1].startswith("2 files read, 1 with findings, 1 rewritten.")
