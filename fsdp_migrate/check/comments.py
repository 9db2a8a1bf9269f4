"""Comments that silence a rule which does not exist: a typing error there would pass unseen."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterator

_COMMENT = re.compile(rb"#\s*fsdp-migrate:\s*ignore\[")
_NAMES = re.compile(r"#\s*fsdp-migrate:\s*ignore\[([^\]]*)\]?")


def unknown_names(source: bytes, known: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each rule that an ``ignore`` comment of a Python source names and that is not in ``known``."""
    if not _COMMENT.search(source):
        return
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            found = _NAMES.search(token.string) if token.type == tokenize.COMMENT else None
            for name in found[1].split(",") if found else ():
                if name.strip() and name.strip() not in known:
                    yield token.start[0], name.strip()
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        # It does not parse, which is told already.
        return
