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
        "parser.add_argument('--strip', action='store_true', help='strip _fsdp_wrapped_module. from names')",
        "parser = argparse.ArgumentParser(description='takes _fsdp_wrapped_module. ' 'out of names')",
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
        "inner = getattr(block, '_fsdp_wrapped_module', block)",
    ],
)
def test_taking_the_prefix_out_does_no_harm(use: str) -> None:
    assert set(levels(WRAP + use + "\n")) == {"info"}


@pytest.mark.parametrize(
    "use",
    [
        "wrapped = hasattr(block, '_fsdp_wrapped_module')",
        "inner = getattr(block, '_fsdp_wrapped_module', None)",
        f"def clean(name, prefix={PREFIX}):\n    return name == prefix",
    ],
)
def test_what_comes_out_otherwise_is_to_be_reviewed(use: str) -> None:
    assert set(levels(WRAP + use + "\n")) == {"review"}


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


UNITS = WRAP.replace("FSDP(model)", "FSDP(model, auto_wrap_policy=policy, use_orig_params=True)")
LOOP = "for name, p in model.named_parameters():\n    "


@pytest.mark.parametrize(
    "use",
    [
        "depth = int(name.split('.')[1])",
        "depth = len(name.split('.'))",
        "parts = name.split('.')\n    depth = parts[2]",
        "parts = name.split('.')\n    depth = len(parts)",
        "parts = name.split('.')\n    rest = parts[1:]",
        "first, *rest = name.split('.')",
        "first = name.partition('.')[0]",
    ],
)
def test_parts_that_are_counted_from_the_left(use: str) -> None:
    assert levels(f"{WRAP}{LOOP}{use}\n") == ["manual"]
    assert levels(f"{UNITS}{LOOP}{use}\n") == ["manual"]


@pytest.mark.parametrize(
    "use",
    [
        "last = name.split('.')[-1]",
        "parts = name.split('.')\n    last = parts[-1]",
        "is_bias = 'bias' in name.split('.')",
        "words = name.split('_')[1]",
        "path = name.rpartition('.')[0]",
        "clean = name.replace('_fsdp_wrapped_module.', '').split('.')[1]",
    ],
)
def test_other_parts_are_the_same(use: str) -> None:
    assert "manual" not in levels(f"{UNITS}{LOOP}{use}\n")


@pytest.mark.parametrize(
    "use",
    [
        "found = 'blocks.0.up' in name",
        "found = 'blocks.0.up' not in name",
        "found = name.endswith('1.up.weight')",
        "found = name.endswith(('bias', '1.up.weight'))",
        "found = re.search(r'blocks\\.\\d+\\.up', name)",
        "found = re.fullmatch(r'.*blocks\\.(\\d+)\\.up.*', name)",
        "found = re.compile(r'blocks\\.[0-9]+\\.up').search(name)",
    ],
)
def test_texts_in_which_a_unit_begins(use: str) -> None:
    assert levels(f"{UNITS}{LOOP}{use}\n") == ["manual"]
    # One unit has one prefix, in front; and what is flat has no such names at all.
    assert levels(f"{WRAP.replace('FSDP(model)', 'FSDP(model, use_orig_params=True)')}{LOOP}{use}\n") == []
    assert levels(f"{UNITS.replace(', use_orig_params=True', '')}{LOOP}{use}\n") == []


@pytest.mark.parametrize(
    "use",
    [
        "if 'fsdp' in name:\n        continue",
        "found = 'wrapped_module' not in name",
        "found = re.search('_fsdp', name)",
        "found = re.match('_fsdp_', name)",
        "found = name.startswith('_fsdp')",
    ],
)
def test_pieces_of_the_prefix(use: str) -> None:
    assert levels(f"{UNITS}{LOOP}{use}\n") == ["manual"]
    assert levels(f"{WRAP}{LOOP}{use}\n") == ["manual"]


def test_a_start_that_only_the_prefix_has_is_gone() -> None:
    [found] = [one for one in findings(f"{UNITS}{LOOP}a = name.startswith('_fsdp')\n") if one.rule == "FSDP207"]
    assert "was true for every FSDP1 name" in found.message


@pytest.mark.parametrize("use", ["found = 'dp' in name", "found = 'fsdp' in args.mode", "found = '_ema' in name"])
def test_other_pieces_are_not_the_prefix(use: str) -> None:
    assert levels(f"{UNITS}{LOOP}{use}\n") == []


@pytest.mark.parametrize(
    "use",
    [
        "found = 'up.weight' in name",
        "found = name.endswith('ln_1.weight')",
        "found = re.search(r'bias$', name)",
        "x = 'a.0.b' in text",
    ],
)
def test_texts_inside_of_a_unit_are_the_same(use: str) -> None:
    assert levels(f"{UNITS}{LOOP}{use}\n") == []


COMPILED = "import re\n" + WRAP


@pytest.mark.parametrize(
    "use",
    [
        'OLD = re.compile(r"(_fsdp_wrapped_module|_orig_mod)\\.")\ndef clean(name):\n    return OLD.sub("", name)',
        'name = re.compile(r"(?:^|(?<=\\.))_fsdp_wrapped_module\\.").sub("", name)',
        'OLD: re.Pattern = re.compile("_fpw_module" "[.]")\nnames = [OLD.subn("", name)[0] for name in names]',
    ],
)
def test_a_pattern_that_only_takes_the_prefix_out_does_no_harm(use: str) -> None:
    assert set(levels(COMPILED + use + "\n")) == {"info"}


@pytest.mark.parametrize(
    "use",
    [
        'OLD = re.compile(r"_fsdp_wrapped_module\\.")\ninner = [name for name in names if OLD.search(name)]',
        'OLD = re.compile(r"_fsdp_wrapped_module\\.")\nname = OLD.sub("inner.", name)',
        'OLD = re.compile(r"_fsdp_wrapped_module\\.(blocks)")\nname = OLD.sub(r"layers", name)',
        'OLD = re.compile(r"_fsdp_wrapped_module\\.")\nname = OLD.sub("", name)\nlook(OLD)',
    ],
)
def test_a_pattern_that_does_more_with_the_prefix_is_left_to_a_human(use: str) -> None:
    assert set(levels(COMPILED + use + "\n")) == {"manual"}


HOLDER = """
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def shard(self):
        self.left = FSDP(self.left, use_orig_params=True)

def saved(net, state):
    for name, p in net.named_parameters():
        if "fsdp" in name:
            continue
        state.pop(name)
    return state
"""


@pytest.mark.parametrize(
    "use",
    [
        "pair = Pair()\npair.shard()\nsaved(pair, pair.state_dict())\n",
        "pair = Pair()\npair.right = FSDP(pair.right, use_orig_params=True)\nsaved(net=pair, state={})\n",
    ],
)
def test_a_plain_module_that_holds_sharded_ones(use: str) -> None:
    assert levels(HOLDER + use) != []


def test_a_plain_module_that_holds_none() -> None:
    plain = HOLDER.replace("self.left = FSDP(self.left, use_orig_params=True)", "pass")
    assert levels(f"{plain}saved(Pair(), {{}})\nmodel = FSDP(nn.Linear(2, 2))\n") == []
