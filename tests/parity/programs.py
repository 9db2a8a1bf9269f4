"""Writes the FSDP1 training program of a :data:`~tests.parity.specs.Spec`, in the manner of code that people write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.parity.placing import STEPS, files
from tests.parity.specs import COMMON, FACTORS, Spec, common, specs, valid

__all__ = ["STEPS", "Program", "program", "programs"]


@dataclass(frozen=True)
class Program:
    """A script that trains for a few steps and saves losses, norms and weights to the file ``sys.argv[1]``.

    ``source`` is the text of the script, ``others`` that of the files beside it, by their paths.
    """

    name: str
    spec: Spec
    source: str
    world_size: int
    others: Mapping[str, str] = field(default_factory=dict)


@cache
def programs() -> tuple[Program, ...]:
    """All programs, always the same ones: those named ``n…`` keep to what FSDP2 itself can say."""
    return tuple(
        program(f"{family}{number:03d}-{spec['model']}", spec)
        for family, factors, allowed in (("a", FACTORS, valid), ("n", COMMON, common))
        for number, spec in enumerate(specs(factors, allowed))
    )


def program(name: str, spec: Spec) -> Program:
    """The program of one combination."""
    written = files(spec)
    source = written.pop("train.py")
    return Program(name, spec, source, 4 if "HYBRID" in spec["strategy"] else 2, written)
