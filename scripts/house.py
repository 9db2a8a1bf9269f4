"""Prints the shape of the code: rooms, floors, arrows and circles of each package, largest files, length of rules.

    python scripts/house.py

The numbers are those that tests/test_arrows.py and tests/test_rule_sizes.py hold. Floors are the rooms on the longest
way of imports from one to another.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.test_arrows import PACKAGES, arrows_of, circles, imports_of
from tests.test_rule_sizes import lengths


def floors(arrows: Mapping[str, set[str]]) -> int:
    """How many rooms are on the longest way, where none goes in a circle."""

    @cache
    def height(room: str) -> int:
        return 1 + max((height(below) for below in arrows.get(room, ())), default=0)

    return max(map(height, arrows))


def main() -> None:
    """Print a table."""
    print("package        rooms  floors  arrows  circles  files  largest file")
    for package, root in PACKAGES.items():
        arrows = {room: ends for room, ends in arrows_of(package).items() if room or ends}
        found = circles(arrows) | circles(imports_of(package))
        sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in root.rglob("*.py")}
        largest = max(sizes, key=lambda path: (sizes[path], str(path)))
        numbers = (
            len(arrows),
            "-" if found else floors(arrows),
            sum(map(len, arrows.values())),
            len(found),
            len(sizes),
        )
        columns = "{:>7}{:>8}{:>8}{:>9}{:>7}".format(*numbers)
        print(f"{package:<13}{columns}  {sizes[largest]} {largest.relative_to(root)}")
    rules = lengths()
    longest = max(rules, key=lambda name: rules[name])
    middle = statistics.median(rules.values())
    print(f"{len(rules)} files of rules, median {middle} lines, longest {rules[longest]} ({longest})")


if __name__ == "__main__":
    main()
