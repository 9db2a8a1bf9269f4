"""Strings, comments and layouts that edits have to get around, under every kind of indentation and line end."""

# ruff: noqa: E501

from __future__ import annotations

import re

import pytest

from tests.fuzz.source_properties import compiles, hold

HEAD = """import functools
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp import ShardingStrategy, StateDictType
"""
#: ``@`` at the start of a line is one step of indentation.
BODIES = (
    "@model = FSDP(Net('''first\n  second\n\tthird'''), device_id=0)  # keep",
    "@if x: net = FSDP(Net())  # keep",
    "@if x: net = FSDP(Net('''a\n b''')); y = '''c\n\td'''  # keep",
    "@model = FSDP(Net(f'''{1 +\n 2}  b'''), auto_wrap_policy=policy); other = '''x\n y'''",
    "@optimizer = torch.optim.SGD(model.parameters(), lr=float('''1\n'''))  # keep\n@model = FSDP(model, use_orig_params=True)  # me",
    "@with model.no_sync():  # a\n@@s = '''x\n  # no comment\n'''  # b\n@@model(s).backward()  # c\n@@# d",
    "@with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT,  # one\n@@@FullStateDictConfig(  # two\n@@@offload_to_cpu=True)):  # three\n@@state = model.state_dict()  # four\n@@text = r'''\\\n  five # six\n'''",
    "@model = FSDP(  # 1\n@@@Net(  # 2\n@@@'''s\n t'''  # 3\n@@@),  # 4\n@@@sharding_strategy=ShardingStrategy.FULL_SHARD,  # 5\n@@@mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)  # 6\n@)  # 7",
    "@previous = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n@state = model.state_dict()",
    "@print(f'''norm {model.clip_grad_norm_(1.0)\n}  x''')",
    "@norm = model.clip_grad_norm_(float('''1\n '''))",
    "@x = model.clip_grad_norm_(1.0) if y else '''a\n  b'''",
    "@assert isinstance(model, FSDP), '''not\n\twrapped'''",
    "@for unit in FSDP.fsdp_modules(model): text = '''a\n  b'''",
    "@with FSDP.summon_full_params(model, writeback=False): print('''a\n  b''', {n: p.clone() for n, p in model.named_parameters()})",
    "@torch.save(model.state_dict(), '''a\n b''')",
    "@def inner():\n@@'''Doc.\n\n      more\n\t\ttabs\n@@'''\n@@return FSDP(Net())",
    "@model = FSDP(model, **{'device_id': 0, 'process_group': None, 'ignored_modules': ['''a\n b''']})",
    "@kwargs = dict(device_id=0,  # zero\n@@@sync_module_states=True)  # one\n@model = FSDP(model, **kwargs)  # two",
    "@model = (\n@@# above\n@@FSDP(model)  # behind\n@@# below\n@)",
    "@model = FSDP(model) \\\n@@@if x else model  # last",
    "@model = FSDP(model); model.no_sync; '''a\n'''; y = 1  # all",
    "@async def f():\n@@async with lock, model.no_sync():  # q\n@@@await model('''a\n  ''')",
    "@match x:\n@@case 1: model = FSDP(model)  # one\n@@case _: pass  # two",
    "@try: model = FSDP(model)  # one\n@except E: model = None  # two\n@finally: pass  # three",
    "@while x: model = FSDP(model); break  # one",
    "@lambda: FSDP(model)  # one",
    "@class T: model = FSDP(Net())  # one",
    "@return FSDP(Net('''a\n  b'''), device_id=0)  # one",
    "@yield FSDP(Net(b'''a\n  b''')), '''c\n d'''  # one",
    "@model = FSDP(model)  # type: ignore  # keep me",
    "@model = FSDP(model)  # noqa: E501",
    "@# fmt: off\n@model = FSDP( model )\n@# fmt: on",
    "@del model; model = FSDP(Net()) ; pass ; # x",
    "@global g; g = FSDP(Net())  # one",
    "@if isinstance(model, FSDP):  # a\n@@# b\n@@model = model.module  # c\n@# d\n@else:  # e\n@@model = model  # f",
    "@if isinstance(model, FSDP): model = model.module  # c",
    "@# same\n@model = FSDP(model,  # same\n@@@device_id=0,  # same\n@@@limit_all_gathers=True)  # same",
)
AROUND = (("def f(model, x):\n", 1), ("class A:\n@async def f(self, model):\n", 2), ("", 0))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("indent", "newline"), [("    ", "\n"), ("  ", "\r\n"), ("\t", "\n"), ("   ", "\r")])
def test_what_edits_have_to_get_around(body: str, indent: str, newline: str) -> None:
    held = 0
    for head, depth in AROUND:
        text = head + re.sub(r"^(?=@)", "@" * (depth - 1) if depth else "", body, flags=re.MULTILINE)
        if not depth:
            text = re.sub(r"^@", "", text, flags=re.MULTILINE)
        text = re.sub(r"^@+", lambda found: indent * len(found[0]), text, flags=re.MULTILINE)
        data = (HEAD + text + "\n").replace("\n", newline).encode()
        if compiles(data):
            hold(data)
            held += 1
    assert held
