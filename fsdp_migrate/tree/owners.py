"""Who owns a file, as CODEOWNERS says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.tree.regular import text_of

_PLACES = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS", ".gitlab/CODEOWNERS")
NOBODY = "(no owner)"


def code_owners(root: Path) -> Callable[[str], str] | None:
    """Gives the owners of a file by its path from ``root``, the last pattern that matches; None without CODEOWNERS."""
    from pathspec import GitIgnoreSpec

    place = next((root / name for name in _PLACES if (root / name).is_file()), None)
    if place is None:
        return None
    lines = [line.split("#")[0].split() for line in text_of(place, "replace").splitlines()]
    # A section of GitLab has no pattern of its own.
    rules = [(GitIgnoreSpec.from_lines([words[0]]), words[1:]) for words in lines if words and words[0][0] not in "[^"]

    def owner(path: str) -> str:
        found = next((owners for pattern, owners in reversed(rules) if pattern.match_file(path)), [])
        return " ".join(found) or NOBODY

    return owner
