"""FSDP207: FSDP1's prefixes in parameter names."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
PREFIX = '"_fsdp_wrapped_module."'


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP207"]


def test_the_prefix_of_checkpoint_wrappers_is_alive() -> None:
    check_noop('names = [name.replace("_checkpoint_wrapped_module.", "") for name in names]\n')


@pytest.mark.parametrize(
    "use",
    [
        '"""Strips _fsdp_wrapped_module. from names."""',
        "print('no _fsdp_wrapped_module here', name)",
        "logger.info(f'{name} has no _fsdp_wrapped_module')",
        "raise ValueError(f'_flat_param is in {name}')",
    ],
)
def test_words_for_people_are_left_alone(use: str) -> None:
    assert levels(WRAP + use + "\n") == []


@pytest.mark.parametrize(
    "use",
    [
        f"name = name.replace({PREFIX}, '')",
        f"name = name.removeprefix({PREFIX})",
        f"name = name.split({PREFIX})[-1]",
        f"name = re.sub({PREFIX}, '', name)",
        f"name = name.replace({PREFIX}, '') if {PREFIX} in name else name",
        f"if {PREFIX} in name:\n    name = name.replace({PREFIX}, '')",
        f"if name.startswith({PREFIX}):\n    name = name[len({PREFIX}):]",
        f"prefix = {PREFIX}\nname = name.replace(prefix, '')",
        f"for prefix in [{PREFIX}, 'module.']:\n    name = name.removeprefix(prefix)",
        "wrapped = hasattr(block, '_fsdp_wrapped_module')",
        "inner = getattr(block, '_fsdp_wrapped_module', block)",
    ],
)
def test_taking_the_prefix_out_does_no_harm(use: str) -> None:
    assert set(levels(WRAP + use + "\n")) == {"info"}


@pytest.mark.parametrize(
    "use",
    [
        f"inner = [name for name in names if {PREFIX} in name]",
        f"if name.startswith({PREFIX} + 'blocks'):\n    decay.append(name)",
        f"state[{PREFIX} + name] = value",
        "state[f'_fsdp_wrapped_module.{name}'] = value",
        f"prefix = {PREFIX}\nif prefix in name:\n    decay.append(name)",
        "flat = [p for name, p in named if name.endswith('_flat_param')]",
        "inner = getattr(block, '_fsdp_wrapped_module')",
    ],
)
def test_counting_on_the_prefix(use: str) -> None:
    assert levels(WRAP + use + "\n") == ["manual"]


def test_without_a_wrapped_model_it_can_only_be_about_checkpoints() -> None:
    assert levels(f"inner = [name for name in names if {PREFIX} in name]\n") == ["info"]
