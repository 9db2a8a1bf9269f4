"""Compares two revisions of the tool on other people's repositories: findings and outputs, as a diff.

    python scripts/ecosystem.py main . /some/repo /another          # a commit against the working tree
    python scripts/ecosystem.py v0.1.0 HEAD --list repositories.txt  # one folder a line

Each revision runs from a checkout of its own with this Python. The repositories are copied before they are rewritten,
so that nothing in them changes. Exits 0 where the two agree, 1 where they differ, 2 where one could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "node_modules", "__pycache__")
#: Longer diffs of one repository are cut; the numbers count all of it.
_MOST_LINES = 200


class CannotRun(Exception):
    """A revision is missing, or its command failed."""


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the tool at ``revision``; ``.`` is the working tree. Raises :class:`CannotRun`."""
    if revision == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise CannotRun(f"git has no {revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        yield Path(name)


def findings(tool: Path, repository: Path) -> list[str]:
    """One line for each finding and error, sorted. Raises :class:`CannotRun`."""
    done = _run(tool, repository, "check", "--format", "json", "--min-level", "info", ".")
    content = json.loads(done.stdout)
    lines = [
        f"{one['path']}:{one['line']}:{one['column']}: {one['rule']} {one['level']}: {one['message']}\n"
        for one in content["findings"]
    ]
    return sorted([*lines, *(f"{one['path']}: error: {one['message']}\n" for one in content["errors"])])


def output(tool: Path, repository: Path) -> list[str]:
    """The lines of the patch that a rewrite would make. Raises :class:`CannotRun`."""
    done = _run(tool, repository, "rewrite", "--diff", ".")
    return done.stdout.decode("utf-8", errors="backslashreplace").splitlines(keepends=True)


def _run(tool: Path, repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(map(str, (tool, tool / "rules", tool / "shim")))
    command = [sys.executable, "-P", "-m", "fsdp_migrate", *words] if sys.version_info >= (3, 11) else [
        sys.executable, "-m", "fsdp_migrate", *words]  # fmt: skip
    done = subprocess.run(
        command, cwd=repository, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    if done.returncode not in (0, 1, 2) or b"Traceback" in done.stderr:
        raise CannotRun(
            f"{words[0]} ended with {done.returncode} in {repository.name}:\n{done.stderr.decode()[-2000:]}"
        )
    return done


def differences(name: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The lines that differ, as a unified diff without context."""
    return list(difflib.unified_diff(old, new, f"{name} before", f"{name} after", n=0))


def compare(before: Path, after: Path, repository: Path) -> int:
    """Print what differs in one repository; how many lines those are. Raises :class:`CannotRun`."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / repository.name
        shutil.copytree(repository, copy, ignore=_LEFT_OUT, symlinks=True)
        number = 0
        for what, look in (("findings", findings), ("output", output)):
            lines = differences(what, look(before, copy), look(after, copy))
            number += sum(line[0] in "+-" for line in lines[2:])
            if lines:
                print(f"## {repository.name}: {what}\n")
                sys.stdout.writelines(line if line.endswith("\n") else f"{line}\n" for line in lines[:_MOST_LINES])
                print(f"... and {len(lines) - _MOST_LINES} more lines\n" if len(lines) > _MOST_LINES else "")
    return number


def main() -> int:
    """Parse the arguments; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit of this repository, or . for the working tree")
    parser.add_argument("after", help="the same")
    parser.add_argument("repositories", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--list", type=Path, metavar="FILE", help="more folders, one a line")
    asked = parser.parse_args()
    folders = [*asked.repositories]
    if asked.list is not None:
        folders += [Path(line) for line in asked.list.read_text(encoding="utf-8").splitlines() if line.strip()]
    if missing := [folder for folder in folders if not folder.is_dir()] or not folders:
        print(f"Error: no such folder: {missing}" if folders else "Error: name a folder", file=sys.stderr)
        return 2
    try:
        with checkout(asked.before) as before, checkout(asked.after) as after:
            numbers = {folder.name: compare(before, after, folder.resolve()) for folder in folders}
    except CannotRun as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    changed = {name: number for name, number in numbers.items() if number}
    print(f"{len(numbers)} repositories, {len(changed)} differ, {sum(changed.values())} lines")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
