"""Which files of a tree import others, directly or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fsdp_rules.project.exports import Exports
from fsdp_rules.project.facts import FileFacts


def importing(flagged: Iterable[FileFacts], files: Iterable[FileFacts], exports: Exports) -> frozenset[str]:
    """The paths of the ``flagged`` files and of all that import one of them, directly or not."""
    paths = {file.module: file.path for file in files}
    importers: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for entry in (*file.imported, *file.starred):
            for name in (entry, entry.rpartition(".")[0]):
                for module in _nearest(exports.modules.get(name, ()), name, file.module):
                    importers[paths[module]].add(file.path)
    found: set[str] = set()
    pending = {file.path for file in flagged}
    while pending:
        found |= pending
        pending = {importer for path in pending for importer in importers[path]} - found
    return frozenset(found)


def _nearest(candidates: Iterable[str], name: str, module: str) -> list[str]:
    """Those of ``candidates`` that ``name`` means in ``module``, each program of a tree having its own ``util``."""
    folder = module.split(".")
    starts = {one: one.removesuffix(name).rstrip(".").split(".") for one in candidates}
    above = {one: len(start) for one, start in starts.items() if start in ([""], folder[: len(start)])}
    return [one for one, length in above.items() if length == max(above.values())]
