"""Findings of level info: nothing that they speak of runs differently after a rewrite, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rules.helpers import findings

ROOT = Path(__file__).parents[2] / "rules/fsdp_rules"
ALONE = "the configuration stays as it is, and what reads it has a finding of its own"
OLD = "the text is only taken out of names, which have it in old checkpoints and nowhere else"
#: For each file as many reasons as it gives the level.
REASONS = {
    "beyond/fairscale.py": ["another library's class, which is not touched"],
    "beyond/ignore_comment.py": ["a comment that silences no finding"],
    "beyond/megatron.py": ["another library's function, which is not touched"],
    "beyond/several_meanings.py": ["an import that is kept"],
    "configuration/composer_config.py": ["a file that has FSDP2's form already"],
    "configuration/config_unknown.py": ["a key that accelerate never reads"],
    "configuration/config_unreadable.py": ["a file that sets nothing of FSDP"],
    "configuration/config_version.py": ["settings that are not read", "two places of which neither changes"],
    "configuration/host_config.py": ["another file is named, which has findings of its own"],
    "configuration/own_config.py": [ALONE, ALONE, ALONE, ALONE],
    "configuration/shell_reports.py": ["another file is named, which has findings of its own"],
    "configuration/trainer_version.py": ["PyTorch/XLA's FSDP, which is not touched"],
    "configuration/verl_strategy.py": ["the key stays, and the Python that it chooses has findings of its own"],
    "construction/own_options.py": [ALONE, ALONE],
    "construction/prefetch.py": ["the order in which units are gathered, on which no number depends"],
    "construction/shared_configuration.py": ["the definition stays, and so does what reads it"],
    "construction/_plan/expert.py": ["FSDP1's units are kept, where other units were asked for"],
    "construction/_plan/run_structure.py": ["a traced run shows that what was assumed holds"],
    "construction/unused_parameters.py": [
        "no gradient exists",
        "no parameter is unused, so no zeros were reduced",
        "a traced run gives every trained parameter a gradient in each step",
    ],
    "engine/by_run.py": ["the traced run shows no sharded model on the line"],
    "engine/contested.py": ["the statement stays, and its manual finding names it"],
    "engine/kept_code.py": [
        "a copy of FSDP1 in a tree that does not use it",
        "the branch stays, and FSDP2's beside it was there",
        "the code stays until the wrap is changed by hand, which has a manual finding",
        "the model keeps FSDP1",
    ],
    "engine/leftovers.py": ["a value that stays, and which the wrap or the state that it is for reads as before"],
    "engine/other_forms.py": ["an edit that verify --bisect leaves out, whose code then runs on fsdp_compat"],
    "hosts/training_arguments.py": ["another file is named, which has findings of its own"],
    "loop/cleared_between.py": ["a call that clears nothing, as under FSDP1"],
    "loop/forward_methods.py": ["under summon_full_params parameters are whole, as under FSDP1"],
    "loop/name_surgery.py": [OLD] * 9,
    "loop/no_sync.py": ["a DDP model keeps its no_sync"],
    "model/asked_for.py": ["the default takes the place of a context in which nothing is differentiated"],
    "state/_writing/verdict.py": ["the call stays, and the manual finding of its block names it"],
    "state/deprecated_optim.py": ["a model that is not sharded gives its names, as before"],
    "state/sharded_tensor.py": ["a class that is read from old files alone"],
}


def test_every_use_of_the_level_has_its_reason() -> None:
    given: dict[str, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        lines = [line for line in path.read_text().splitlines() if "Level.INFO" in line]
        uses = sum(not re.search(r"(is( not)?|==) Level\.INFO|\(Level\.\w+, Level\.INFO\)", line) for line in lines)
        if uses:
            given[str(path.relative_to(ROOT))] = uses
    assert given == {name: len(reasons) for name, reasons in REASONS.items()}


FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: Code that runs differently after the rewrite, and had a finding of level info.
DIFFERENT = {
    "values that stay": (
        "FSDP100",
        "from torch.distributed.fsdp import ShardingStrategy\n\nKINDS = {'a': ShardingStrategy.NO_SHARD}\n\n"
        "def build(net, kind):\n    return FSDP(net), use(KINDS, kind)\n",
    ),
    "a value that is handed on": (
        "FSDP100",
        "import torch.distributed.fsdp as f\n\ndef build(net, use):\n    use(f.ShardingStrategy.FULL_SHARD)\n"
        "    return FSDP(net)\n",
    ),
    "a branch that is taken no more": (
        "FSDP205",
        "from torch.distributed.fsdp import FSDPModule\n\ndef kind(net):\n    model = FSDP(net)\n"
        "    if isinstance(model, FSDP):\n        return 1\n"
        "    elif isinstance(model, FSDPModule):\n        return 2\n",
    ),
    "a number that is printed": (
        "FSDP231",
        "def show(net):\n    model = FSDP(net)\n    print(len(list(model.modules())))\n",
    ),
    "a signature": (
        "FSDP210",
        "import inspect\n\ndef show(net):\n    model = FSDP(net)\n    return inspect.signature(model.forward)\n",
    ),
    "a rank's own state": (
        "FSDP311",
        "import torch\n\ndef save(net):\n    model = FSDP(net)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 1)\n"
        "    torch.save(optimizer.state_dict(), 'a.pt')\n",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_runs_differently_is_to_be_reviewed_at_least(name: str) -> None:
    rule, source = DIFFERENT[name]
    levels = {one.level.value for one in findings(FSDP + source) if one.rule == rule}
    assert "review" in levels and "info" not in levels
