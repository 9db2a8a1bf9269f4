"""What was weakened in a repository since a commit: its files then and now, and the settings that silence findings."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fsdp_migrate.check.weakening.proof_facts import Facts
from fsdp_migrate.check.weakening.python_facts import python_facts
from fsdp_migrate.check.weakening.text_facts import text_facts
from fsdp_migrate.check.weakening.weakened import Weakened, todo_removed, weakened
from fsdp_migrate.check.weakening.weakening_rules import NAMES
from fsdp_migrate.tree import git
from fsdp_migrate.tree.files import LARGEST_CONFIG
from fsdp_migrate.tree.left_places import LeftPlace, LeftPlaces
from fsdp_migrate.tree.toml import toml
from fsdp_rules.verdict.finding import Finding, Level

_TEXTS = (".cfg", ".ini", ".json", ".sh", ".bash", ".slurm", ".sbatch", ".toml", ".txt", ".yaml", ".yml", "Makefile")
#: Settings of which more leaves out more.
_LISTS = ("ignore", "exclude", "extend-exclude")
_WORDS = ("select", "include", "baseline", "min-level")


def edits_since(root: Path, rev: str) -> list[Finding]:
    """What was weakened in the repository at ``root`` since the commit ``rev``, with paths from here.

    Raises :class:`fsdp_migrate.tree.git.GitError`.
    """
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-") as name:
        git.export(root, rev, Path(name))
        old = _read(Path(name), [path.relative_to(name).as_posix() for path in Path(name).rglob("*") if path.is_file()])
    listed = {*git.tracked(root).files, *git.untracked(root).files}
    new = _read(root, sorted(listed))
    gone = [path for path in old if path not in new and (root / path).is_file()]
    found = [Weakened("FSDP606", path, 1, "git now ignores the file, so no check reads it") for path in gone]
    found += weakened(_facts(old), _facts(new))
    found += _uncommented(LeftPlaces(root).all(), old, new)
    found += _disguised(old, new)
    found += _settings(old.get("pyproject.toml", b""), new.get("pyproject.toml", b""))
    found += _baselines(old, new)
    return [_finding(one, root) for one in dict.fromkeys(found)]


def weakened_between(path: str, before: bytes, after: bytes) -> list[Finding]:
    """What was weakened in one file, by two versions of it."""
    return [_finding(one, None) for one in weakened(_facts({path: before}), _facts({path: after}))]


def _read(folder: Path, names: list[str]) -> dict[str, bytes]:
    found = {}
    for name in names:
        place = folder / name
        is_read = name.endswith((".py", *_TEXTS)) and place.is_file() and not place.is_symlink()
        if is_read and (name.endswith(".py") or place.stat().st_size <= LARGEST_CONFIG):
            found[name] = place.read_bytes()
    return found


def _facts(files: Mapping[str, bytes]) -> dict[str, Facts]:
    found = {}
    for path, data in files.items():
        facts = python_facts(data) if path.endswith(".py") else text_facts(data)
        # What does not parse has no facts, and is an error of the check itself.
        found[path] = facts or Facts()
    return found


def _disguised(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[Weakened]:
    """Python sources that have another suffix now."""
    gone = {path: set(data.split(b"\n")) for path, data in old.items() if path.endswith(".py") and path not in new}
    for path, data in new.items():
        if path not in old and not path.endswith(".py"):
            lines = set(data.split(b"\n"))
            for source, had in gone.items():
                if 2 * len(lines & had) > len(had):
                    yield Weakened("FSDP606", path, 1, f"{source} is no longer a Python file, so no check reads it")


def _uncommented(places: Iterable[LeftPlace], old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[Weakened]:
    """Places that a rewrite here has left, whose comment is gone before any commit had it while their code is there."""
    for place in places:
        source = new.get(place.path, b"")
        if not place.code or source == old.get(place.path):
            continue
        facts = python_facts(source) or Facts()
        comment = f"# TODO(fsdp-migrate {place.rule}): {' '.join(place.message.split())}"
        # The comment goes on in other lines where it is long.
        is_said = any(comment.startswith(todo.text) for todo, _ in facts.todos)
        if not is_said and facts.lines.count(place.code) >= place.alike:
            yield todo_removed(place.path, facts.lines.index(place.code) + 1, place.code)


def _settings(old: bytes, new: bytes) -> Iterator[Weakened]:
    was, now = _own(old), _own(new)
    for name in _LISTS:
        added = [one for one in now.get(name, []) if one not in was.get(name, [])]
        if added:
            yield _silenced(new, name, f"{name} has {', '.join(map(str, added))} now")
    for name in _WORDS:
        if name in now and now[name] != was.get(name):
            yield _silenced(new, name, f"{name} is {now[name]} now")
    ignored = was.get("per-file-ignores", {})
    for pattern, rules in now.get("per-file-ignores", {}).items():
        added = [rule for rule in rules if rule not in ignored.get(pattern, [])]
        if added:
            yield _silenced(new, "per-file-ignores", f"{', '.join(added)} is ignored in {pattern} now")


def _silenced(source: bytes, name: str, said: str) -> Weakened:
    lines = source.decode("utf-8", errors="replace").splitlines()
    line = next((number for number, text in enumerate(lines, start=1) if name in text), 1)
    return Weakened("FSDP605", "pyproject.toml", line, f"[tool.fsdp-migrate] {said}")


def _own(source: bytes) -> dict[str, Any]:
    try:
        table = toml().loads(source.decode("utf-8")).get("tool", {}).get("fsdp-migrate", {})
    except ValueError:
        # The check itself refuses such a file.
        return {}
    return table if isinstance(table, dict) else {}


def _baselines(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[Weakened]:
    for path, data in new.items():
        if path.endswith(".json") and b'"fingerprint"' in data:
            more = _entries(data) - _entries(old.get(path, b""))
            if more:
                yield Weakened("FSDP605", path, 1, f"{len(more)} more findings in the baseline")


def _entries(source: bytes) -> set[str]:
    try:
        found = json.loads(source or b"{}").get("findings", [])
        return {json.dumps(one, sort_keys=True) for one in found}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return set()


def _finding(one: Weakened, root: Path | None) -> Finding:
    path = one.path if root is None else Path(os.path.relpath(root / one.path)).as_posix()
    place = (one.line, 0, one.line, 0)
    return Finding(one.rule, NAMES[one.rule], path, *place, Level.MANUAL, one.message, _ADVICE)


_ADVICE = "undo this edit, or let a person commit it separately with the reason"
