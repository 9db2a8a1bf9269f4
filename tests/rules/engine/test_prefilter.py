"""The byte search: every spelling and every marker is found, and a part of a marker alone is none."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.engine.prefilter import has_marker, names_fsdp1

ALTERNATIVES = [*((word,) for word in catalogue().spelled), *catalogue().markers]


def whether_in_full(text: str) -> bool:
    """The definition of a marker, word by word."""
    return any(all(word in text for word in together) for together in ALTERNATIVES)


@pytest.mark.parametrize("together", ALTERNATIVES, ids=" ".join)
def test_what_is_looked_for_is_found(together: tuple[str, ...]) -> None:
    assert has_marker("\n".join(together).encode())
    for number in range(len(together)):
        part = "\n".join((*together[:number], *together[number + 1 :]))
        assert has_marker(part.encode()) == whether_in_full(part)


@pytest.mark.parametrize("text", ["", "import torch\n", "self._state = {}\n", "FS_DP = 'Shard'\n", "verl\n"])
def test_a_text_with_parts_of_words_has_no_marker(text: str) -> None:
    assert not has_marker(text.encode())


def test_letters_count_as_python_reads_them() -> None:
    assert has_marker("\uff26SDP(model)\n".encode())
    assert names_fsdp1("\uff26SDP(model)\n".encode())
