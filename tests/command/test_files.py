"""Which files are found, under which names."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree.files import NoSuchPath, discover
from fsdp_migrate.tree.git import GitError, uncommitted


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def shown(*paths: str) -> list[str]:
    return [source.shown for source in discover(paths)]


def test_names_are_as_the_user_gave_them(tmp_path: Path) -> None:
    make(tmp_path, "src/b.py", "src/a.py", "src/n.ipynb", "src/c.txt", "script")
    assert shown(".") == ["src/a.py", "src/b.py", "src/n.ipynb"]
    assert shown("./src") == ["src/a.py", "src/b.py", "src/n.ipynb"]
    assert shown("src/../src/a.py") == ["src/../src/a.py"]
    assert shown(str(tmp_path / "src" / "a.py")) == [f"{tmp_path}/src/a.py"]
    assert shown("script") == ["script"]


def test_what_setuptools_has_built_is_no_source(tmp_path: Path) -> None:
    make(tmp_path, "pack/a.py", "src/other/b.py", "build/lib/pack/a.py", "build/lib/other/b.py", "build/lib/own.py")
    assert shown(".") == ["build/lib/own.py", "pack/a.py", "src/other/b.py"]
    assert shown("build") == [f"build/lib/{name}" for name in ("other/b.py", "own.py", "pack/a.py")]
    assert shown(".", "build/lib/pack/a.py") == [
        "build/lib/own.py",
        "build/lib/pack/a.py",
        "pack/a.py",
        "src/other/b.py",
    ]


def test_a_missing_path_is_refused_before_anything(tmp_path: Path) -> None:
    make(tmp_path, "a.py")
    with pytest.raises(NoSuchPath, match=r"no such file or directory: nowhere"):
        discover([".", "nowhere"])


def test_each_real_file_once(tmp_path: Path) -> None:
    make(tmp_path, "z/real.py")
    (tmp_path / "a_link.py").symlink_to("z/real.py")
    (tmp_path / "z" / "other.py").symlink_to("real.py")
    (tmp_path / "z" / "self").symlink_to(".")
    assert shown(".", "z", "z/real.py", "a_link.py") == ["z/real.py"]
    assert shown("a_link.py") == ["a_link.py"]
    assert discover(["a_link.py"])[0].path == tmp_path.resolve() / "z" / "real.py"


def test_a_directory_behind_a_link_is_entered_when_named(tmp_path: Path) -> None:
    make(tmp_path, "real/a.py")
    (tmp_path / "link").symlink_to("real")
    assert shown("link") == ["link/a.py"]
    assert shown(".") == ["real/a.py"]


@pytest.mark.parametrize("in_git", [False, True])
def test_ignored_and_foreign_directories(tmp_path: Path, in_git: bool, request: pytest.FixtureRequest) -> None:
    if in_git:
        request.getfixturevalue("git")
    make(tmp_path, "a.py", ".venv/lib/x.py", "venv/x.py", "node_modules/x.py", "p/__pycache__/x.py", "build/x.py")
    make(tmp_path, "p/gen_1.py", "p/gen_keep.py", "p/q/gen_2.py", "p/q/local.py", "p/top.py", "top.py", "p/build.py")
    (tmp_path / ".gitignore").write_text("build/\ngen_*.py\n/top.py\n# comment\n!gen_keep.py\n")
    (tmp_path / "p" / "q" / ".gitignore").write_text("local.py\n!gen_2.py\n")
    assert shown(".") == ["a.py", "p/build.py", "p/gen_keep.py", "p/q/gen_2.py", "p/top.py"]
    assert shown("build") == ["build/x.py"]
    assert shown("top.py") == ["top.py"]


def test_what_git_tracks_counts_wherever_it_lies(tmp_path: Path, git: Callable[..., str]) -> None:
    make(tmp_path, "venv/tracked.py", "venv/not.py", "ignored.py", "deleted.py", "dir/new.py", "dir/é x.py")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    git("add", "--force", "venv/tracked.py", "ignored.py", "deleted.py")
    (tmp_path / "deleted.py").unlink()
    assert shown(".") == ["dir/new.py", "dir/é x.py", "ignored.py", "venv/tracked.py"]
    assert shown("dir") == ["dir/new.py", "dir/é x.py"]


def test_repositories_within_a_repository(tmp_path: Path, git: Callable[..., str]) -> None:
    make(tmp_path, "a.py", "clone/b.py", "clone/ignored.py", "sub.module/c.py", "empty/.keep")
    (tmp_path / "clone" / ".gitignore").write_text("ignored.py\n")
    for name in ("clone", "sub.module"):
        git("-C", name, "init", "--quiet")
        git("-C", name, "add", "--all")
        git("-C", name, "commit", "--quiet", "--message", "all")
    git("add", "a.py")
    git(
        "update-index",
        "--add",
        "--cacheinfo",
        f"160000,{git('-C', 'sub.module', 'rev-parse', 'HEAD').strip()},sub.module",
    )
    assert shown(".") == ["a.py", "clone/b.py", "sub.module/c.py"]


def test_without_git_the_tree_is_walked(
    tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.tree import git as gitstate

    def fail(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    make(tmp_path, "a.py", "ignored.py")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    monkeypatch.setattr(gitstate.subprocess, "run", fail)
    assert shown(".") == ["a.py"]
    with pytest.raises(GitError, match="could not start git"):
        gitstate.uncommitted([tmp_path / "a.py"])


def test_a_hook_of_another_repository_does_not_mislead(
    tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "only_git_knows.py")
    (tmp_path / ".gitignore").write_text("only_git_knows.py\n")
    git("add", "--force", "only_git_knows.py")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert shown(".") == ["only_git_knows.py"]


def test_both_ends_of_a_rename_are_uncommitted(
    tmp_path: Path, git: Callable[..., str], commit: Callable[[], None]
) -> None:
    make(tmp_path, "old.py", "other.py")
    (tmp_path / "old.py").write_text("x = 1\n" * 20)
    commit()
    git("mv", "old.py", "new.py")
    root = tmp_path.resolve()
    assert uncommitted(root / name for name in ("old.py", "new.py", "other.py")) == {root / "old.py", root / "new.py"}


def test_a_link_out_of_the_tree_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    (tmp_path / "outside.py").write_text(source)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.chdir(tmp_path)
    assert main(["rewrite", "tree"]) == 0
    assert "tree/link.py: skipped: this is a link to a file outside the given paths" in capsys.readouterr().out
    assert (tmp_path / "outside.py").read_text() == source
    assert main(["rewrite", "tree", "outside.py"]) == 0
    assert (tmp_path / "outside.py").read_text() != source


@pytest.mark.parametrize("option", ["--assume-unchanged", "--skip-worktree", "ignored"])
def test_what_git_does_not_look_at_is_guarded(
    option: str, git: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    (tmp_path / ".gitignore").write_text("a.py\n" if option == "ignored" else "")
    (tmp_path / "a.py").write_text(source)
    git("add", "--all")
    git("commit", "--quiet", "--message", "all")
    if option != "ignored":
        git("update-index", option, "a.py")
    (tmp_path / "a.py").write_text(f"{source}mine = 1\n")
    assert main(["rewrite", "a.py"]) == 2
    assert "would overwrite uncommitted changes:\n  a.py\nCommit or stash first" in capsys.readouterr().err
    assert (tmp_path / "a.py").read_text() == f"{source}mine = 1\n"
    assert main(["rewrite", "--allow-dirty", "a.py"]) == 0


def test_a_closed_standard_output_is_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m fsdp_migrate rules >&-"
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert answer.stderr.startswith("Error: standard output is closed")


@pytest.mark.parametrize(
    "arguments", ["rewrite -", "check -", "rewrite --interactive train.py", "check train.py", "lsp", "status"]
)
def test_a_closed_standard_input_is_an_empty_one(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    command = f"{shlex.quote(sys.executable)} -m fsdp_migrate {arguments}"
    run = functools.partial(subprocess.run, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path)
    closed, empty = run(f"{command} <&-"), run(f"{command} </dev/null")
    assert "Traceback" not in closed.stderr
    assert (closed.returncode, closed.stdout, closed.stderr) == (empty.returncode, empty.stdout, empty.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["checkpoint", "inspect", ""],
        ["checkpoint", "convert", "", "new", "--to", "full"],
        ["checkpoint", "convert", "in", "", "--to", "full"],
        ["check", "--format", "json", "--output", "", "train.py"],
        ["check", "--baseline", "", "train.py"],
        ["check", "--write-baseline", "", "train.py"],
        ["status", "--output", ""],
        ["verify", "compare", "", "b"],
        ["verify", "record", "", "python", "train.py"],
    ],
)
def test_an_empty_name_is_not_the_current_folder(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "train.py")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "an empty name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("arguments", [["check", "a"], ["check", "a.py"], ["rewrite", "a"], ["rewrite", "."]])
def test_links_that_lead_back_to_themselves_are_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("", ".py"):
        (tmp_path / f"a{suffix}").symlink_to(f"b{suffix}")
        (tmp_path / f"b{suffix}").symlink_to(f"a{suffix}")
    assert main(arguments) == 2
    assert "Too many levels of symbolic links" in "".join(capsys.readouterr())


@pytest.mark.parametrize("option", ["--report", "--output"])
def test_nothing_is_written_in_place_of_such_a_link(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "train.py")
    link = tmp_path / "report.md"
    link.symlink_to("report.md")
    command = ["rewrite", "--report"] if option == "--report" else ["check", "--format", "json", "--output"]
    assert main([*command, "report.md", "train.py"]) == 2
    assert "could not write report.md: Too many levels of symbolic links" in capsys.readouterr().err
    assert link.is_symlink()
