"""What earlier runs found out, in the user's cache folder: whatever is lost or damaged there is worked out again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from fsdp_migrate.tree import writing

#: So many entries are kept, those written last.
ENTRIES = 64


class Cache:
    """JSON values by key, one file for each, in ``folder``.

    Each file begins with the digest of what follows, so that a damaged one holds nothing. A folder that cannot be
    written to, or is not there, is an empty cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Any:
        """The value that was put under ``key``; None where there is none, or it is damaged."""
        try:
            digest, _, body = self._file(key).read_bytes().partition(b"\n")
            return json.loads(body) if digest.decode() == _digest(body) else None
        except (OSError, ValueError, RecursionError, MemoryError):
            return None

    def put(self, key: str, value: object) -> None:
        """Keep ``value``, which JSON can hold, under ``key``; nothing is kept where the folder cannot be written to."""
        body = json.dumps(value, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            writing.replace(self._file(key), _digest(body).encode() + b"\n" + body)
            self._remove_the_oldest()

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _remove_the_oldest(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[ENTRIES:]:
            file.unlink(missing_ok=True)


def user_cache() -> Cache:
    """The cache of whoever runs the command, where their system keeps such things."""
    from platformdirs import user_cache_path

    return Cache(user_cache_path("fsdp-migrate", appauthor=False) / "check")


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
