"""What ``--format json`` prints, for every command: one object that names its format and version.

``fsdp_migrate/schemas`` has the JSON Schema of each format. A new key does not change a version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: The formats whose version is not 1.
_VERSIONS = {"check": 2, "rewrite": 2}


def document(command: str, content: Mapping[str, Any], *, indent: int = 2, ensure_ascii: bool = True) -> str:
    """The JSON of what ``fsdp-migrate COMMAND`` answers."""
    return json.dumps(enveloped(command, content), indent=indent, ensure_ascii=ensure_ascii) + "\n"


def enveloped(command: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` after the names of its format and version."""
    return {"format": f"fsdp-migrate {command}", "version": _VERSIONS.get(command, 1), **content}
