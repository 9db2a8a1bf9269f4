"""What in one version of a file shows that a migration is right, or could hide that it is not: plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_STEPS = re.compile(
    r"(?:(?:max|min|num|n|total|limit|train|training|test)_)*(?:steps|iters|iterations|epochs|updates|batches)"
)
_SEED = re.compile(r"(?:\w+_)?seed")
_TOLERANCE = re.compile(r"(?:\w+_)?(?:rtol|atol|tol|tolerance)")


@dataclass(frozen=True)
class Text:
    """A part of a file: its text, the function it is in (with its class, "" for the module), and its line from 1."""

    text: str
    scope: str
    line: int


@dataclass(frozen=True)
class Number:
    """A number that something is set to. ``what`` names it; ``kind`` is ``steps``, ``seed`` or ``tolerance``."""

    kind: str
    what: str
    value: float
    scope: str
    line: int


@dataclass
class Facts:
    """All of one file. ``scopes`` are its functions, with the line of each; ``lines`` its lines, without indents.

    ``asserts`` can fail; ``tests`` are the functions that a test runner finds; ``skips`` keep one from running;
    ``lax`` are loads that need not match; ``limits`` end a loop early; ``hidden`` are names and sources that are known
    at run time alone; ``ignores`` are comments that silence a finding; ``todos`` those of a rewrite, each with the
    line of code below it.
    """

    scopes: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    asserts: list[Text] = field(default_factory=list)
    tests: list[Text] = field(default_factory=list)
    skips: list[Text] = field(default_factory=list)
    lax: list[Text] = field(default_factory=list)
    limits: list[Text] = field(default_factory=list)
    hidden: list[Text] = field(default_factory=list)
    ignores: list[Text] = field(default_factory=list)
    todos: list[tuple[Text, str]] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)


def kind_of(name: str) -> str:
    """What a number of that name is, "" where it is none of the kinds of :class:`Number`."""
    plain = name.lstrip("-").replace("-", "_").lower()
    for kind, pattern in (("steps", _STEPS), ("seed", _SEED), ("tolerance", _TOLERANCE)):
        if pattern.fullmatch(plain):
            return kind
    return ""
