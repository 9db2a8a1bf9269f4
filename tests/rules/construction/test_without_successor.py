"""FSDP111, FSDP112 and FSDP113: arguments that FSDP2 does not have, and what is said where they are removed."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.finding import Level
from tests.rules.construction.helpers import IMPORTS, wrapped
from tests.rules.helpers import findings

TUNED = "is removed (it affects speed and memory, not numbers)"


def _levels(arguments: str, above: str = "pass") -> dict[str, tuple[Level, str]]:
    source = f"{IMPORTS}\n\ndef build(model, args):\n    {above}\n    return FSDP(model, {arguments})\n"
    return {found.rule: (found.level, found.message) for found in findings(source)}


@pytest.mark.parametrize("argument", ["limit_all_gathers", "use_orig_params", "forward_prefetch", "backward_prefetch"])
@pytest.mark.parametrize("value", ["True", "False", "None", "args.value", "choose(args)"])
def test_the_argument_is_removed_whatever_it_is(argument: str, value: str) -> None:
    assert "    fully_shard(model)\n" in wrapped(f"{argument}={value}")


@pytest.mark.parametrize("value", ["True", "False", "args.value"])
def test_what_fsdp2_always_does_is_safe(value: str) -> None:
    said = _levels(f"limit_all_gathers={value}, use_orig_params={value}")
    assert said["FSDP111"][0] is said["FSDP112"][0] is Level.SAFE


@pytest.mark.parametrize(
    ("arguments", "above"),
    [
        ("forward_prefetch=False", "pass"),
        ("backward_prefetch=BackwardPrefetch.BACKWARD_PRE", "pass"),
        ("backward_prefetch=order", "order = BackwardPrefetch.BACKWARD_PRE"),
    ],
)
def test_the_order_that_fsdp2_has_by_default_is_safe(arguments: str, above: str) -> None:
    level, message = _levels(arguments, above)["FSDP113"]
    assert level is Level.SAFE and TUNED not in message


@pytest.mark.parametrize(
    "arguments",
    [
        "forward_prefetch=True",
        "forward_prefetch=args.prefetch",
        "backward_prefetch=None",
        "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
        "backward_prefetch=args.order",
    ],
)
def test_another_order_is_named_with_its_cure(arguments: str) -> None:
    level, message = _levels(arguments)["FSDP113"]
    assert level is Level.INFO
    assert f"{arguments.partition('=')[2]} {TUNED}" in message
