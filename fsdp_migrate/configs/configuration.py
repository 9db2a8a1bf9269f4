"""The face that the pipeline sees of configuration. Parsers and rules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fsdp_migrate.tree.files import CONFIG_SUFFIXES
from fsdp_migrate.tree.requirement_files import is_requirements
from fsdp_rules.project.own_keys import OwnKey
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Result, Unchanged

_MARKERS = (b"fsdp", b"FSDP", b"actor_rollout_ref", b"accelerate launch", b"transformers", b"accelerate", b"torch")
#: How many of them count in a file that lists no requirements.
_OWN = 4
#: How a record of ``trace`` begins: it names what a run was given, and sets nothing.
_RECORD = b'{"format":"fsdp-migrate trace"'


def has_marker(data: bytes, name: str) -> bool:
    """Whether a configuration file may concern FSDP: a plain search of its bytes."""
    return not data.startswith(_RECORD) and any(
        marker in data for marker in (_MARKERS if is_requirements(name) else _MARKERS[:_OWN])
    )


def migrate(data: bytes, path: str, settings: Settings, keys: Mapping[str, tuple[OwnKey, ...]] | None = None) -> Result:
    """What becomes of one file. ``path`` is as the user named it.

    ``keys`` are those that each file of Python reads for arguments which FSDP2 does not have, by its path.
    """
    if not path.endswith(CONFIG_SUFFIXES):
        return Unchanged()
    from fsdp_migrate.configs import migrate as work

    return work.migrate(data, path, settings, keys or {})


def launches(files: Mapping[str, bytes]) -> Callable[[str], str]:
    """What says the low precision that a script among ``files`` gives to ``accelerate launch`` for a settings file."""
    from fsdp_migrate.configs.dialects import launches as work

    found = work.launches(files)
    return lambda path: work.precision_of(path, found)


def with_versions(result: Result, data: bytes, path: str, spoken: Collection[str], settings: Settings) -> Result:
    """``result`` with what the requirements in the file say about a project in which the rules ``spoken`` spoke."""
    from fsdp_migrate.configs import versions

    if not isinstance(result, Changed | Unchanged) or not settings.enabled(versions.RULE):
        return result
    found = (*result.findings, *versions.judge(data, path, spoken))
    return Changed(result.source, found) if isinstance(result, Changed) else Unchanged(found)
