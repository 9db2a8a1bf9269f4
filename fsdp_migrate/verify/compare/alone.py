"""Modules that differ though they got the same inputs: each is a cause that does not come from another."""

from __future__ import annotations

from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question


def alone(fed: Comparison) -> tuple[Difference, ...]:
    """The first difference of each module in the order of execution, where the run after was fed that of before.

    A module that contains another one that differs is left out: what it gives is made of the other's.
    """
    found: dict[str, Difference] = {}
    for question in (Question.FORWARD, Question.LOCAL_GRADIENTS):
        for difference in fed.tally.of(question):
            # Inputs, and the gradients of outputs, are those of another module.
            own = not difference.what.startswith(("input", "gradient of output"))
            if difference.step == 0 and own:
                found.setdefault(difference.name, difference)
    return tuple(d for name, d in found.items() if not any(_is_inside(other, name) for other in found))


def _is_inside(name: str, module: str) -> bool:
    return name != module and name.startswith(module if module.endswith(":") else f"{module}.")
