"""Copies of the repository to run in, so that nothing of the user's own tree changes."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.tree.git import repository
from fsdp_migrate.verify.runs.launch import CannotRun

if TYPE_CHECKING:
    from fsdp_migrate.pipeline.request import Request

NOTHING = "rewrite changes nothing here: pass a commit with FSDP1 code, fsdp-migrate verify --before-ref REF"


@dataclass(frozen=True)
class Source:
    """A repository, and the folder in it (relative) where the command was given."""

    root: Path
    inside: Path


def source(here: Path) -> Source:
    """The repository around ``here``. Raises :class:`CannotRun` where there is none."""
    root = repository(here.resolve())
    if root is None:
        raise CannotRun(
            f"{here} is not in a git repository; pass --before-dir and --after-dir, or --before and --after"
        )
    return Source(root, here.resolve().relative_to(root))


def export(repo: Path, reference: str, target: Path) -> None:
    """Write the files of the commit ``reference`` to the new folder ``target``, through an index of its own."""
    target.mkdir(parents=True)
    index = target.parent / f".{target.name}.index"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_INDEX_FILE"] = str(index)
    for arguments in (("read-tree", reference), ("checkout-index", "--all", f"--prefix={target}{os.sep}")):
        done = subprocess.run(
            ["git", *arguments], cwd=repo, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CannotRun(f"git could not provide {reference}: {done.stderr.strip()}")
    index.unlink(missing_ok=True)


def has_uncommitted(repo: Path) -> bool:
    """Whether the tree has changes of tracked files that HEAD does not have."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"], cwd=repo, capture_output=True, text=True, check=False
    )
    return bool(done.stdout.strip())


def copy(tree: Path, target: Path) -> None:
    """A copy of a tree, links kept as links."""
    shutil.copytree(tree, target, symlinks=True)


def carry(source: Path, target: Path) -> None:
    """Copy the files of ``source`` that ``target`` lacks: what a run has written, its bytecode apart."""
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_file() and not there.exists() and "__pycache__" not in path.parts:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, there, follow_symlinks=False)


def link(root: Path, tree: Path, names: tuple[str, ...]) -> None:
    """Show files or folders that git does not have (a data set) in a copy, by links to those of the repository."""
    for name in names:
        original, there = root / name, tree / name
        if not original.exists():
            raise CannotRun(f"--link {name}: there is no {original}")
        if there.exists():
            raise CannotRun(f"--link {name}: git tracks it, so it is already in the copy")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(original.resolve())


def command(words: tuple[str, ...], here: Path, tree: Path) -> tuple[str, ...]:
    """``words`` as they are started in ``tree``, the copy of ``here``.

    A program that only ``here`` has (``.venv/bin/python``) gets its whole path, with its links as they are: a virtual
    environment is found by them.
    """
    first = words[0]
    if os.sep not in first or (tree / first).exists() or not (here / first).exists():
        return words
    return (str(here / first), *words[1:])


@dataclass(frozen=True)
class Rewritten:
    """``changed``: files, absolute; ``left``: places that are left to do by hand, as "path:line rule message"."""

    changed: tuple[Path, ...]
    left: tuple[str, ...]


def asked(tree: Path, to: str) -> Request:
    """The rewrite of a copy in place, with the settings of its project."""
    from fsdp_migrate.pipeline.request import Request
    from fsdp_migrate.tree import settings
    from fsdp_migrate.tree.torch_release import least_torch, newest_releases
    from fsdp_rules.settings import Settings

    defaults = settings.load(tree)
    release = defaults.torch or least_torch(tree)
    wanted = Settings(
        to=to,
        helpers=defaults.helpers or "needed",
        torch=release.release,
        raises_torch=release.raises,
        select=settings.split_names(defaults.select or ()),
        ignore=settings.split_names(defaults.ignore or ()),
        **newest_releases(tree),
    )
    return Request((str(tree),), wanted, False, None, True, selection=defaults.files)


def rewrite(tree: Path, to: str) -> Rewritten:
    """Rewrite a copy in place. Raises :class:`CannotRun` where there is nothing to rewrite."""
    from fsdp_migrate.pipeline import run
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.report.progress import NoProgress
    from fsdp_rules.verdict.finding import Level
    from fsdp_rules.verdict.result import Changed

    result = run.rewrite(asked(tree, to), RulesEngine(), NoProgress())
    for path, reason in result.errors:
        raise CannotRun(f"{path} could not be rewritten: {reason}")
    changed = tuple(file.real for file in result.changed if isinstance(file.result, Changed))
    if not changed:
        raise CannotRun(NOTHING)
    left = tuple(
        f"{os.path.relpath(f.path, tree)}:{f.line} {f.rule} {f.message}"
        for f in result.findings
        if f.level is Level.MANUAL
    )
    return Rewritten(changed, left)
