"""Names of FSDP1 that a file has by a star import of another file of the tree."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.project.exports import Exports
from fsdp_rules.project.facts import FileFacts, index_source


def with_starred(files: Sequence[FileFacts]) -> tuple[list[FileFacts], Exports]:
    """``files``, those read again that star-import FSDP1's names, with what the names of all files mean."""
    names = _exports(files)
    read = {file.path: again for file in files if (again := _read_again(file, names)) is not None}
    if not read:
        return list(files), names
    found = [read.get(file.path, file) for file in files]
    return found, _exports(found)


def _exports(files: Sequence[FileFacts]) -> Exports:
    return Exports.build(
        {file.module: dict(file.aliases) for file in files},
        {file.module: tuple(sorted(file.starred)) for file in files if file.starred},
        {file.module: file.public for file in files},
    )


def _read_again(file: FileFacts, names: Exports) -> FileFacts | None:
    """The facts of ``file`` as its star imports make them; None where they give it no name of FSDP1 that it reads."""
    if not file.starred or not file.source:
        return None
    known = {*file.aliases, *file.assigned, *file.functions, *file.classes}
    given = {
        name: next(iter(targets))
        for name, targets in names.given(file.module).names.items()
        if len(targets) == 1 and name in file.reads - known and canonical(next(iter(targets))) is not None
    }
    return index_source(file.path, file.source, given) if given else None
