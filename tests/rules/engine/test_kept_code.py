"""Code that stays as it ran: models of a subclass of FSDP1's class, copies of FSDP1, branches beside FSDP2's."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite, rewrite_tree

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SUBCLASS = f"{HEAD}class Own(FSDP):\n    def forward(self, batch):\n        return super().forward(**batch)\n"
USES = {
    "clipping": "model.clip_grad_norm_(1.0)",
    "no_sync": "with model.no_sync():\n    model(1).backward()",
    "the inner model": "inner = model.module",
    "a state": "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    state = model.state_dict()",
    "full parameters": "with FSDP.summon_full_params(model):\n    print(model)",
    "a test": "if isinstance(model, FSDP):\n    print(model)",
    "units": "for unit in FSDP.fsdp_modules(model):\n    print(unit)",
    "an optimizer's state": "state = FSDP.optim_state_dict(model, optimizer)",
}


def _program(use: str, wrap: str) -> str:
    lines = "\n".join(f"    {line}" for line in use.split("\n"))
    imports = f"{HEAD}from torch.distributed.fsdp import StateDictType\nfrom own import Own\n\n"
    return f"{imports}def run(net, optimizer):\n    model = {wrap}\n{lines}\n"


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(
    "beside", ["", "def other(net):\n    other = FSDP(net)\n    return other\n"], ids=["alone", "beside"]
)
def test_a_model_of_a_subclass_stays_as_it_is(use: str, beside: str) -> None:
    program = _program(use, "Own(net)")
    files = {"own.py": SUBCLASS.encode(), "train.py": program.encode(), "beside.py": (HEAD + beside).encode()}
    results = rewrite_tree(files)
    after = results["train.py"].source.decode() if isinstance(results["train.py"], Changed) else program
    assert after[after.index("def run") :] == program[program.index("def run") :]
    assert {found.level.value for found in results["train.py"].findings if found.rule != "FSDP100"} <= {"info"}
    assert [found.rule for found in results["own.py"].findings if found.level.value == "manual"] == ["FSDP119"]


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_the_same_use_of_fsdp1_s_own_class_moves(use: str) -> None:
    files = {"own.py": SUBCLASS.encode(), "train.py": _program(use, "FSDP(net)").encode()}
    assert isinstance(rewrite_tree(files)["train.py"], Changed)


def test_a_copy_of_fsdp1_gets_one_finding() -> None:
    copy = "import torch.nn as nn\nfrom torch.distributed.fsdp.api import StateDictType\n\n"
    copy += "class FullyShardedDataParallel(nn.Module):\n    def state_dict(self):\n"
    copy += "        with FullyShardedDataParallel.state_dict_type(self, StateDictType.FULL_STATE_DICT):\n"
    copy += "            return self.module.state_dict()\n"
    assert [(found.rule, found.level.value) for found in findings(copy)] == [("FSDP902", "info")]


DISPATCH = {
    "in one file": "from torch.distributed.fsdp import fully_shard\n",
    "in another file": "from v2 import apply\n",
}


@pytest.mark.parametrize("form", ["else", "early"])
@pytest.mark.parametrize("where", DISPATCH)
def test_a_branch_beside_fsdp2_s_stays(where: str, form: str) -> None:
    call = "apply(net)" if where == "in another file" else "fully_shard(net)"
    last = "    return FSDP(net)\n" if form == "early" else "    else:\n        return FSDP(net)\n"
    program = f"{HEAD}{DISPATCH[where]}\ndef wrap(net, kind):\n    if kind == 2:\n        return {call}\n{last}"
    v2 = b"from torch.distributed.fsdp import fully_shard\n\ndef apply(net):\n    fully_shard(net)\n    return net\n"
    result = rewrite_tree({"train.py": program.encode(), "v2.py": v2})["train.py"]
    assert not isinstance(result, Changed), result.source.decode()
    assert [found.level.value for found in result.findings] == ["info"]


def test_a_setting_that_is_left_is_not_removed_for_a_call_that_it_governs() -> None:
    source = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def run(args, model):
    net = FSDP(build())

    def inner(model):
        model = FSDP(Net(), **kwargs)  # fsdp-migrate: ignore[FSDP101]
        previous = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)

    net.load_state_dict(torch.load(path))
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert "set_model_state_dict" in result.source.decode()
    assert "previous = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)" in result.source.decode()


@pytest.mark.parametrize(
    ("head", "base"),
    [
        (HEAD, "FSDP"),
        ("from torch.distributed import fsdp\n", "fsdp.FullyShardedDataParallel"),
        ("import torch.distributed.fsdp as fsdp\n", "fsdp.FullyShardedDataParallel"),
    ],
)
def test_a_subclass_that_is_called_as_its_base_is_no_copy(head: str, base: str) -> None:
    own = f"{head}\n\nclass FullyShardedDataParallel({base}):\n    def inner(self):\n        return self.module\n"
    run = "from own import FullyShardedDataParallel\n\ndef run(net):\n    model = FullyShardedDataParallel(net)\n"
    results = rewrite_tree({"own.py": own.encode(), "run.py": f"{run}    model.clip_grad_norm_(1.0)\n".encode()})
    assert [one.rule for one in results["own.py"].findings if one.level.value == "manual"] == ["FSDP119"]
    assert not isinstance(results["run.py"], Changed)


@pytest.mark.parametrize(
    "body",
    [
        "    def build(self, model):\n        kind = self.kind = ShardingStrategy.SHARD_GRAD_OP\n"
        "        return FSDP(model, sharding_strategy=kind)\n",
        "    kind = {'sharding_strategy': ShardingStrategy.SHARD_GRAD_OP}\n    model = FSDP(net, **kind)\n",
    ],
    ids=["a second target", "a class"],
)
def test_values_that_are_read_as_attributes_too_stay(body: str) -> None:
    source = f"{HEAD}from torch.distributed.fsdp import ShardingStrategy\nfrom own import net\n\nclass Trainer:\n{body}"
    result = rewrite(f"{source}    def shown(self):\n        return self.kind\n")
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "reshard_after_forward=False" in text and "kind = " in text
