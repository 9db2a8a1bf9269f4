"""What a rewrite says of the places that it leaves, kept for the items that a later check finds there."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from fsdp_migrate.check.comments import LEFT
from fsdp_migrate.check.items import Item
from fsdp_migrate.pipeline.lines import source_line
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.tree.left_places import LeftPlace, LeftPlaces
from fsdp_migrate.tree.own_folder import project_root
from fsdp_migrate.tree.regular import read_regular
from fsdp_rules.verdict.finding import Finding, Level


def remember(result: RunResult) -> None:
    """Keep what a rewrite that wrote says of the places that it left; where nothing can be kept, nothing is."""
    by_root: dict[Path, list[LeftPlace]] = {}
    for finding in result.of_level(Level.MANUAL):
        root = project_root(Path(finding.path))
        by_root.setdefault(root, []).append(_place(finding, root))
    for root, places in by_root.items():
        with contextlib.suppress(OSError):
            LeftPlaces(root).add(places)


def recalled(item: Item, root: Path) -> Item:
    """``item`` with the advice and the wrap that a rewrite of the tree at ``root`` knew, where the code has less."""
    finding = item.told.finding
    known = LeftPlaces(root).find(item.path, finding.rule, finding.message.removeprefix(LEFT))
    if known is None:
        return item
    wrapped = finding.wrapped
    if known.wrapped and not wrapped:
        file = root / known.wrapped
        line = known.line_in(_read(file))
        wrapped = f"{Path(os.path.relpath(file)).as_posix()}:{line}" if line else ""
    better = replace(finding, advice=known.advice or finding.advice, wrapped=wrapped)
    return replace(item, told=replace(item.told, finding=better))


def _place(finding: Finding, root: Path) -> LeftPlace:
    source = _read(Path(finding.path))
    code = source_line(source, finding.line)
    place = LeftPlace(
        _under(root, finding.path), finding.rule, finding.message, finding.advice, code=code,
        alike=sum(line.strip() == code for line in source.decode("utf-8", errors="replace").split("\n")),
    )  # fmt: skip
    if finding.wrap is None:
        return place
    file, line = finding.wrap
    return replace(place, wrapped=_under(root, file), line=line, text=source_line(_read(Path(file)), line))


def _under(root: Path, path: str) -> str:
    return Path(os.path.relpath(os.path.realpath(path), root)).as_posix()


def _read(file: Path) -> bytes:
    try:
        return read_regular(file)
    except OSError:
        return b""
