"""Sets the rewrite beside commits that moved a project from FSDP1 to FSDP2 by hand.

    python benchmarks/human_migrations/run.py --checkouts DIR [--only torchtune] [--keep DIR] [--write]

DIR has a git repository for each project of commits.toml, with or without a work tree, named like it: ``owner+name``,
``owner/name`` or ``name``, or that folder's ``repo``. The tree before each commit is exported to a temporary folder and
rewritten there by ``fsdp-migrate rewrite --jobs 1``, which may take 120 seconds of the processor. What came out is
printed as JSON.
``--write`` puts it into measured.json, and makes docs/against-humans.md of that, of commits.toml and of head.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.conditions import conditions  # noqa: E402
from benchmarks.human_migrations.later import outcome  # noqa: E402
from benchmarks.human_migrations.page import commits, write_page  # noqa: E402
from scripts.constructors import constructors  # noqa: E402
from scripts.real_world import sources  # noqa: E402

MEASURED = HERE / "measured.json"
#: A tree that takes longer has a row that says so.
LIMIT = 120
#: What the rewrite reads: data and binaries are left out of the export.
READ = (".py", ".ipynb", ".toml", ".cfg", ".yaml", ".yml", ".sh", ".sbatch", "requirements.txt")


def repository(checkouts: Path, name: str) -> Path | None:
    """The git directory of the project ``owner/name`` under ``checkouts``, if there is one."""
    for folder in (name.replace("/", "+"), name, name.partition("/")[2]):
        for path in (checkouts / folder / "repo", checkouts / folder / ".git", checkouts / folder):
            if (path / "HEAD").is_file():
                return path
    return None


def git(directory: Path, *words: str) -> bytes:
    """What git prints. Raises :class:`subprocess.CalledProcessError`."""
    return subprocess.run(["git", "--git-dir", directory, *words], capture_output=True, check=True).stdout


def export(directory: Path, tree: str, target: Path) -> None:
    """Write the files of ``tree`` that a rewrite reads to ``target``."""
    names = git(directory, "ls-tree", "-r", "--name-only", "-z", tree).decode(errors="surrogateescape").split("\0")
    for name in names:
        if name.endswith(READ):
            path = target / name
            with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError, NotADirectoryError):
                text = git(directory, "cat-file", "blob", f"{tree}:{name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)


def changed_lines(directory: Path, commit: str) -> tuple[int, int]:
    """How many lines of Python ``commit`` added and removed."""
    rows = git(directory, "diff", "--numstat", f"{commit}^", commit, "--", "*.py").decode().splitlines()
    numbers = [row.split("\t")[:2] for row in rows]
    return sum(int(added) for added, _ in numbers), sum(int(removed) for _, removed in numbers)


def rewrite(tree: Path, report: Path) -> float | None:
    """Rewrite ``tree`` in place; the processor's seconds, or None where it took longer than :data:`LIMIT`."""
    words = ["rewrite", "--allow-dirty", "--jobs", "1", "--report", str(report), "."]
    start = _seconds()
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", *words],
        cwd=tree,
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT)),
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None
    if not report.exists():
        raise SystemExit(f"{tree.name}: the command ended with {done.returncode}\n{done.stderr.decode()}")
    return round(_seconds() - start, 1)


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(directory: Path, entry: dict[str, Any], work: Path) -> dict[str, Any]:
    """The row of one commit."""
    commit = entry["commit"]
    human = changed_lines(directory, commit)
    tree = work / f"{entry['repository'].replace('/', '+')}-{commit[:8]}"
    tree.mkdir(parents=True)
    export(directory, f"{commit}^", tree)
    # A folder that is no git repository of its own would take the rules of one around it.
    subprocess.run(["git", "init", "-q", tree], check=True)
    before = sources(work, tree.name)
    report = work / f"{tree.name}.json"
    seconds = rewrite(tree, report)
    row: dict[str, Any] = {"files": len(before), "human": human, "seconds": seconds}
    if seconds is None:
        return row
    findings = json.loads(report.read_text())["findings"]
    after = sources(work, tree.name)
    calls = constructors(before, after, findings)
    return row | {
        "tool": _changed(before, after),
        "native": calls.native,
        "helper": calls.helper,
        "left": calls.kept,
        "imports": calls.imports,
        "levels": dict(Counter(finding["level"] for finding in findings)),
        "reasons": dict(calls.reasons),
        "later": [outcome(bug, findings, before, after) for bug in entry.get("later", ())],
    }


def _changed(before: dict[str, str], after: dict[str, str]) -> tuple[int, int]:
    """How many lines the rewrite added and removed, as git counts them."""
    added = removed = 0
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name, "old.py"), Path(name, "new.py")
        for path in (path for path in after if after[path] != before.get(path)):
            old.write_text(before.get(path, ""))
            new.write_text(after[path])
            done = subprocess.run(
                ["git", "diff", "--no-index", "--numstat", old, new], capture_output=True, check=False, text=True
            )
            numbers = done.stdout.split("\t")[:2]
            added, removed = added + int(numbers[0]), removed + int(numbers[1])
    return added, removed


def rows(checkouts: Path, only: str, work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """One row for each commit whose name contains ``only``."""
    for entry in commits():
        name = f"{entry['repository']} {entry['commit'][:12]}"
        if only not in name:
            continue
        directory = repository(checkouts, entry["repository"])
        try:
            if directory is None:
                raise FileNotFoundError
            git(directory, "cat-file", "-e", f"{entry['commit']}^{{commit}}")
        except (FileNotFoundError, subprocess.CalledProcessError):
            yield name, {"absent": True}
            continue
        yield name, measure(directory, entry, work)


def main() -> int:
    """Parse the arguments; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, metavar="DIR", help="where the repositories are")
    parser.add_argument("--only", default="", metavar="TEXT", help="the commits whose repository or hash contains this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the rewritten trees and the reports there")
    parser.add_argument("--write", action="store_true", help="update measured.json and the page")
    options = parser.parse_args()
    found = json.loads(MEASURED.read_text()) if MEASURED.exists() else {"commits": {}}
    if options.checkouts is not None:
        with contextlib.ExitStack() as stack:
            work = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, row in rows(options.checkouts, options.only, work.resolve()):
                print(name, json.dumps(row), flush=True)
                found = {**conditions("libcst"), "commits": {**found["commits"], name: row}}
    if options.write:
        MEASURED.write_text(json.dumps(found, indent=1) + "\n")
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
