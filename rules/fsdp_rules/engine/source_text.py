"""The text of a source file as the parser takes it, and back to the bytes that the file has."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from dataclasses import dataclass

import libcst as cst

_FORM_FEED = re.compile(r"^[ \t]*\f[ \t\f]*(?=[^\s#])", re.MULTILINE)


@dataclass(frozen=True)
class SourceText:
    """``text`` has line feeds for a file with carriage returns alone; it lacks ``end``, which libcst would change."""

    text: str
    encoding: str
    bom: bytes
    end: str
    has_returns: bool

    def encode(self, text: str) -> bytes:
        """The bytes of the file with ``text`` in place of the text that it had."""
        has_break = not text or text.endswith("\n") or self.end[:1] in ("", "\r")
        whole = text + ("" if has_break else "\n") + self.end
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
    end = _end(text)
    return SourceText(text[:end], encoding, bom, text[end:], has_returns)


def _end(text: str) -> int:
    """Where what libcst does not keep begins: blanks in the last line, or blank lines above an indented comment."""
    blank = _blank_end(text)
    found, place, is_indented = None, len(text), False
    while place:
        start = text.rfind("\n", 0, place - 1) + 1
        line = text[start:place]
        said = line.strip(" \t\f\r\n")
        if said and not said.startswith("#"):
            # In a string these would be no comments; it ends in its quotes.
            is_string = found is not None and any(quotes in text[found:] for quotes in ("'''", '"""'))
            return found if found is not None and not is_string else blank
        is_indented |= bool(said) and line[0] in " \t\f"
        if not said and is_indented:
            found = start
        place = start
    return blank


def _blank_end(text: str) -> int:
    """Where the blanks of a blank last line begin, or the carriage returns that end a file of several line breaks."""
    start = len(text.rstrip(" \t\f\r"))
    if text[:start].endswith("\n"):
        return start
    first = text.find("\r", start)
    return len(text) if first < 0 else first


def odd_break(text: str) -> str | None:
    """Why libcst may not take ``text``, as Python does: a form feed in front of a statement resets its indentation."""
    found = _FORM_FEED.search(text)
    if found is None:
        return None
    line = text.count("\n", 0, found.start()) + 1
    return f"line {line}: a form feed precedes a statement: put it on a separate line and run again"


def parses_elsewhere(data: bytes) -> bool:
    """Whether libcst, which knows the syntax of newer releases of Python, reads ``data``."""
    try:
        cst.parse_module(data)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError):
        return False
    return True
