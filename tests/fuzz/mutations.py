"""Sources with something wrong in them: of bytes, of lines, of words."""

from __future__ import annotations

import random
import re

from tests.fuzz import fragments, programs

_BYTES = (
    b"\0",
    b"\r",
    b"\n",
    b"\t",
    b"\f",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\\",
    b"'",
    b'"""',
    b"#",
    b"(",
    b")",
    b":",
    b";",
)
_MORE = (
    b"@",
    b"*",
    b"=",
    b",",
    b"    ",
    b"\xe2\x80\xa8",
    b"async ",
    b"await ",
    b"yield ",
    b"lambda: ",
    b"not ",
    b"del ",
)
_WORDS = re.compile(rb"[A-Za-z_]\w*")


def mutated(rng: random.Random) -> bytes:
    """A program, generated or an example of a rule, with one to six changes."""
    data = programs.source(rng).data if rng.random() < 0.5 else rng.choice(fragments.fixtures()).encode()
    for _ in range(rng.randrange(1, 7)):
        data = rng.choice((_bytes, _lines, _lines, _words, _words, _words))(rng, data)
    return data


def _bytes(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 0, 1, 2, 10, 200)))
    match rng.randrange(4):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:start] + rng.choice(_BYTES + _MORE) + data[end:]
        case 2:
            return data[:end] + data[start:]
        case _:
            return data[:start]


def _lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    here, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[here]
        case 1:
            lines.insert(there, lines[here])
        case 2:
            lines[here], lines[there] = lines[there], lines[here]
        case 3:
            margin = re.match(rb"\s*", lines[here])
            lines[here] = (margin[0] if margin else b"") + b"if x: " + lines[here].lstrip()
        case _:
            lines[here] = lines[here].rstrip(b"\r\n") + b"  # changed\n"
    return b"".join(lines)


def _words(rng: random.Random, data: bytes) -> bytes:
    words = list(_WORDS.finditer(data))
    if not words:
        return data
    old, new = rng.choice(words), rng.choice(words)
    match rng.randrange(4):
        case 0:
            return data[: old.start()] + new[0] + data[old.end() :]
        case 1:
            return re.sub(rb"\b" + old[0] + rb"\b", new[0], data)
        case 2:
            return re.sub(rb"\b" + old[0] + rb"\b", b"renamed", data)
        case _:
            return data[: old.start()] + b"(" + old[0] + b")" + data[old.end() :]
