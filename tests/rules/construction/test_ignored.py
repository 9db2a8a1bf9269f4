"""FSDP108: what FSDP1 left out of sharding."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_findings, check_rewrites, rewrite

BUILD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef build(model, kept):\n"


def test_the_old_name_of_ignored_states_is_replaced() -> None:
    check_rewrites(
        BUILD + "    return FSDP(\n        model,\n        ignored_parameters=list(kept),  # head\n    )\n",
        "import fsdp_compat\n\ndef build(model, kept):\n"
        "    return fsdp_compat.shard(\n        model,\n        ignored_states=list(kept),  # head\n    )\n",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("ignored_modules=kept", "for module in (kept or ()) for part in module.modules()}"),
        ("ignored_modules=[model.head]", "for module in [model.head] for part in module.modules()}"),
        ("ignored_parameters=list(kept)", "ignored_params = set(list(kept) or ())"),
        ("ignored_states=[p for p in model.parameters() if p.ndim]", "set([p for p in model.parameters() if p.ndim])"),
    ],
)
def test_ignored_params_from_torch_2_7_on(arguments: str, expected: str) -> None:
    source = BUILD + f"    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), {arguments})\n"
    source = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n" + source
    result = rewrite(source, Settings(torch=(2, 7)))
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert expected in text and text.count("fully_shard(") == 2 and "fsdp_compat" not in text
    assert ("module not in ignored" in text) is ("ignored_modules" in arguments)
    older = rewrite(source)
    assert isinstance(older, Changed) and b"fsdp_compat.shard(" in older.source


def test_states_of_unknown_kind_are_left_to_the_helper() -> None:
    result = rewrite(BUILD + "    return FSDP(model, ignored_states=kept)\n", Settings(torch=(2, 7)))
    assert isinstance(result, Changed) and b"fsdp_compat.shard(" in result.source


def test_the_old_name_in_a_dictionary_is_left_to_a_human() -> None:
    source = BUILD + '    return FSDP(model, **{"ignored_parameters": list(kept)})\n'
    check_findings(source, {("FSDP108", "manual")})
