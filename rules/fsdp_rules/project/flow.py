"""How sure an answer about a value is."""

from __future__ import annotations

import enum


class Certainty(enum.IntEnum):
    """How sure it is that an expression holds an FSDP1 model."""

    NO = 0
    MAYBE = 1
    YES = 2
