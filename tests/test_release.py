"""A release changes version and changelog, commits and tags, and refuses what would be no release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- Something.\n"


def git(root: Path, *command: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    return subprocess.run(["git", *identity, *command], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    for name in ("scripts/release.py", "shim/fsdp_compat/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "shim/fsdp_compat/_version.py").write_text('"""The version."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "start")
    return tmp_path


def release(root: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "scripts/release.py", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_release_is_one_commit_with_a_tag(repository: Path) -> None:
    code, said = release(repository, "0.2.0")
    assert (code, said.split(".")[0]) == (0, "committed and tagged v0")
    assert git(repository, "describe", "--exact-match").strip() == "v0.2.0"
    assert git(repository, "status", "--porcelain") == ""
    assert '"0.2.0"' in (repository / "shim/fsdp_compat/_version.py").read_text()
    log = (repository / "CHANGELOG.md").read_text()
    assert log.index("## Unreleased") < log.index("## 0.2.0 (") < log.index("- Something.")
    assert release(repository, "0.2.0") == (2, "Error: 0.2.0 is released already\n")


def test_one_command_pushes_commit_and_tag_together(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    origin = tmp_path_factory.mktemp("origin")
    git(origin, "init", "--quiet", "--bare")
    git(repository, "remote", "add", "origin", str(origin))
    assert release(repository, "0.2.0", "--push") == (0, "committed and tagged v0.2.0, and pushed\n")
    assert git(origin, "rev-parse", "v0.2.0^{commit}") == git(repository, "rev-parse", "HEAD")
    assert git(origin, "for-each-ref", "--format=%(refname:short)", "refs/heads").split() == [
        git(repository, "branch", "--show-current").strip()
    ]


def test_a_dry_run_changes_nothing(repository: Path) -> None:
    code, said = release(repository, "0.2.0", "--dry-run")
    assert code == 0
    assert '+__version__ = "0.2.0"' in said
    assert git(repository, "status", "--porcelain") + git(repository, "tag") == ""


@pytest.mark.parametrize(
    ("version", "log", "why"),
    [
        ("0.0.9", LOG, "0.0.9 is not newer than 0.1.0"),
        ("two", LOG, "two is not a version: use for example 0.2.0"),
        ("0.2.0", "## Unreleased\n\n## 0.1.0\n- Old.\n", 'CHANGELOG.md has nothing under "## Unreleased"'),
    ],
)
def test_what_is_no_release_is_refused(version: str, log: str, why: str, repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(log)
    git(repository, "commit", "--quiet", "--all", "--allow-empty", "--message", "log")
    assert release(repository, version) == (2, f"Error: {why}\n")


def test_a_changed_tree_is_refused(repository: Path) -> None:
    (repository / "new.txt").write_text("")
    assert release(repository, "0.2.0") == (2, "Error: the working tree has changes: commit or stash them first\n")
    assert git(repository, "tag") == ""
