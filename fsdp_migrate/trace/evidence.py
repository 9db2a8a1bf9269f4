"""A trace as the rules read it: what it shows of the sources that are those of the run, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fsdp_migrate.trace.record import Trace, TracedFile
from fsdp_migrate.trace.specializing import Specialized, specialized
from fsdp_rules.project.observed import FileSeen, Observed, Seen, SeenWrap


@dataclass(frozen=True)
class Evidence:
    """Gives what ``trace`` showed of sources, by their paths; each is where it lies, and its bytes.

    ``specializes``: the sources are read with the run's values in their wraps, as :meth:`written` makes them.
    """

    trace: Trace
    specializes: bool = False

    def __call__(self, sources: Mapping[str, tuple[Path, bytes]]) -> Observed:
        """Facts of the files whose hash is that of the run; a file that has changed since is named."""
        files, changed = {}, []
        for shown, (real, data) in sources.items():
            path = self._path(real)
            if path is None:
                continue
            file = self.trace.files[path]
            if not _is_of(file, data):
                changed.append(shown)
                continue
            seen = _seen(path, file, self.trace)
            files[shown] = self._specialized(path, data).moved(seen) if self.specializes else seen
        return Observed(files, tuple(sorted(changed)))

    def written(self, real: Path, data: bytes) -> bytes:
        """The source ``data`` of the file at ``real`` with the run's values in its wraps."""
        path = self._path(real) if self.specializes and self.trace.is_whole else None
        if path is None or not _is_of(self.trace.files[path], data):
            return data
        return self._specialized(path, data).text.encode()

    def _path(self, real: Path) -> str | None:
        """The path in the record of the file at ``real``."""
        return max((path for path in self.trace.files if _is_at(real, path)), key=len, default=None)

    def _specialized(self, path: str, data: bytes) -> Specialized:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Specialized("")
        return specialized(text, [wrap for wrap in self.trace.wraps if wrap["at"] and wrap["at"][0] == path])


def _is_of(file: TracedFile, data: bytes) -> bool:
    return file.sha256 == hashlib.sha256(data).hexdigest()


def _is_at(real: Path, path: str) -> bool:
    parts = PurePosixPath(path).parts
    return real.parts[-len(parts) :] == parts


def _seen(path: str, file: TracedFile, trace: Trace) -> FileSeen:
    values = {}
    for value in file.values:
        ran = file.lines.get(value.position[0], {})
        values[value.position] = Seen(value.kinds, trace.is_whole and set(ran) == set(value.ranks))
    wraps: dict[tuple[int, int], SeenWrap] = {}
    for wrap in trace.wraps:
        place = wrap["at"]
        before = [trace.optimizers[number] for number in wrap["optimizers before"]]
        where = tuple(f"{one['at'][0]}:{one['at'][1]}" for one in before if one["at"])
        if place and place[0] == path and trace.is_whole:
            at = (place[1], place[2])
            unused = tuple(wrap["unused"])
            made = SeenWrap(bool(wrap["batch norm"]), wrap["meta"], bool(wrap["buffers"]), where, wrap["steps"], unused)
            wraps[at] = wraps[at].beside(made) if at in wraps else made
    own = [one for one in trace.optimizers if one["at"] and one["at"][0] == path]
    built = {(one["at"][1], one["at"][2]) for one in own}
    not_late = {(one["at"][1], one["at"][2]) for one in own if one["kind"] != "optimizer over sharded"}
    lines = {line: sum(by.values()) for line, by in file.lines.items()}
    states: dict[tuple[int, int], frozenset[str]] = {}
    for place, position, name, state, _ in trace.reads if trace.is_whole else ():
        if place == path and name in ("state_dict", "load_state_dict"):
            at = (position[0], position[1])
            states[at] = states.get(at, frozenset()) | {state}
    return FileSeen(values, lines, wraps, frozenset(built - not_late), states)
