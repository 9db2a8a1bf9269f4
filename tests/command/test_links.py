"""Links, pipes, attributes and permissions: what a rewrite and the files that answers are written to meet on a disk."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree import writing

CODE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
_CELL = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": CODE.splitlines(True)}
_NOTEBOOK = {"cells": [_CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
#: Of each kind of file one that a rewrite changes.
KINDS = {
    "py": CODE,
    "ipynb": f"{json.dumps(_NOTEBOOK, indent=1)}\n",
    "yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    "  fsdp_state_dict_type: SHARDED_STATE_DICT\nnum_processes: 2\n",
    "sh": "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD "
    "--fsdp_state_dict_type SHARDED_STATE_DICT train.py\n",
}
#: Where answers are written to, each with the rest of its command.
ANSWERS = [
    ["check", "--write-baseline"],
    ["check", "--format", "json", "--output"],
    ["rewrite", "--diff", "--report"],
    ["status", "--output"],
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(place: Path, kind: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(KINDS[kind], encoding="utf-8")
    return place


def is_changed(place: Path, kind: str) -> bool:
    return place.read_text(encoding="utf-8") != KINDS[kind]


def test_a_chain_of_links_that_comes_back_into_the_tree_is_followed(here: Path, kind: str) -> None:
    file = put(here / "tree" / f"real.{kind}", kind)
    (here / "out").mkdir()
    (here / "out" / f"middle.{kind}").symlink_to(file)
    (here / "tree" / f"a.{kind}").symlink_to(f"../out/middle.{kind}")
    assert main(["rewrite", "tree"]) in (0, 1)
    assert is_changed(file, kind)
    assert (here / "tree" / f"a.{kind}").is_symlink()
    assert (here / "out" / f"middle.{kind}").is_symlink()


def test_a_chain_of_links_that_leaves_the_tree_is_not_written_through(
    here: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(here / f"outside.{kind}", kind)
    (here / "tree").mkdir()
    (here / "tree" / f"a.{kind}").symlink_to(f"b.{kind}")
    (here / "tree" / f"b.{kind}").symlink_to(f"../outside.{kind}")
    assert main(["rewrite", "tree"]) == 0
    out = capsys.readouterr().out
    assert f"skipped: this is a link to a file outside the given paths: pass {file} to rewrite that file" in out
    assert "1 file read, 1 skipped, no FSDP1 code found in the others." in out
    assert not is_changed(file, kind)


@pytest.mark.parametrize("in_git", [False, True])
def test_a_link_to_a_directory_is_not_entered_whatever_its_name(
    here: Path, kind: str, in_git: bool, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(here / "elsewhere" / f"a.{kind}", kind)
    own = put(here / "tree" / f"own.{kind}", kind)
    (here / "tree" / f"package.{kind}").symlink_to("../elsewhere")
    (here / "tree" / "inner").symlink_to("../elsewhere")
    (here / "tree" / "up").symlink_to("..")
    if in_git:
        git = request.getfixturevalue("git")
        git("add", "--all")
        git("commit", "--quiet", "--message", "all")
    assert main(["rewrite", "tree"]) in (0, 1), "".join(capsys.readouterr())
    assert (is_changed(own, kind), is_changed(file, kind)) == (True, False)


def test_files_of_two_names_are_named_and_keep_both(here: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = put(here / f"a.{kind}", kind)
    os.link(file, here / f"b.{kind}")
    assert main(["rewrite", "."]) == 2
    err = capsys.readouterr().err
    assert all(f"{name}.{kind}: error: could not write: it has 2 hard links" in err for name in "ab")
    assert (is_changed(file, kind), file.stat().st_nlink) == (False, 2)
    assert sorted(path.name for path in here.iterdir()) == [".fsdp-migrate", f"a.{kind}", f"b.{kind}"]


def test_extended_attributes_of_every_kind_of_file_are_kept(here: Path, kind: str) -> None:
    file = put(here / f"a.{kind}", kind)
    held = {"user.note": b"x" * 2000, "user.\u00e9": b"", "user.bytes": bytes(range(256))}
    try:
        for name, value in held.items():
            os.setxattr(file, name, value)
    except OSError:
        pytest.skip("this file system has no extended attributes")
    assert main(["rewrite", "."]) in (0, 1)
    assert is_changed(file, kind)
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == held


def test_a_read_only_file_is_named_and_left(here: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = put(here / f"a.{kind}", kind), put(here / f"b.{kind}", kind)
    file.chmod(0o444)
    assert main(["rewrite", "."]) == 2
    assert f"a.{kind}: error: could not write: it is read-only" in capsys.readouterr().err
    assert (is_changed(file, kind), is_changed(other, kind)) == (False, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o444


def test_a_read_only_directory_is_named_and_left(here: Path, kind: str) -> None:
    file = put(here / "tree" / f"a.{kind}", kind)
    command = [*_without_powers(), sys.executable, "-m", "fsdp_migrate", "rewrite", "tree"]
    (here / "tree").chmod(0o555)
    try:
        answer = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    finally:
        (here / "tree").chmod(0o755)
    assert answer.returncode == 2
    assert f"tree/a.{kind}: error: could not write: Permission denied" in answer.stderr
    assert not is_changed(file, kind)
    assert [path.name for path in (here / "tree").iterdir()] == [f"a.{kind}"]


def _without_powers() -> list[str]:
    """What to put in front of a command so that permissions hold for it: for root they do not."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("permissions do not hold for root, and there is no setpriv")
    powers = "-dac_override,-dac_read_search"
    return ["setpriv", "--bounding-set", powers, "--inh-caps", powers]


