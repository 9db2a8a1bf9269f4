"""The face that the pipeline sees of configuration. Parsers and rules are imported when they are needed."""

from __future__ import annotations

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Result

_MARKERS = (b"fsdp", b"FSDP", b"actor_rollout_ref")


def has_marker(data: bytes) -> bool:
    """Whether a configuration file may concern FSDP: a plain search of its bytes."""
    return any(marker in data for marker in _MARKERS)


def migrate(data: bytes, path: str, settings: Settings) -> Result:
    """What becomes of one file. ``path`` is as the user named it."""
    from fsdp_migrate.configs import migrate as work

    return work.migrate(data, path, settings)
