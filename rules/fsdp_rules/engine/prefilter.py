"""The cheapest questions: what a file's bytes say of FSDP1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.engine.odd_names import as_python_reads

#: Characters that are rare in sources, and that most markers have one of. To look for one character and to compare
#: what follows costs a tenth of looking for a whole word.
_RARE = b"_.@-SLA"


def names_fsdp1(data: bytes) -> bool:
    """Whether ``data`` (a source or a notebook, any ASCII-compatible encoding) has a spelling of FSDP1's own."""
    return _names_fsdp1(as_python_reads(data))


def has_marker(data: bytes) -> bool:
    """Whether ``data`` may need a closer look in a tree with FSDP1, though no model is seen to reach it.

    Loop markers such as ``clip_grad_norm_`` are in the list because a train loop that gets the wrapped model as a
    parameter often imports no FSDP name at all.
    """
    read = as_python_reads(data)
    patterns, words = _parts()
    # Most files of most trees have no marker, and all words would be looked for in vain.
    if not any(pattern.search(read) for pattern in patterns) and not any(word in read for word in words):
        return False
    return _names_fsdp1(read) or any(all(word in read for word in together) for together in _markers())


def _names_fsdp1(data: bytes) -> bool:
    return any(word in data for word in _spelled())


@cache
def _spelled() -> tuple[bytes, ...]:
    words = catalogue().spelled
    return tuple(word.encode() for word in words if not any(other != word and other in word for other in words))


@cache
def _markers() -> tuple[tuple[bytes, ...], ...]:
    return tuple(tuple(word.encode() for word in together) for together in catalogue().markers)


@cache
def _parts() -> tuple[Sequence[re.Pattern[bytes]], Sequence[bytes]]:
    """Patterns and words of which every file with a marker has one, and few others have."""
    alternatives: dict[bytes, set[bytes]] = {}
    words: set[bytes] = set()
    for together in [*((word,) for word in _spelled()), *_markers()]:
        # Of several words the longest is in the fewest files.
        word, rare = max(((word, _rare_in(word)) for word in together), key=lambda one: (bool(one[1]), len(one[0])))
        if rare:
            tail = re.escape(word.partition(rare)[2])
            alternatives.setdefault(rare, set()).add(b"%s(?<=%s)" % (tail, re.escape(word)))
        else:
            words.add(word)
    patterns = [
        re.compile(re.escape(rare) + b"(?:" + b"|".join(sorted(found)) + b")") for rare, found in alternatives.items()
    ]
    return patterns, sorted(words)


def _rare_in(word: bytes) -> bytes:
    """The rare character by which ``word`` is found, the first that has something behind it; nothing if none is."""
    return next((bytes([rare]) for rare in _RARE if word.partition(bytes([rare]))[2]), b"")
