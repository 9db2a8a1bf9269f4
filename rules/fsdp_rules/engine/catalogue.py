"""What all rules say about themselves, as data, so that nobody has to import them (and libcst) to search for texts.

``catalogue.json`` is written from the rules by ``scripts/docs.py``, and a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from fsdp_rules.verdict.what_to_test import LOSSES

if TYPE_CHECKING:
    from fsdp_rules.verdict.rule import Rule

NAME = "catalogue.json"


@dataclass(frozen=True)
class Catalogue:
    """The union of what the rules say; :class:`fsdp_rules.verdict.rule.Rule` explains each part.

    ``markers`` are alternatives, each the texts that a file must have together, and ``open_world`` those of them for
    which a file is asked about though no model is seen to reach it. ``moves_together`` are ids, and so is
    ``shim``: the rules about what fsdp_compat does not carry either. ``what_to_test`` has the sentences by id where
    they are not the usual one.
    """

    spelled: tuple[str, ...]
    alone: tuple[str, ...]
    markers: tuple[tuple[str, ...], ...]
    open_world: tuple[tuple[str, ...], ...]
    moves_together: tuple[str, ...]
    shim: tuple[str, ...]
    what_to_test: Mapping[str, str]

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Catalogue:
        """What these rules say."""
        known = sorted(rules, key=lambda rule: rule.id)
        return cls(
            spelled=tuple(dict.fromkeys(one for rule in known for one in rule.spelled)),
            alone=tuple(dict.fromkeys(one for rule in known for one in rule.alone)),
            markers=_markers(known),
            open_world=_markers(rule for rule in known if rule.open_world),
            moves_together=tuple(rule.id for rule in known if rule.moves_together),
            shim=tuple(rule.id for rule in known if rule.shim),
            what_to_test={rule.id: rule.what_to_test for rule in known if rule.what_to_test != LOSSES},
        )

    def text(self) -> str:
        """The content of ``catalogue.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"


def _markers(rules: Iterable[Rule]) -> tuple[tuple[str, ...], ...]:
    found = [(one,) if isinstance(one, str) else one for rule in rules for one in rule.markers]
    return tuple(dict.fromkeys(found))


@cache
def catalogue() -> Catalogue:
    """What all rules say."""
    found = json.loads((files("fsdp_rules.engine") / NAME).read_text(encoding="utf-8"))
    return Catalogue(
        tuple(found["spelled"]),
        tuple(found["alone"]),
        tuple(tuple(together) for together in found["markers"]),
        tuple(tuple(together) for together in found["open_world"]),
        tuple(found["moves_together"]),
        tuple(found["shim"]),
        found["what_to_test"],
    )


def what_to_test(rule: str) -> str:
    """What shows that a change by the rule with this id was right."""
    return catalogue().what_to_test.get(rule, LOSSES)
