"""Lists, dictionaries and configurations that are changed after they are made: the last write counts, as in FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """
import functools
import sys

import torch
from torch.distributed.fsdp import CPUOffload, FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

from common import CPU, Block, Net, data, finish, note, start
"""
TAIL = """

def main():
    rank = start()
    model = build(Net())
    note(sum(isinstance(module, FSDP) for module in model.modules()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
WRAP = "FSDP(net, device_id=CPU, use_orig_params=True, "
FULL = "ShardingStrategy.FULL_SHARD"
#: Functions ``build(net)``, each with what another file has.
WAYS = {
    "inserted": f"def build(net):\n    left = []\n    left.insert(0, net.head)\n    return {WRAP}ignored_modules=left)",
    "by another name": f"""
def build(net):
    left = kept = []
    kept += [net.head]
    return {WRAP}ignored_modules=left)
""",
    "in an inner function": f"""
def build(net):
    left = []

    def visit(module):
        if module is net.embed:
            left.extend(module.parameters())

    net.apply(visit)
    return {WRAP}ignored_states=left)
""",
    "a default": f"""
def build(net, left=[]):
    for name, child in net.named_children():
        if name == "embed":
            left.append(child)
    return {WRAP}ignored_modules=left)
""",
    "a field": f"""
class Builder:
    def __init__(self):
        self.left = []

    def note(self, module):
        self.left.append(module)

    def wrap(self, net):
        self.note(net.head)
        return {WRAP}ignored_modules=self.left)


def build(net):
    return Builder().wrap(net)
""",
    "of the module": f"""
LEFT = set()


def skip(*modules):
    LEFT.update(modules)


def build(net):
    skip(net.head, net.embed)
    return {WRAP}ignored_modules=LEFT)
""",
    "inside a dictionary": f"""
def build(net):
    options = {{"ignored_modules": [], "sharding_strategy": {FULL}}}
    options["ignored_modules"].append(net.blocks[0])
    return {WRAP}**options)
""",
    "a key by default": f"""
def build(net):
    options = {{"sharding_strategy": {FULL}}}
    options.setdefault("auto_wrap_policy", ModuleWrapPolicy({{Block}}))
    return {WRAP}**options)
""",
    "keys in a loop": f"""
def build(net):
    options = dict(sharding_strategy={FULL})
    for key, value in (("auto_wrap_policy", ModuleWrapPolicy({{Block}})), ("ignored_modules", [net.head])):
        options[key] = value
    return {WRAP}**options)
""",
    "a key taken out": f"""
def build(net):
    options = {{"auto_wrap_policy": ModuleWrapPolicy({{Block}}), "ignored_modules": [net.head]}}
    options.pop("auto_wrap_policy")
    return {WRAP}**options)
""",
    "more classes": f"""
def build(net):
    layers = {{torch.nn.LayerNorm}}
    layers |= {{Block}}
    return {WRAP}auto_wrap_policy=ModuleWrapPolicy(layers))
""",
    "more classes after the policy": f"""
def build(net):
    layers = {{torch.nn.LayerNorm}}
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    layers.add(Block)
    return {WRAP}auto_wrap_policy=policy)
""",
    "a policy's own classes": f"""
def build(net):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{torch.nn.LayerNorm}})
    policy.keywords["transformer_layer_cls"].add(Block)
    return {WRAP}auto_wrap_policy=policy)
""",
    "a dtype by name": f"""
def build(net):
    dtypes = MixedPrecision(param_dtype=torch.bfloat16)
    for name in ("reduce_dtype", "buffer_dtype"):
        setattr(dtypes, name, torch.float32)
    return {WRAP}mixed_precision=dtypes)
""",
    "a dtype of a function": f"""
def lowered(given):
    given.param_dtype = torch.bfloat16
    return given


def build(net):
    dtypes = lowered(MixedPrecision(reduce_dtype=torch.float32))
    return {WRAP}mixed_precision=dtypes)
""",
    "a dtype in a branch": f"""
def build(net, half=True):
    dtypes = MixedPrecision(reduce_dtype=torch.float32)
    if half:
        dtypes.param_dtype = torch.bfloat16
    return {WRAP}mixed_precision=dtypes)
""",
    "a table": f"""
KINDS = {{"zero": {FULL}}}
KINDS.update(zero=ShardingStrategy.NO_SHARD)


def build(net):
    return {WRAP}sharding_strategy=KINDS["zero"])
""",
    "two files": f"""
from picking import pick


def build(net):
    left = []
    pick(net, left)
    return {WRAP}ignored_modules=left)
""",
    "two files, one list": f"""
import picking


def build(net):
    picking.pick(net, picking.LEFT)
    return {WRAP}ignored_modules=picking.LEFT)
""",
}
PICKING = "LEFT = []\n\n\ndef pick(net, into):\n    into.extend([net.head, net.embed])\n"


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_later_counts(way: str, pool: Pool, tmp_path: Path) -> None:
    before = tree(train=HEAD + WAYS[way] + TAIL, picking=PICKING)
    after = rewrite_tree(before)
    assert not after.manual()
    expected = train_tree(pool, before, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, after.files, tmp_path / "after") == expected, after.files["train.py"]


OFFLOADS = {
    "a field": "given = CPUOffload()\n    given.offload_params = on",
    "another name": "given = CPUOffload()\n    same = given\n    setattr(same, 'offload_params', on)",
    "a branch": "given = CPUOffload(offload_params=False)\n    if on:\n        given.offload_params = True",
    "its dictionary": "given = CPUOffload()\n    vars(given).update(offload_params=on)",
}


@pytest.mark.parametrize("way", OFFLOADS)
def test_offloading_that_is_switched_on_later_is_not_lost(way: str) -> None:
    source = f"{HEAD}\ndef build(net, on):\n    {OFFLOADS[way]}\n    return {WRAP}cpu_offload=given)\n"
    after = rewrite_tree(tree(train=source)).files["train.py"]
    assert "cpu_offload=given" in after or "CPUOffloadPolicy() if on else" in after, after


SAVES = {
    "fields": "config.offload_to_cpu = True\n    config.rank0_only = True",
    "a loop": "for name in ('offload_to_cpu', 'rank0_only'):\n        setattr(config, name, True)",
    "a function": "on_rank_zero(config)",
    "its dictionary": "config.__dict__.update(offload_to_cpu=True, rank0_only=True)",
    "a list": "for one in [config]:\n        on_rank_zero(one)",
}
SAVING = """

def on_rank_zero(config):
    config.offload_to_cpu, config.rank0_only = True, True


def state_of(net):
    config = FullStateDictConfig()
    {way}
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, config):
        return net.state_dict()


def main():
    start()
    model = FSDP(Net(), device_id=CPU, use_orig_params=True)
    note(sum(torch.is_tensor(value) for value in state_of(model).values()))
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("way", SAVES)
def test_a_configuration_of_states_is_what_is_written_to_it(way: str, pool: Pool, tmp_path: Path) -> None:
    before = tree(train=HEAD + SAVING.format(way=SAVES[way]))
    after = rewrite_tree(before)
    assert not after.manual()
    # FSDP1 itself crashes on the CPU, where the state is already.
    assert train_tree(pool, after.files, tmp_path / "after") == [[12.0], [0.0]], after.files["train.py"]
