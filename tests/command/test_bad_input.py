"""Whatever stands in one file, it is named in one line, nothing is half-written, and the other files are done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline import pool
from fsdp_migrate.pipeline.work import NEWER, why_unparsable
from fsdp_migrate.tree import writing

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.fixture(autouse=True)
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good file beside the bad one."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "good.py"
    file.write_text("FSDP(x)\n")
    return file


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"def f(:\n  FSDP(x)\n", "could not parse as Python 3.", id="syntax error"),
        pytest.param(b"print 'FSDP(x)'\n", "line 1: Missing parentheses", id="Python 2"),
        pytest.param(b"x = '\xe9'\nFSDP(x)\n", "'utf-8' codec can't decode", id="latin-1 without a cookie"),
        pytest.param(b"# coding: klingon\nFSDP(x)\n", "unknown encoding: klingon", id="unknown encoding"),
        pytest.param(b"FSDP(x)\0\n", "null bytes", id="NUL bytes"),
        pytest.param(b"\x7fELF\0\1FSDP(\xff\n", "could not parse as Python 3.", id="binary"),
        pytest.param(b"FSDP" + b"(" * 300 + b")" * 300, "too many nested parentheses", id="nested"),
        pytest.param(b"FSDP # raise\n", "internal error: ZeroDivisionError: a rule divides by zero (", id="defect"),
        pytest.param(b"FSDP # deep\n", "too deeply nested to be analysed", id="RecursionError"),
        pytest.param(b"FSDP # huge\n", "too large for the memory", id="MemoryError"),
        pytest.param(b"FSDP # refuse\n", "error: refused", id="Failed"),
    ],
)
def test_bad_content(content: bytes, reason: str, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = good.with_name("bad.py")
    bad.write_bytes(content)
    assert main(["rewrite", "."]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("bad.py: error: ")
    assert err.count("\n") == 1
    assert reason in err
    assert "1 file could not be processed. " in out
    assert "Next: fix these files" in out
    assert bad.read_bytes() == content
    assert good.read_text() == "fully_shard(x)\n"


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\xef\xbb\xbf", b"def f(:\n", b"\0\0", b"\xff\xfe", b"x = 1\n" * 900_000],
    ids=["empty", "blank", "BOM", "syntax error", "NUL bytes", "UTF-16", "5 MB"],
)
def test_what_cannot_concern_fsdp_is_never_parsed(
    content: bytes, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good.with_name("other.py").write_bytes(content)
    assert main(["rewrite", "."]) == 0
    assert "2 files read, 1 with findings" in capsys.readouterr().out


@pytest.mark.usefixtures("word_engine")
def test_files_that_cannot_be_read(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = good.parent
    (directory / "dangling.py").symlink_to("absent.py")
    (directory / "loop.py").symlink_to("loop.py")
    (directory / "directory.py").mkdir()
    (directory / "directory.py" / "up").symlink_to("..")
    (directory / "directory.py" / "inside.py").write_text("FSDP(x)\n")
    os.mkfifo(directory / "pipe.py")
    assert main(["rewrite", "."]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "dangling.py: error: could not read: No such file or directory",
        "loop.py: error: could not read: Too many levels of symbolic links",
    ]
    assert good.read_text() == "fully_shard(x)\n"
    assert (directory / "directory.py" / "inside.py").read_text() == "fully_shard(x)\n"
    assert main(["rewrite", "pipe.py"]) == 2
    assert capsys.readouterr().err == "pipe.py: error: could not read: not a regular file\n"


@pytest.mark.usefixtures("word_engine")
def test_a_file_without_permission(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.pipeline import run

    def read(path: Path) -> bytes:
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return path.read_bytes()

    monkeypatch.setattr(run, "read_regular", read)
    good.with_name("secret.py").write_text("FSDP(x)\n")
    assert main(["rewrite", "."]) == 2
    assert capsys.readouterr().err == "secret.py: error: could not read: Permission denied\n"
    assert good.read_text() == "fully_shard(x)\n"


@pytest.mark.usefixtures("word_engine")
def test_a_worker_that_dies_is_one_file(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MIN_ITEMS", 1)
    monkeypatch.setattr(pool, "MIN_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    for number in range(12):
        good.with_name(f"m{number:02}.py").write_text("FSDP(x) # die\n" if number % 5 == 0 else "FSDP(x)\n")
    assert main(["rewrite", "."]) == 2
    err = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in err] == ["m00.py", "m05.py", "m10.py"]
    assert "ended without a result" in err[0]
    rewritten = [file.name for file in good.parent.glob("*.py") if "fully_shard" in file.read_text()]
    assert len(rewritten) == 10


@pytest.mark.usefixtures("word_engine")
def test_a_file_that_cannot_be_replaced_stays_whole(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == "locked.py":
            raise PermissionError(13, "Permission denied")
        real(source, target)

    locked = good.with_name("locked.py")
    locked.write_text("FSDP(x)\n")
    monkeypatch.setattr(writing.os, "replace", replace)
    assert main(["rewrite", "."]) == 2
    assert capsys.readouterr().err == "locked.py: error: could not write: Permission denied\n"
    assert locked.read_text() == "FSDP(x)\n"
    assert good.read_text() == "fully_shard(x)\n"
    assert sorted(file.name for file in good.parent.iterdir()) == [".fsdp-migrate", "good.py", "locked.py"]


@pytest.mark.parametrize(
    "content",
    [
        IMPORT + "x = " + "+".join(["1"] * 20_000) + "\n",
        IMPORT + "x = " + "-" * 20_000 + "1\n",
        IMPORT + "x = a" + ".b" * 20_000 + "\n",
        IMPORT + "".join(" " * level + "if x:\n" for level in range(99)) + " " * 99 + "pass\n",
        IMPORT + "if x: pass\n" + "elif x: pass\n" * 500,
        IMPORT + "if x: pass\n" + "elif x: pass\n" * 2_000,
    ],
    ids=["sum", "signs", "attributes", "blocks", "500 elif", "2000 elif"],
)
def test_depth_that_breaks_parsers_breaks_one_file_at_most(content: str, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(content)
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--diff", "deep.py"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Traceback" not in answer.stderr
    assert answer.returncode == 0 or (answer.returncode == 2 and "too deeply" in answer.stderr), answer.stderr[-500:]


@pytest.mark.parametrize("command", ["rewrite", "check"])
def test_an_empty_path_is_not_the_current_directory(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, ""]) == 2
    assert "no such file or directory: ''" in capsys.readouterr().err


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it parses")
def test_syntax_of_a_newer_python_names_the_remedy() -> None:
    assert why_unparsable(b'x = t"{FSDP(x)}"\n').endswith(f". {NEWER}")
    assert NEWER not in why_unparsable(b"def f(:\n  FSDP(x)\n")


@pytest.mark.parametrize(("imported", "told"), [("from part import Trainer", True), ("Trainer = Other", False)])
def test_a_file_that_a_model_may_reach_is_named_if_it_cannot_be_read(
    imported: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It speaks of FSDP nowhere; only what imports it does."""
    (tmp_path / "part.py").write_text("class Trainer:\n    def fit(self):\n        print self.model\n")
    (tmp_path / "good.py").write_text(
        f"{imported}\n{IMPORT}\ndef main(net):\n    trainer = Trainer()\n    trainer.model = FSDP(net)\n"
        "    trainer.fit()\n"
    )
    assert main(["rewrite", "--diff", "."]) == 0
    assert ("part.py: skipped: a wrapped model may be passed to it" in capsys.readouterr().err) is told
