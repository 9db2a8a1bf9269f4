"""What lock files pin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from fsdp_migrate.tree.formats.entry import Entry
from fsdp_migrate.tree.formats.requirement_entry import pinned
from fsdp_migrate.tree.toml import toml


def lock_table(text: str) -> Iterator[Entry]:
    """The lock files of uv, poetry and pdm, and pylock.toml."""
    content = toml().loads(text)
    for entry in (*content.get("package", ()), *content.get("packages", ())):
        if not isinstance(entry, dict):
            continue
        name, version = entry.get("name"), entry.get("version")
        if isinstance(name, str) and isinstance(version, str):
            found = pinned(name, version, rf"^name\s*=\s*[\"']{re.escape(name)}[\"']")
            if found is not None:
                yield found


def pipfile_lock(text: str) -> Iterator[Entry]:
    """Pipfile.lock."""
    content = json.loads(text)
    for section in content.values() if isinstance(content, dict) else ():
        for name, entry in section.items() if isinstance(section, dict) else ():
            version = entry.get("version") if isinstance(entry, dict) else None
            if isinstance(version, str):
                found = pinned(name, version.removeprefix("=="), rf"\"{re.escape(name)}\"\s*:")
                if found is not None:
                    yield found
