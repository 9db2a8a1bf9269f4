"""What surrounds the code in a file survives, and a file is replaced whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree import writing


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"import a\r\nFSDP(x)\r\n", id="CRLF"),
        pytest.param(b"import a\nFSDP(x)", id="no final newline"),
        pytest.param(b"\xef\xbb\xbfFSDP(x)\n", id="BOM"),
        pytest.param(b"# -*- coding: latin-1 -*-\ns = '\xe9\xff'\nFSDP(x)\n", id="latin-1"),
        pytest.param(b"\n\n\tFSDP = 1\n".replace(b"\t", b"") + b"FSDP(x)\n\n\n", id="blank lines"),
    ],
)
@pytest.mark.usefixtures("word_engine")
def test_bytes_around_the_change_are_kept(source: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(source)
    assert main(["rewrite", str(file)]) == 0
    assert file.read_bytes() == source.replace(b"FSDP(", b"fully_shard(")


@pytest.mark.usefixtures("word_engine")
def test_mode_is_kept_and_a_link_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "script.py"
    file.write_text("#!/usr/bin/env python\nFSDP(x)\n")
    file.chmod(0o751)
    (tmp_path / "link.py").symlink_to("code/script.py")
    assert main(["rewrite", "link.py"]) == 0
    assert (tmp_path / "link.py").is_symlink()
    assert file.read_text() == "#!/usr/bin/env python\nfully_shard(x)\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751


def test_new_files_obey_the_mask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        writing.replace(tmp_path / "report.md", b"text")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "report.md").stat().st_mode) == 0o640
    assert os.umask(old) == old


@pytest.mark.parametrize("step", ["replace", "fsync", "fdopen"])
def test_a_failure_at_any_step_leaves_the_old_file_alone(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        writing.replace(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.py"]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"edited by somebody")
    with pytest.raises(writing.ChangedMeanwhile, match="changed on disk"):
        writing.replace(file, b"new", expected=b"old")
    assert file.read_bytes() == b"edited by somebody"


@pytest.mark.parametrize(
    ("encoding", "newline", "cookie"),
    [
        ("utf-8", "\r\n", ""),
        ("utf-8-sig", "\n", ""),
        ("utf-8-sig", "\r\n", "# coding: utf-8\n"),
        ("latin-1", "\n", "# -*- coding: latin-1 -*-\n"),
        ("cp1252", "\r\n", "#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\n"),
    ],
)
@pytest.mark.parametrize("ending", ["\n", ""])
def test_the_real_rules_keep_encodings_and_newlines(
    encoding: str, newline: str, cookie: str, ending: str, tmp_path: Path
) -> None:
    source = (
        f"{cookie}from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"name = 'é'\nmodel = FSDP(model)\nprint(model, name){ending}"
    )
    file = tmp_path / "train.py"
    file.write_bytes(source.replace("\n", newline).encode(encoding))
    assert main(["rewrite", str(file)]) == 0
    new = file.read_bytes().decode(encoding)
    assert new.startswith(cookie.replace("\n", newline))
    assert new.count("\n") == new.count(newline)
    assert "fully_shard(model)" in new
    assert f"{newline}name = 'é'{newline}" in new
    assert new.endswith("print(model, name)" + ending.replace("\n", newline))
    assert file.read_bytes().startswith(b"\xef\xbb\xbf") is (encoding == "utf-8-sig")
    compile(file.read_bytes(), "train.py", "exec")


def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    writing.replace(path, b"new")
    assert (path.read_bytes(), os.getxattr(path, "user.note")) == (b"new", b"kept")


def test_a_file_of_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "b.py")
    with pytest.raises(OSError, match="2 hard links"):
        writing.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.py", "b.py"]


def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    code = (
        "import os, sys; from pathlib import Path; from fsdp_migrate.tree import writing;"
        "os.replace = lambda *names: os._exit(9); writing.replace(Path(sys.argv[1]), b'new')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    (left,) = [entry for entry in tmp_path.iterdir() if entry != path]
    other = tmp_path / left.name.replace(".a.py.", ".b.py.")
    alive = tmp_path / f"{left.name.rpartition('-')[0].rpartition('-')[0]}-{os.getpid()}-x.tmp"
    other.touch()
    alive.touch()
    writing.replace(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, other, alive])


@pytest.mark.parametrize("letter", ["x", "é", "訓", "😀"])
def test_the_longest_name_that_a_file_can_have(letter: str, tmp_path: Path) -> None:
    path = tmp_path / f"{letter * (252 // len(letter.encode()))}.py"
    path.write_bytes(b"old")
    writing.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
