"""Plain text tables and byte counts for people, as the plan and the memory report print them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def table(rows: Sequence[tuple[str, ...]], text_columns: Collection[int]) -> list[str]:
    """Lines of ``rows``, the first of which is the head; columns of numbers end at one place, text starts at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def readable(size: int) -> str:
    """Bytes in the largest binary unit that leaves at least one of it: 960 B, 1.5 KiB, 12.0 GiB."""
    if size < 1024:
        return f"{size} B"
    scaled = float(size)
    for unit in _UNITS:
        scaled /= 1024
        if scaled < 1024 or unit == _UNITS[-1]:
            break
    return f"{scaled:.1f} {unit}"
