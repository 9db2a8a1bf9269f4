"""``undo``: what a run has replaced is put back byte for byte, with git and without."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree.undoing import RUNS

pytestmark = pytest.mark.usefixtures("word_engine")

Capture = pytest.CaptureFixture[str]
FILES = {
    "a.py": b"import os\nFSDP(x)\n",
    "sub/crlf.py": b"\xef\xbb\xbfa\r\nFSDP(x)\r\nb",
    "sub/latin \xe9.py": b"# coding: latin-1\ns = '\xe9'\nFSDP(x)\n",
    "plain.py": b"x = 1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    monkeypatch.chdir(folder)
    return folder


def held(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def test_every_byte_comes_back(project: Path, capsys: Capture) -> None:
    (project / "a.py").chmod(0o755)
    assert main(["rewrite", "."]) == 0
    assert capsys.readouterr().out.endswith(
        "Next: train a few steps and compare the losses; fsdp-migrate undo restores the old files.\n"
    )
    assert held(project) != FILES
    assert main(["undo"]) == 0
    assert held(project) == FILES
    assert (project / "a.py").stat().st_mode & 0o777 == 0o755
    assert capsys.readouterr().out.endswith("3 files restored, 0 not restored (run 1)\n")
    assert main(["undo"]) == 2
    assert "there is no run to undo" in capsys.readouterr().err


def test_what_was_edited_since_is_left_and_listed(project: Path, capsys: Capture) -> None:
    assert main(["rewrite", "."]) == 0
    (project / "a.py").write_bytes(b"mine\n")
    (project / "sub/crlf.py").unlink()
    capsys.readouterr()
    assert main(["undo"]) == 1
    out = capsys.readouterr().out
    assert "sub/latin \xe9.py: restored\n" in out
    assert "a.py: edited since, not changed; to see its old content: gzip -dc " in out
    assert out.endswith("1 file restored, 2 not restored (run 1)\n")
    assert held(project) == {**held(project), "a.py": b"mine\n", "sub/latin \xe9.py": FILES["sub/latin \xe9.py"]}
    assert not (project / "sub/crlf.py").exists()
    # What is left can be taken back later, once it holds again what was written.
    (project / "a.py").write_bytes(b"import os\nfully_shard(x)\n")
    assert main(["undo"]) == 1
    assert held(project)["a.py"] == FILES["a.py"]


def test_runs_are_taken_back_one_after_the_other(project: Path, capsys: Capture) -> None:
    assert main(["rewrite", "a.py"]) == 0
    (project / "a.py").write_bytes(b"import os\nfully_shard(x)\nFSDP(y)\n")
    assert main(["rewrite", "a.py"]) == 0
    capsys.readouterr()
    assert main(["undo", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["2", "1"]
    assert listed[0].endswith("1 file  fsdp-migrate rewrite a.py")
    assert main(["undo", "--run", "1"]) == 1
    assert main(["undo"]) == 0
    assert held(project)["a.py"] == b"import os\nfully_shard(x)\nFSDP(y)\n"
    assert main(["undo", "--run", "7"]) == 2
    assert "there is no run 7 to undo" in capsys.readouterr().err
    (project / "a.py").write_bytes(b"import os\nfully_shard(x)\n")
    assert main(["undo"]) == 0
    assert held(project)["a.py"] == FILES["a.py"]


def test_git_shows_nothing_of_it(
    tmp_path: Path, git: Callable[..., str], commit: Callable[[], None], capsys: Capture
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_bytes(FILES["a.py"])
    commit()
    assert main(["rewrite", "one"]) == 0
    assert "Next: git diff, then" in capsys.readouterr().out
    assert git("status", "--porcelain") == " M one/a.py\n"
    # One place for the whole repository, whichever folder of it is named.
    assert main(["undo", "two"]) == 0
    assert git("status", "--porcelain") == ""


def test_neither_a_rewrite_nor_a_search_of_the_tree_finds_the_copies(project: Path, capsys: Capture) -> None:
    assert main(["rewrite", "."]) == 0
    kept = [path.read_bytes() for path in (project / ".fsdp-migrate").rglob("*") if path.is_file()]
    assert len(kept) == 5
    assert not any(b"FSDP(" in data for data in kept)
    capsys.readouterr()
    assert main(["rewrite", "."]) == 0
    assert capsys.readouterr().out.startswith("4 files read, ")


def test_the_state_folder_is_used_where_the_tree_cannot_be_written_to(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    # A file in the place of the folder refuses it to every user.
    (project / ".fsdp-migrate").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["rewrite", "."]) == 0
    assert list((tmp_path / "state").rglob("run.json"))
    assert main(["undo"]) == 0
    assert held(project) == FILES
    # Without any place nothing is written.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    capsys.readouterr()
    assert main(["rewrite", "."]) == 2
    assert "nothing was written: the old files cannot be saved for undo" in capsys.readouterr().err
    assert held(project) == FILES


def test_several_directories_each_keep_their_own(project: Path, capsys: Capture) -> None:
    other = project.parent / "other"
    other.mkdir()
    (other / "b.py").write_bytes(FILES["a.py"])
    assert main(["rewrite", ".", str(other)]) == 0
    assert main(["undo", str(other)]) == 0
    assert (other / "b.py").read_bytes() == FILES["a.py"]
    assert held(project) != FILES
    assert main(["undo", "sub"]) == 0
    assert held(project) == FILES


def test_what_was_kept_is_not_believed_blindly(project: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["rewrite", "a.py"]) == 0
    run = project / ".fsdp-migrate/undo/1"
    text = (run / "run.json").read_text()
    (tmp_path / "outside.py").write_bytes(b"import os\nfully_shard(x)\n")
    (run / "run.json").write_text(text.replace('"a.py"', '"../outside.py"'))
    assert main(["undo"]) == 2
    assert "which is outside" in capsys.readouterr().err
    assert (tmp_path / "outside.py").read_bytes() == b"import os\nfully_shard(x)\n"
    (run / "run.json").write_text(text)
    (run / "0.gz").write_bytes(b"broken")
    assert main(["undo"]) == 2
    assert "which has the old content of a.py, cannot be read" in capsys.readouterr().err
    (run / "run.json").write_text("{")
    assert main(["undo"]) == 2
    assert "run.json is damaged" in capsys.readouterr().err
    assert held(project)["a.py"] == b"import os\nfully_shard(x)\n"


def test_only_the_last_runs_are_kept(project: Path) -> None:
    for _ in range(RUNS + 2):
        (project / "a.py").write_bytes(FILES["a.py"])
        assert main(["rewrite", "--quiet", "a.py"]) == 0
    kept = sorted(int(entry.name) for entry in (project / ".fsdp-migrate/undo").iterdir())
    assert kept == list(range(3, RUNS + 3))


def test_a_patch_and_a_missing_path_keep_nothing(project: Path, capsys: Capture) -> None:
    assert main(["rewrite", "--diff", "a.py"]) == 0
    assert not (project / ".fsdp-migrate").exists()
    assert main(["undo", "absent"]) == 2
    assert "no such file or directory: absent" in capsys.readouterr().err
    assert main(["undo", "--list"]) == 0
    shutil.rmtree(project / "sub")
    assert main(["rewrite", "."]) == 0
    assert main(["undo"]) == 0
