"""What an earlier run left to be done by hand is counted again, and what stands under its comment is kept."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
LEFT = {
    "a value": 'WRAPPERS = {"fsdp": FSDP}\n',
    "a copy": "from copy import deepcopy\n\ndef build(net):\n    model = FSDP(net)\n    return deepcopy(model)\n",
    "an attribute": "def build(net):\n    model = FSDP(net)\n    model.module = None\n    return model\n",
    "a subclass": "class Mine(FSDP):\n    pass\n",
    "a norm": (
        "import torch.distributed as dist\n\ndef step(net):\n    model = FSDP(net)\n"
        "    total = sum(p.grad.norm() ** 2 for p in model.parameters())\n    dist.all_reduce(total)\n"
    ),
}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("source", LEFT.values(), ids=LEFT.keys())
def test_a_second_run_of_any_mode_says_what_is_left(source: str, to: str) -> None:
    first = rewrite(HEAD + source)
    assert isinstance(first, Changed)
    left = [(found.rule, found.message) for found in first.findings if found.level == "manual"]
    assert left != []
    text = first.source.decode()
    again = [(found.rule, found.message) for found in findings(text, Settings(to=to)) if found.level == "manual"]
    assert sorted(set(again)) == sorted(set(left))
    second = rewrite(text)
    assert not isinstance(second, Changed)


def test_a_statement_under_such_a_comment_is_kept() -> None:
    source = HEAD + textwrap.dedent(
        """
        def save(net):
            model = FSDP(net)
            # TODO(fsdp-migrate FSDP302): think
            with FSDP.summon_full_params(model):
                print(model.module.weight)
            return model.module
        """
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "    with FSDP.summon_full_params(model):\n        print(model.module.weight)\n    return model\n" in text
    assert ("FSDP302", "think") in {(found.rule, found.message) for found in result.findings}


def test_once_the_comment_is_gone_the_statement_is_rewritten() -> None:
    source = (
        HEAD
        + "\ndef save(net):\n    model = FSDP(net)\n    # TODO(fsdp-migrate FSDP206): think\n    return model.module\n"
    )
    assert b"return model.module" in _source(source)
    assert b"return model\n" in _source(source.replace("    # TODO(fsdp-migrate FSDP206): think\n", ""))


def _source(text: str) -> bytes:
    result = rewrite(text)
    assert isinstance(result, Changed)
    return result.source


OWN = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(net):
    # TODO(fsdp-migrate FSDP999): ask whether this is still needed
    return FSDP(net)
"""


@pytest.mark.parametrize("to", ["native", "shim"])
def test_a_comment_with_an_unknown_rule_is_counted_and_written_once(to: str) -> None:
    settings = Settings(to=to)  # type: ignore[arg-type]
    assert [entry.rule for entry in findings(OWN, settings) if entry.level.value == "manual"] == ["FSDP901"]
    result = rewrite(OWN, settings)
    assert not isinstance(result, Changed) or b"FSDP901" not in result.source
