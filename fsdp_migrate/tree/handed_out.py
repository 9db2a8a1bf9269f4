"""What ``next`` has handed out, and the state of the tree at that time."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.tree import writing
from fsdp_migrate.tree.own_folder import OwnFolder

_NAME = "items"


class Damaged(Exception):
    """A record cannot be read; the message names it."""


@dataclass(frozen=True)
class Record:
    """One item when it was handed out first.

    ``paths`` are those of the command, absolute, ``path`` that of the item's file from the root, and ``source`` what it
    contained; ``open`` are the ids of all items of that time, and ``alike`` how many looked the same.
    ``is_done``: it was found to be done since.
    """

    paths: tuple[str, ...]
    path: str
    source: bytes
    open: tuple[str, ...]
    alike: int
    is_done: bool = False


class HandedOut:
    """The items that were handed out in the tree at ``root``, by id."""

    def __init__(self, root: Path) -> None:
        self._own = OwnFolder(root)

    def keep(self, item: str, record: Record) -> None:
        """Keep ``record``, unless the item was handed out before and is open since. Raises :class:`OSError`."""
        known = self.get(item)
        if known is None or known.is_done or record.is_done:
            packed = base64.b64encode(gzip.compress(record.source, mtime=0)).decode()
            content = json.dumps({**vars(record), "source": packed})
            writing.replace(self._own.made(_NAME) / f"{item}.json", content.encode())

    def get(self, item: str) -> Record | None:
        """The record of an item, None where it was not handed out. Raises :class:`Damaged`."""
        for file in self._files(item):
            try:
                known = json.loads(file.read_bytes())
                source = gzip.decompress(base64.b64decode(known.pop("source")))
                paths, known_open = tuple(known.pop("paths")), tuple(known.pop("open"))
                return Record(paths=paths, source=source, open=known_open, **known)
            except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError) as error:
                raise Damaged(f"{file} is damaged: remove it, and run fsdp-migrate next again ({error})") from error
        return None

    def _files(self, item: str) -> list[Path]:
        return [file for folder in self._own.existing(_NAME) if (file := folder / f"{item}.json").is_file()]
