"""The smallest part of an input that still fails."""

from __future__ import annotations

from collections.abc import Callable


def smallest(data: bytes, fails: Callable[[bytes], bool], most: int = 600) -> bytes:
    """``data`` with as many lines left out as can be while ``fails`` holds, in ``most`` attempts."""
    lines = data.splitlines(keepends=True)
    size = max(1, len(lines) // 2)
    attempts = 0
    while attempts < most:
        start, shorter = 0, False
        while start < len(lines) and attempts < most:
            candidate = lines[:start] + lines[start + size :]
            attempts += 1
            if candidate and fails(b"".join(candidate)):
                lines, shorter = candidate, True
            else:
                start += size
        if not shorter:
            if size == 1:
                break
            size //= 2
    return b"".join(lines)
