"""``check`` after ``rewrite --to shim``: what runs on fsdp_compat's class is no finding, and what is left is one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: The way of FSDP1 to load an optimizer's sharded state, for a function that is given a model and an optimizer.
LOAD = """
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

def read(model_state, reader):
    return load_sharded_optimizer_state_dict(model_state, "optimizer", reader)
"""
LOADING = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from reading import read

def resume(model, optimizer, reader):
    model = FSDP(model, use_orig_params=True)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = read(model.state_dict(), reader)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"]))
"""
TRAINING = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

def main(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
    )
    for batch in batches:
        with model.no_sync():
            model(batch).sum().backward()
        model(batch).sum().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        with FSDP.summon_full_params(model):
            print(sum(p.sum() for p in model.module.parameters()))
"""
SAVING = """
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from wrapper import Sharded

def save(trainer, path):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with Sharded.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT, config):
        state = {"model": trainer.model.state_dict(), "optim": Sharded.optim_state_dict(trainer.model, trainer.optim)}
    torch.save(state, path)
"""
CLASS = """
from wrapper import Sharded

class Trainer:
    def __init__(self, model, make):
        self.model = Sharded(model, use_orig_params=True)
        self.optim = make(self.model.parameters())

    def is_sharded(self):
        return isinstance(self.model, Sharded)
"""
WRAPPER = "from torch.distributed.fsdp import FullyShardedDataParallel as Sharded\n"
SWITCHED = """
import torch.distributed.fsdp as fsdp

def keep(model, optimizer):
    fsdp.FullyShardedDataParallel.set_state_dict_type(model, fsdp.StateDictType.SHARDED_STATE_DICT)
    return {"model": model.state_dict(), "optimizer": fsdp.FullyShardedDataParallel.optim_state_dict(model, optimizer)}

def build(model):
    return fsdp.FullyShardedDataParallel(model, use_orig_params=True)
"""
SHAPES = {
    "one file": {"train": TRAINING},
    "a sharded optimizer state": {"train": LOADING.replace("from reading import read\n", LOAD)},
    "its load in another file": {"train": LOADING, "reading": LOAD},
    "a name from another file": {"wrapper": WRAPPER, "trainer": CLASS, "saving": SAVING},
    "by the module": {"train": SWITCHED},
    "all in one package": {
        "train": TRAINING,
        "resume": LOADING,
        "reading": LOAD,
        "wrapper": WRAPPER,
        "trainer": CLASS,
        "saving": SAVING,
    },
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(f"{name}.py").write_text(textwrap.dedent(text))


@pytest.mark.parametrize("files", SHAPES.values(), ids=SHAPES)
def test_what_the_shim_carries_is_no_finding(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    _write(files)
    assert main(["check", "."]) == 1
    assert main(["rewrite", "--to", "shim", "--allow-dirty", "."]) == 0
    assert not [path for path in Path().glob("*.py") if "from torch.distributed.fsdp" in path.read_text()]
    capsys.readouterr()
    assert main(["check", "."]) == 0, capsys.readouterr().out
    assert main(["check", "--to", "shim", "."]) == 0, capsys.readouterr().out


NATIVE = "from torch.distributed.fsdp import fully_shard\n\ndef build(model):\n    return fully_shard(model)\n"
HELPER = "import fsdp_compat\n\ndef build(model):\n    return fsdp_compat.shard(model)  # not fully_shard\n"
LEFT = {
    "FSDP2 in another file": ({"train": NATIVE, "reading": LOAD}, "reading.py:5"),
    "the helper instead of the class": ({"train": HELPER + LOAD}, "train.py:9"),
    "FSDP1 in another file": (
        {"train": LOADING.replace("torch.distributed.fsdp", "fsdp_compat"), "old": f"{FSDP1}model = FSDP(model)\n"},
        "old.py:2",
    ),
    "a comment of a first run": (
        {"train": "from fsdp_compat import FSDP\n# TODO(fsdp-migrate FSDP902): only FSDP1 has it\nFSDP(model).x\n"},
        "train.py:3",
    ),
}


@pytest.mark.parametrize(("files", "place"), LEFT.values(), ids=LEFT)
def test_what_is_left_is_a_finding(files: dict[str, str], place: str, capsys: pytest.CaptureFixture[str]) -> None:
    _write(files)
    assert main(["check", "."]) == 1
    assert place in capsys.readouterr().out
