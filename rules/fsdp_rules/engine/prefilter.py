"""The cheapest questions: what a file's bytes say of FSDP1."""

from __future__ import annotations

from functools import cache

from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.engine.odd_names import as_python_reads


def names_fsdp1(data: bytes) -> bool:
    """Whether ``data`` (a source or a notebook, any ASCII-compatible encoding) has a spelling of FSDP1's own."""
    return _names_fsdp1(as_python_reads(data))


def has_marker(data: bytes) -> bool:
    """Whether ``data`` may need a closer look in a tree with FSDP1, though no model is seen to reach it.

    Loop markers such as ``clip_grad_norm_`` are in the list because a train loop that gets the wrapped model as a
    parameter often imports no FSDP name at all.
    """
    read = as_python_reads(data)
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
