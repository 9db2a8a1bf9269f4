"""The file that one rank writes: a JSON document a line, each whole on disk before the next step begins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FORMAT = "fsdp-migrate recording"
#: Goes up with every change that an older reader would misread. Version 1 had samples as an object, by position.
VERSION = 2


class Writer:
    """Opens ``rank-N.jsonl`` in ``directory`` at the first event."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._stream: Any = None
        self.rank: int | None = None

    def open(self, rank: int) -> None:
        """Begin the file of this rank. A second process with the same rank gets a file that says so by its name."""
        self.rank = rank
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"rank-{rank}.jsonl"
        if path.exists():
            path = self._directory / f"rank-{rank}.again-{os.getpid()}.jsonl"
        self._stream = path.open("x", encoding="utf-8")

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def write(self, kind: str, **event: Any) -> None:
        """Append one event. Nothing is written before :meth:`open`."""
        if self._stream is not None:
            self._stream.write(json.dumps({"kind": kind, **event}, separators=(",", ":")) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Nothing more is to be written."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