@pytest.mark.parametrize("option", ["--assume-unchanged", "--skip-worktree", "ignored", "untracked", "its own"])
def test_what_git_would_not_give_back_is_guarded_under_every_name(
    option: str, here: Path, kind: str, git: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(here / (".git" if option == "its own" else ".") / f"a.{kind}", kind)
    (here / ".gitignore").write_text(f"a.{kind}\n" if option == "ignored" else "")
    git("add", "--all" if option != "untracked" else ".gitignore")
    git("commit", "--quiet", "--message", "all")
    if option.startswith("--"):
        git("update-index", option, file.name)
        with file.open("a") as stream:
            stream.write("\n")
    (here / f"link.{kind}").symlink_to(file.relative_to(here))
    before = file.read_bytes()
    for name in (str(file.relative_to(here)), f"link.{kind}"):
        assert main(["rewrite", name]) == 2
        assert f"would overwrite uncommitted changes:\n  {name}" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["rewrite", "--allow-dirty", f"link.{kind}"]) in (0, 1)
    assert file.read_bytes() != before


@pytest.mark.parametrize("command", [["rewrite", "--diff", "."], ["check", "."], ["status", "."]], ids=lambda c: c[0])
def test_pipes_under_the_names_of_a_project_are_not_waited_for(command: list[str], here: Path) -> None:
    put(here / "tree" / "train.py", "py")
    names = ["pyproject.toml", "ruff.toml", ".ruff.toml", "setup.cfg", ".flake8", "tox.ini", ".pylintrc", "setup.py"]
    names += ["requirements.txt", "environment.yml", "poetry.lock", "Pipfile", ".gitignore", ".editorconfig"]
    for name in (*names, "CODEOWNERS", "conf.yaml", "run.sh", "note.ipynb"):
        os.mkfifo(here / "tree" / name)
    run = [sys.executable, "-m", "fsdp_migrate", *command]
    answer = subprocess.run(run, cwd=here / "tree", capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == (0 if command[0] == "rewrite" else 1) or command[0] == "status", answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_baseline_that_is_a_pipe_is_not_waited_for(here: Path) -> None:
    put(here / "train.py", "py")
    os.mkfifo(here / "known.json")
    run = [sys.executable, "-m", "fsdp_migrate", "check", "--baseline", "known.json", "train.py"]
    answer = subprocess.run(run, cwd=here, capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode, "could not read the baseline known.json: not a regular file" in answer.stderr) == (
        2,
        True,
    )


def asked(command: list[str], name: str) -> list[str]:
    return [*command, name, *([] if command[0] == "status" else ["train.py"])]


@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
@pytest.mark.parametrize("suffix", ["py", "ipynb", "sh"])
def test_no_answer_is_written_over_a_source(
    command: list[str], suffix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(here / "train.py", "py")
    file = put(here / f"source.{suffix}", suffix)
    (here / "middle.md").symlink_to(file.name)
    (here / "link.md").symlink_to("middle.md")
    assert main(asked(command, "link.md")) == 2
    assert (
        f"link.md, a link to {file}: a source file, which would be overwritten: choose another name"
        in capsys.readouterr().err
    )
    if "--report" not in command:
        assert main(asked(command, file.name)) == 2
        assert "a source file, which would be overwritten" in capsys.readouterr().err
    assert not is_changed(file, suffix)


@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
def test_an_answer_follows_links_and_keeps_what_belongs_to_the_file(command: list[str], here: Path) -> None:
    put(here / "train.py", "py")
    (here / "real.md").write_text("")
    (here / "real.md").chmod(0o640)
    (here / "middle.md").symlink_to("real.md")
    (here / "link.md").symlink_to("middle.md")
    (here / "new.md").symlink_to("made.md")
    for name in ("link.md", "new.md"):
        assert main(asked(command, name)) in (0, 1)
        assert (here / name).is_symlink()
    assert (here / "real.md").read_bytes() == (here / "made.md").read_bytes() != b""
    assert stat.S_IMODE((here / "real.md").stat().st_mode) == 0o640


@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
def test_what_an_answer_cannot_be_written_to_is_said(
    command: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(here / "train.py", "py")
    (here / "loop.md").symlink_to("loop.md")
    (here / "dangling.md").symlink_to("no/such.md")
    (here / "two.md").write_text("")
    os.link(here / "two.md", here / "names.md")
    (here / "locked.md").write_text("")
    (here / "locked.md").chmod(0o444)
    os.mkfifo(here / "pipe.md")
    reasons = {
        "loop.md": "Too many levels of symbolic links",
        "dangling.md": "No such file or directory",
        "two.md": "it has 2 hard links",
        "locked.md": "it is read-only",
        "pipe.md": "No such device or address",
        f"{'x' * 300}.md": "File name too long",
        "train.py/x.md": "there is no directory train.py",
    }
    for name, reason in reasons.items():
        assert main(asked(command, name)) == 2, name
        err = capsys.readouterr().err
        assert (name in err, reason in err) == (True, True), err
    assert stat.S_ISFIFO((here / "pipe.md").stat().st_mode)
    assert (here / "two.md").read_bytes() == (here / "locked.md").read_bytes() == b""


@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
def test_a_pipe_that_somebody_reads_gets_the_answer_and_remains(command: list[str], here: Path) -> None:
    put(here / "train.py", "py")
    os.mkfifo(here / "pipe.md")
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append((here / "pipe.md").read_bytes()))
    reader.start()
    # The writer comes second: opening waits for the reader to be there.
    with (here / "pipe.md").open("wb"):
        assert main(asked(command, "pipe.md")) in (0, 1)
    reader.join()
    assert stat.S_ISFIFO((here / "pipe.md").stat().st_mode)
    assert main(asked(command, "file.md")) in (0, 1)
    assert seen == [(here / "file.md").read_bytes()]


def test_nothing_is_put_in_place_of_a_pipe(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        writing.replace(here / "pipe", b"new")
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)


def test_a_baseline_is_written_over_nothing_but_a_baseline(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(here / "train.py", "py")
    for content in ('{"name": "a package"}', "[1]", "text"):
        (here / "package.json").write_text(content)
        assert main(["check", "--write-baseline", "package.json", "train.py"]) == 2
        assert "package.json exists and is not a baseline of fsdp-migrate check" in capsys.readouterr().err
        assert (here / "package.json").read_text() == content
    for _ in range(2):
        assert main(["check", "--write-baseline", "known.json", "train.py"]) == 0
