"""What a run is asked for, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fsdp_migrate.tree.selection import ALL_FILES, Selection
from fsdp_migrate.tree.torch_release import FIRST, TorchRelease
from fsdp_rules.settings import Settings

if TYPE_CHECKING:
    from fsdp_rules.project.observed import Observed


class Progress(Protocol):
    """Is told how far the run is."""

    def start(self, phase: str, total: int) -> None:
        """A phase begins that has ``total`` steps."""

    def step(self) -> None:
        """One step of the current phase is done."""


#: Keeps what files, by their real path, hold before and after, before any of them is written.
Keep = Callable[[Mapping[Path, tuple[bytes, bytes]]], None]
#: What the source of the file at a path is read as.
ReadAs = Callable[[Path, bytes], bytes]
#: What a traced run showed of sources.
Observe = Callable[[Mapping[str, tuple[Path, bytes]]], "Observed"]


@dataclass(frozen=True)
class Request:
    """What the user asked for. ``jobs`` None means as many processes as there are processors.

    ``torch`` is the release that the settings have, with its reason. ``of`` is what the code runs on: ``fsdp1``, or
    ``shim`` where it goes on from ``fsdp_compat``. ``stdin`` is a text that is read in place of the one path, which
    names it; then nothing is written. ``overlay`` has what is read in place of some files, by their real path.
    ``observe`` gives what a traced run showed of sources, which are given by path: where each lies, and its bytes.
    ``read_as`` gives what Python files are read as in place of what they hold.
    ``keep`` gets what is about to be replaced; nothing is written where it raises an error.
    """

    paths: tuple[str, ...]
    settings: Settings
    diff: bool = False
    jobs: int | None = None
    allow_dirty: bool = False
    torch: TorchRelease = FIRST
    of: str = "fsdp1"
    selection: Selection = ALL_FILES
    stdin: bytes | None = None
    overlay: Mapping[Path, bytes] = field(default_factory=dict)
    observe: Observe | None = None
    read_as: ReadAs | None = None
    keep: Keep | None = field(default=None, compare=False)
