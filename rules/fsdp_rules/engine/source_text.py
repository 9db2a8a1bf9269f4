"""The text of a source file as the parser takes it, and back to the bytes that the file has."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from dataclasses import dataclass

#: What follows the last line break where the last line is blank: Python reads it, libcst does not keep it.
_BLANK_END = re.compile(r"(?<=\n)[ \t\f]+\Z")


@dataclass(frozen=True)
class SourceText:
    """``text`` has line feeds for a file that has carriage returns alone; it lacks ``end``, blanks after its end."""

    text: str
    encoding: str
    bom: bytes
    end: str
    has_returns: bool

    def encode(self, text: str) -> bytes:
        """The bytes of the file with ``text`` in place of the text that it had."""
        whole = text + self.end if text.endswith("\n") else text
        return self.bom + (whole.replace("\n", "\r") if self.has_returns else whole).encode(self.encoding)


def decode(data: bytes) -> SourceText:
    """Raises SyntaxError, UnicodeDecodeError or LookupError for bytes that are no source in the encoding they name."""
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    # The line that names an encoding may end in a carriage return alone.
    lines = data if b"\n" in data else data.replace(b"\r", b"\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    text = data[len(bom) :].decode(encoding)
    has_returns = "\r" in text and "\n" not in text
    if has_returns:
        text = text.replace("\r", "\n")
    end = _BLANK_END.search(text)
    return SourceText(text[: end.start()] if end else text, encoding, bom, end[0] if end else "", has_returns)
