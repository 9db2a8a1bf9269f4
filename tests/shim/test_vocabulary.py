"""The shim without torch's FSDP1: its enums, configs and policies are equal to torch's, and take their place."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fsdp_compat
from fsdp_compat import own_vocabulary, vocabulary
from tests.shim.models import Block, build

PACKAGE = Path(fsdp_compat.__file__).parent
DEFINED = [name for name in vocabulary.__all__ if hasattr(own_vocabulary, name)]
#: Runs in a process of its own, in which torch has lost FSDP1 by the time that the shim is imported.
PROGRAM = """
import sys
import torch, torch.distributed as dist, torch.distributed.fsdp as fsdp
lost = {lost!r}
for name in lost:
    delattr(fsdp, name)
for name in list(sys.modules):
    if name.startswith(("torch.distributed.fsdp.", "torch.distributed._shard")) and "_fully_shard" not in name:
        sys.modules[name] = None
for name in ("wrap", "api", "fully_sharded_data_parallel", "sharded_grad_scaler"):
    sys.modules["torch.distributed.fsdp." + name] = None
sys.modules["torch.distributed._shard"] = None
import fsdp_compat
from fsdp_compat import FSDP, FullStateDictConfig, MixedPrecision, ModuleWrapPolicy, ShardingStrategy, StateDictType
assert ShardingStrategy.__module__ == "fsdp_compat.own_vocabulary"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = FSDP(
    torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)),
    auto_wrap_policy=ModuleWrapPolicy([torch.nn.Linear]),
    sharding_strategy=ShardingStrategy.NO_SHARD,
    mixed_precision=MixedPrecision(param_dtype=torch.float32),
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.ones(1, 4)).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    model.zero_grad()
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
    state, optimizer_state = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
model.load_state_dict(state)
optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optimizer_state))
with FSDP.summon_full_params(model):
    print(sorted(state), [tuple(param.shape) for param in model.parameters()])
dist.destroy_process_group()
"""


def test_the_shim_trains_and_saves_without_fsdp1() -> None:
    lost = [name for name in (*vocabulary.__all__, "FullyShardedDataParallel") if hasattr(fsdp(), name)]
    program = PROGRAM.format(lost=lost)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    # Gloo of torch 2.8 prints its connections first.
    assert done.stdout.splitlines()[-1] == "['0.bias', '0.weight', '1.bias', '1.weight'] [(4, 4), (4,), (2, 4), (2,)]"


def fsdp() -> Any:
    return importlib.import_module("torch.distributed.fsdp")


def test_everything_has_an_equal_of_ours() -> None:
    assert list(vocabulary.__all__) == DEFINED


@pytest.mark.parametrize("name", vocabulary.__all__)
def test_ours_are_equal_to_torchs(name: str) -> None:
    theirs, ours = getattr(vocabulary, name), getattr(own_vocabulary, name)
    if not isinstance(theirs, type):
        return
    if issubclass(theirs, enum.Enum):
        assert [(each.name, each.value) for each in theirs] == [(each.name, each.value) for each in ours]
    if dataclasses.is_dataclass(theirs):
        assert [(field.name, field.default) for field in dataclasses.fields(theirs)] == [
            (field.name, field.default) for field in dataclasses.fields(ours)
        ]
        assert [base.__name__ for base in theirs.__mro__] == [base.__name__ for base in ours.__mro__]


@pytest.mark.parametrize("recurse", [True, False])
def test_policies_decide_alike(recurse: bool) -> None:
    model = build()
    for module in (*model.modules(), nn.MultiheadAttention(4, 2)):
        for numel in (10, 10**9):
            answers = [
                [
                    where.size_based_auto_wrap_policy(module, recurse, numel),
                    where.size_based_auto_wrap_policy(module, recurse, numel, 5, {Block}, {nn.Linear}),
                    where.always_wrap_policy(module, recurse, numel),
                    where.transformer_auto_wrap_policy(module, recurse, numel, {Block}),
                    where.lambda_auto_wrap_policy(module, recurse, numel, lambda each: isinstance(each, Block)),
                    where._or_policy(module, recurse, numel, [where.always_wrap_policy]),
                    where.ModuleWrapPolicy([Block])(module, recurse, numel),
                ]
                for where in (vocabulary, own_vocabulary)
            ]
            assert answers[0] == answers[1]


def test_classes_of_policies_choose_alike() -> None:
    model = build()
    ignored = {model.blocks[1]}
    for where in (vocabulary, own_vocabulary):
        chosen = [
            where.ModuleWrapPolicy([Block])._run_policy(model, ignored, {"a": 1}),
            where.CustomPolicy(lambda each: {"a": 2} if isinstance(each, Block) else False)._run_policy(
                model, ignored, {"a": 1}
            ),
        ]
        assert chosen == [
            {model.blocks[0]: {"a": 1}, model.blocks[2]: {"a": 1}},
            {model.blocks[0]: {"a": 2}, model.blocks[2]: {"a": 2}},
        ]
        with pytest.raises(ValueError, match="should return False/True or a kwarg dict"):
            where.CustomPolicy(lambda each: "yes")._run_policy(model, ignored, {})  # type: ignore[arg-type,return-value]


def test_wrapping_by_context_is_alike() -> None:
    def wrapper(module: nn.Module, **arguments: Any) -> Any:
        return module, arguments

    linear = nn.Linear(1, 1)
    for where in (vocabulary, own_vocabulary):
        assert where.wrap(linear, b=1) is linear
        with where.enable_wrap(wrapper_cls=wrapper, a=1, b=2):  # type: ignore[arg-type]
            assert where.wrap(linear, b=3) == (linear, {"a": 1, "b": 3})
            with pytest.raises(NotImplementedError), where.enable_wrap(wrapper_cls=wrapper):  # type: ignore[arg-type]
                pass
        assert where.wrap(linear) is linear


def test_no_other_file_imports_them_from_torch() -> None:
    names = {*vocabulary.__all__, "FullyShardedDataParallel"}
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / "vocabulary.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
                assert not names & {alias.name for alias in node.names}, path
