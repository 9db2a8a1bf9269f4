"""Names in letters that Python reads as others: it compares identifiers in their NFKC form, and libcst does not."""

from __future__ import annotations

import io
import tokenize
import unicodedata
from collections.abc import Iterator

#: Shorter names are often symbols of formulas (U+2113), which mean no name of torch.
_SYMBOL = 2


def as_python_reads(data: bytes) -> bytes:
    """``data`` with other forms of letters (U+FF26) as those that Python takes them for (``F``), for a plain search."""
    if data.isascii():
        return data
    text = data.decode("utf-8", "replace")
    return data if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text).encode()


def odd_name(text: str) -> tuple[int, str, str] | None:
    """The line, spelling and meaning of the first name whose two spellings would count as two names.

    That is one that may be torch's, all of whose names are ASCII, or one that ``text`` also spells otherwise. ``text``
    is a source that parses. Python's rule: https://docs.python.org/3/reference/lexical_analysis.html#identifiers
    """
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return None
    spellings: dict[str, str] = {}
    for line, name in _names(text):
        meant = unicodedata.normalize("NFKC", name)
        other = spellings.setdefault(meant, name)
        if name != meant and meant.isascii() and len(meant) > _SYMBOL:
            return line, name, meant
        if name != other:
            return line, name if name != meant else other, meant
    return None


def _names(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):
        return
