"""The findings that a project knows of already, in a file of its own, so that new ones alone fail the check."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fsdp_migrate.check.checked import Told
from fsdp_migrate.tree import writing
from fsdp_migrate.tree.files import real
from fsdp_migrate.tree.regular import read_regular

VERSION = 1

#: The path from the folder of the baseline, the rule, and the fingerprint.
Entry = tuple[str, str, str]


class BaselineError(Exception):
    """A baseline that cannot be read or written: says which, and what is wrong with it."""


def read(file: Path) -> set[Entry]:
    """The findings in ``file``. Raises :class:`BaselineError`."""
    try:
        content = json.loads(read_regular(file))
    except OSError as error:
        raise BaselineError(
            f"could not read the baseline {file}: {error.strerror or error} (fsdp-migrate check "
            f"--write-baseline {file} writes one)"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise BaselineError(f"the baseline {file} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise BaselineError(f"{file} is not a baseline of fsdp-migrate check, version {VERSION}")
    entries = content.get("findings")
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise BaselineError(f"the baseline {file} is damaged: each finding needs a path, a rule and a fingerprint")
    return {(entry["path"], entry["rule"], entry["fingerprint"]) for entry in entries}


def write(file: Path, told: Iterable[Told]) -> int:
    """Replace ``file`` by these findings, and say how many they are. Raises :class:`BaselineError`."""
    entries = [dict(zip(("path", "rule", "fingerprint"), entry_of(one, file), strict=True)) for one in told]
    content = {"version": VERSION, "findings": sorted(entries, key=lambda entry: tuple(entry.values()))}
    if _is_something_else(file):
        raise BaselineError(f"{file} exists and is not a baseline of fsdp-migrate check: choose another name")
    try:
        writing.answer(file, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise BaselineError(f"could not write the baseline {file}: {error.strerror or error}") from error
    return len(entries)


def _is_something_else(file: Path) -> bool:
    """Whether ``file`` has contents that are not those of a baseline, of any version."""
    try:
        content = read_regular(file)
        return bool(content) and not isinstance(json.loads(content).get("findings"), list)
    except OSError:
        # Nothing is there, or a pipe; what cannot be read cannot be written either, and that is reported.
        return False
    except (ValueError, AttributeError, RecursionError, MemoryError):
        return True


def entry_of(told: Told, file: Path) -> Entry:
    """How the baseline ``file`` names a finding, whichever folder the check was started in."""
    path = os.path.relpath(real(Path(told.finding.path)), real(file).parent)
    return Path(path).as_posix(), told.finding.rule, told.fingerprint


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("path", "rule", "fingerprint"))
