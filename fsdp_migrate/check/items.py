"""What is left to do in a checked tree, one item for each place, the most important first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.check.checked import CheckResult, Told
from fsdp_migrate.tree.files import real
from fsdp_rules.engine.catalogue import catalogue


@dataclass(frozen=True)
class Item:
    """One place that a rewrite cannot do.

    ``id`` stays the same while the code around it moves, and names the rule. ``path`` is from the base. ``alike`` is
    the same for all items of a file with the same rule and the same line.
    """

    id: str
    path: str
    alike: str
    told: Told


def open_items(result: CheckResult, base: Path) -> list[Item]:
    """The items of a check, the most important first.

    First what FSDP2's models do not work with, then by rule: how models are built, the loop, states; lines that a
    traced run did not reach come after all others, and checkpoints last.
    """
    items = [_item(told, base) for told in result.failing if not told.moves]
    together = catalogue().moves_together

    def importance(item: Item) -> tuple[bool, bool, bool, str, str, int]:
        finding = item.told.finding
        return (
            item.told.in_checkpoint, finding.ran is False, finding.rule not in together, finding.rule, item.path,
            finding.line,
        )  # fmt: skip

    return sorted(items, key=importance)


def to_rewrite(result: CheckResult) -> list[Told]:
    """The findings that a rewrite would do."""
    return [told for told in result.failing if told.moves]


def count_alike(items: Iterable[Item], item: Item) -> int:
    """How many of ``items`` look the same as ``item``, itself included."""
    return sum(one.alike == item.alike for one in items)


def _item(told: Told, base: Path) -> Item:
    path = Path(os.path.relpath(real(Path(told.finding.path)), real(base))).as_posix()
    alike = f"{path}\0{told.fingerprint.partition(':')[0]}"
    digest = hashlib.sha256(f"{path}\0{told.fingerprint}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return Item(f"{told.finding.rule}-{digest}", path, alike, told)
