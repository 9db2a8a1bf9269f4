"""The words of a shell script and where they are: enough to find flags, overrides and assignments, and no more.

Nothing is expanded. A word with a variable, a substitution or a glob in it has no value that could be known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Why the value of a word that holds a variable cannot be edited.
COMPOSED = "it is built from variables"
_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_SPACE = " \t\r"
_ENDS = ";&|()\n"


@dataclass(frozen=True)
class Word:
    """One word, with its quotes from ``start`` to ``end``. ``value`` is None where it is composed when it runs."""

    start: int
    end: int
    raw: str
    value: str | None


@dataclass(frozen=True)
class Heredoc:
    """The text between ``<<END`` and ``END``."""

    start: int
    text: str


def commands(text: str) -> tuple[list[list[Word]], list[Heredoc]]:
    """The simple commands of a script, each as its words, and the texts of its heredocs."""
    found: list[list[Word]] = [[]]
    heredocs: list[Heredoc] = []
    pending: list[str] = []
    at = depth = 0
    while at < len(text):
        char = text[at]
        if text.startswith("\\\n", at) or text.startswith("\\\r\n", at):
            at = text.index("\n", at) + 1
        elif char in _SPACE:
            at += 1
        elif char == "#":
            at = _line_end(text, at)
        elif heredoc := _HEREDOC.match(text, at):
            pending.append(heredoc["end"])
            at = heredoc.end()
        elif char == "\n" and pending:
            for end in pending:
                stop = re.compile(rf"^\t*{end}\r?$", re.MULTILINE).search(text, at + 1)
                heredocs.append(Heredoc(at + 1, text[at + 1 : stop.start() if stop else len(text)]))
                at = stop.end() if stop else len(text)
            pending = []
            found.append([])
        elif char in _ENDS:
            # Inside of the brackets of an array, a line break is a space.
            depth = max(depth + (char == "(") - (char == ")"), 0)
            if char != "\n" or not depth:
                found.append([])
            at += 1
        elif char in "<>":
            at += 1
        else:
            word = _word(text, at)
            found[-1].append(word)
            at = word.end
    return [words for words in found if words], heredocs


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _word(text: str, start: int) -> Word:
    parts: list[str] = []
    known = True
    at = start
    while at < len(text):
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            parts.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            end, inner = _quoted(text, at + 1)
            known = known and "$" not in inner and "`" not in inner
            parts.append(inner)
            at = end + 1
        elif char in "$`":
            known = False
            at = _past(text, at)
        elif char == "\\" and at + 1 < len(text) and text[at + 1] not in "\r\n":
            parts.append(text[at + 1])
            at += 2
        elif char in _SPACE or char in _ENDS or char in "<>" or char == "\\":
            break
        else:
            known = known and char not in "*?"
            parts.append(char)
            at += 1
    at = max(at, start + 1)
    return Word(start, min(at, len(text)), text[start:at], "".join(parts) if known else None)


def _quoted(text: str, at: int) -> tuple[int, str]:
    """Where a string in double quotes ends, and what is in it."""
    start = at
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text)), text[start:at].replace('\\"', '"').replace("\\\n", "")


def _past(text: str, at: int) -> int:
    """Past a variable or a substitution."""
    for opening, closing in (("${", "}"), ("$(", ")")):
        if text.startswith(opening, at):
            depth = 0
            for place in range(at + 1, len(text)):
                depth += (text[place] == opening[1]) - (text[place] == closing)
                if not depth:
                    return place + 1
            return len(text)
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    return at + 1


def gap(text: str, words: list[Word], index: int) -> str:
    """What is between a word and the one before it: spaces, or a continued line."""
    return text[words[index - 1].end : words[index].start] if index else " "


def flags(words: list[Word]) -> Iterator[tuple[int, str, Word | None, bool]]:
    """Index, name, word of the value and whether it is joined by ``=``, of every ``--flag`` of a command."""
    for index, word in enumerate(words):
        name, joined, _ = word.raw.partition("=")
        if not name.startswith("--") or len(name) < 3:
            continue
        following = words[index + 1] if index + 1 < len(words) else None
        if joined:
            yield index, name, word, True
        else:
            yield index, name, None if following is None or following.raw.startswith("--") else following, False


def flag_value(value: Word | None, joined: bool) -> str | int | bool | None:
    """The value of a flag, as a number where it is one; True for a flag without one, None where it is composed."""
    if value is None:
        return True
    if value.value is None:
        return None
    text = value.value.partition("=")[2] if joined else value.value
    return int(text) if text.isdigit() else text
