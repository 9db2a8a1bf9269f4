"""What a rewrite knew of the places that it left: its comment in the code has the reason alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fsdp_migrate.tree import writing
from fsdp_migrate.tree.own_folder import OwnFolder

_NAME = "left"


@dataclass(frozen=True)
class LeftPlace:
    """One place, by its ``path`` from the root, its rule and the message of its finding.

    ``wrapped`` is the file, from the root, in which its model is wrapped, ``line`` that line, from 1, and ``text`` what
    it was; "" and 0 where that is not known. ``code`` is the first line of the place itself, which the file then had
    ``alike`` times.
    """

    path: str
    rule: str
    message: str
    advice: str
    wrapped: str = ""
    line: int = 0
    text: str = ""
    code: str = ""
    alike: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path, self.rule, " ".join(self.message.split())

    def line_in(self, source: bytes) -> int:
        """The line of the wrap in ``source`` as it is now, nearest to where it was; 0 where it is not there."""
        lines = source.decode("utf-8", errors="replace").split("\n")
        found = [number for number, line in enumerate(lines, start=1) if line.strip() == self.text]
        return min(found, key=lambda number: abs(number - self.line), default=0)


class LeftPlaces:
    """The places that rewrites of the tree at ``root`` left."""

    def __init__(self, root: Path) -> None:
        self._own = OwnFolder(root)

    def add(self, places: Iterable[LeftPlace]) -> None:
        """Remember ``places`` beside those of earlier runs. Raises :class:`OSError`."""
        new = {place.key: place for place in places}
        if new:
            content = [asdict(place) for place in {**self._known(), **new}.values()]
            writing.replace(self._own.made(_NAME) / "places.json", json.dumps(content).encode())

    def find(self, path: str, rule: str, message: str) -> LeftPlace | None:
        """What is known of a place, None where no rewrite left it."""
        return self._known().get((path, rule, " ".join(message.split())))

    def all(self) -> Iterable[LeftPlace]:
        return self._known().values()

    def _known(self) -> dict[tuple[str, str, str], LeftPlace]:
        for folder in self._own.existing(_NAME):
            try:
                places = [LeftPlace(**entry) for entry in json.loads((folder / "places.json").read_bytes())]
                return {place.key: place for place in places}
            except (OSError, ValueError, TypeError):
                # Without it a place has less to read, and no other verdict.
                continue
        return {}
