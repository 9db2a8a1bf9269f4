"""Names that are imported from FSDP1 and from elsewhere: each use is read by the import that it sees."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

TORCH = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
OTHER = "from fairscale.nn import FullyShardedDataParallel as FSDP"
HEAD = "def wrap(m, old):\n"
TAIL = "\ndef wrap(m):\n    return FSDP(m)\n"


def rules(source: str) -> set[str]:
    """The rules that change something or leave it to a human, that of imports aside."""
    return {found.rule for found in findings(source) if found.level.value != "info"} - {"FSDP100"}


EITHER = {
    "two arms": HEAD + f"    if old:\n        {OTHER}\n    else:\n        {TORCH}\n    return FSDP(m)\n",
    "one arm": HEAD + f"    {TORCH}\n    if old:\n        {OTHER}\n    return FSDP(m)\n",
    "a module's arms": f"import os\nif os.environ.get('OLD'):\n    {OTHER}\nelse:\n    {TORCH}\n" + TAIL,
    "a loop": f"def wrap(m, kinds):\n    {TORCH}\n    for kind in kinds:\n        {OTHER}\n    return FSDP(m)\n",
    "the other one is tried first": f"try:\n    {OTHER}\nexcept ImportError:\n    {TORCH}\n" + TAIL,
}
TORCHS = {
    "in its arm": HEAD
    + f"    if old:\n        {OTHER}\n    else:\n        {TORCH}\n        m = FSDP(m)\n    return m\n",
    "below an arm that returns": HEAD
    + f"    if old:\n        {OTHER}\n        return m\n    {TORCH}\n    return FSDP(m)\n",
    "in another function": f"def one(m):\n    {OTHER}\n    return m\n\ndef wrap(m):\n    {TORCH}\n    return FSDP(m)\n",
    "tried first": f"try:\n    {TORCH}\nexcept ImportError:\n    {OTHER}\n" + TAIL,
    "below the other one": f"{OTHER}\n{TORCH}\n" + TAIL,
}
OTHERS = {
    "in its arm": HEAD + f"    if old:\n        {OTHER}\n        return FSDP(m)\n    {TORCH}\n    return m\n",
    "in another function": f"def one(m):\n    {TORCH}\n    return m\n\ndef wrap(m):\n    {OTHER}\n    return FSDP(m)\n",
    "below torch's": f"{TORCH}\n{OTHER}\n" + TAIL,
}


@pytest.mark.parametrize("source", EITHER.values(), ids=EITHER.keys())
def test_a_use_that_may_be_either_is_left(source: str) -> None:
    assert rules(source) == {"FSDP906"}
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"return FSDP(m)" in result.source
    assert b"fully_shard" not in result.source


@pytest.mark.parametrize("source", TORCHS.values(), ids=TORCHS.keys())
def test_a_use_of_torchs_is_rewritten(source: str) -> None:
    assert {"FSDP101"} <= rules(source)
    assert "FSDP906" not in rules(source)


@pytest.mark.parametrize("source", OTHERS.values(), ids=OTHERS.keys())
def test_a_use_of_the_other_one_is_not(source: str) -> None:
    assert not rules(source) & {"FSDP101", "FSDP906"}
    result = rewrite(source)
    assert not isinstance(result, Changed) or b"FSDP(m)" in result.source


def test_two_modules_of_torch_say_the_same() -> None:
    deep = "from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel as FSDP"
    source = f"def wrap(m, new):\n    if new:\n        {TORCH}\n    else:\n        {deep}\n    return FSDP(m)\n"
    assert "FSDP101" in rules(source)
    assert "FSDP906" not in rules(source)


def test_one_cause_is_one_finding() -> None:
    both = "FullyShardedDataParallel as FSDP, MixedPrecision"
    source = (
        f"import os\nif os.environ.get('OLD'):\n    from fairscale.nn import {both}\nelse:\n"
        f"    from torch.distributed.fsdp import {both}\n\n"
        "def wrap(m):\n    return FSDP(m, mixed_precision=MixedPrecision())\n\n"
        "def is_wrapped(m):\n    return isinstance(m, FSDP)\n"
    )
    (found,) = (one for one in findings(source) if one.level.value == "manual")
    assert (found.rule, found.line) == ("FSDP906", 8)
    assert found.message.startswith("FSDP, MixedPrecision come from fairscale or from torch here")
    assert found.message.endswith("(line 11 too)")
    assert {one.rule for one in findings(source.replace("fairscale.nn", "torch.distributed.fsdp"))} >= {"FSDP101"}
