"""FSDP109 and FSDP114: initialisation, and rank 0's values on all ranks."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import is_native, wrapped
from tests.rules.helpers import findings, rewrite

META = """
import torch
from example import build

def main(args):
    with torch.device("meta"):
        net = Net()
    return build({}, args)
"""


@pytest.mark.parametrize("value", ["False", "None"])
def test_nothing_is_sent(value: str) -> None:
    assert "broadcast" not in wrapped(f"sync_module_states={value}") or value == "None"


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", "dist.broadcast(synced, src=0)"),
        ("process_group=args.group", "dist.broadcast(synced, group=args.group, group_src=0)"),
        ("process_group=groups()", "dist.broadcast(synced, group=mesh.get_group(), group_src=0)"),
        ("device_mesh=args.mesh", "for group in args.mesh.get_all_groups():"),
    ],
)
def test_sent_inside_the_groups_of_the_mesh(arguments: str, sent: str) -> None:
    text = wrapped(f"{arguments}, sync_module_states=True, device_id=0".lstrip(", "))
    assert is_native(text) and sent in text


def test_sent_under_a_condition() -> None:
    assert "if args.sync:\n        for tensor" in wrapped("sync_module_states=args.sync")


@pytest.mark.parametrize(("given", "reset"), [("net", True), ("Net()", False)])
def test_a_model_from_where_the_meta_device_is_named(given: str, reset: bool) -> None:
    text = wrapped("sync_module_states=True", main=META.format(given))
    assert is_native(text) and ("reset_unit(model, " in text) is reset


def test_a_meta_device_that_another_model_is_built_on() -> None:
    other = META.replace("from example import build", "from other import build").format("net")
    assert is_native(wrapped("sync_module_states=True", tools=other))


def test_param_init_fn() -> None:
    text = wrapped("param_init_fn=args.init")
    assert is_native(text) and "materialize_unit(model, args.init)" in text
    assert "materialize_unit" not in wrapped("param_init_fn=None")


@pytest.mark.parametrize(
    ("init", "order"),
    [
        ("args.init", "dict.fromkeys(children_first(model))"),
        ("lambda module: module.to_empty(device=0, recurse=False)", "reversed(list(model.modules()))"),
    ],
)
def test_units_in_the_order_in_which_numbers_are_drawn(init: str, order: str) -> None:
    text = wrapped(f"auto_wrap_policy=ModuleWrapPolicy({{Block}}), param_init_fn={init}")
    assert is_native(text) and f"for module in {order}:" in text


def test_broadcast_of_each_unit() -> None:
    text = wrapped("param_init_fn=args.init, sync_module_states=args.sync", above="if True: pass")
    assert "tensors = materialize_unit(model, args.init)\n    if args.sync:\n        for tensor in tensors:" in text


def test_deferred_initialisation() -> None:
    above = "from torchdistx import deferred_init\nmodel = deferred_init.deferred_init(Net)"
    assert "fsdp_compat.shard(" in wrapped("param_init_fn=args.init", above=above)


def test_a_model_that_its_units_initialise_may_be_on_meta() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model, init):
            return FSDP(model, param_init_fn=init)
    """
    other = 'import torch\n\n# For FSDP.\ndef empty(make):\n    with torch.device("meta"):\n        return make()\n'
    said = [found.message for found in findings(source, other=other) if found.rule == "FSDP101"]
    assert said and "meta" not in said[0]
    plain = [found.message for found in findings(source.replace(", param_init_fn=init", ""), other=other)]
    assert any("not on the meta device" in message for message in plain)


@pytest.mark.parametrize(
    ("judge", "is_on_meta"),
    [
        ("judge = Auto.from_pretrained(name)", False),
        ("judge = Auto.from_pretrained(name)\n    if slow:\n        judge = None", False),
        ("with torch.device('meta'):\n        judge = Auto.from_pretrained(name)", True),
        ("judge = Auto(name)", True),
    ],
)
def test_a_model_that_is_read_from_a_checkpoint_is_not_on_meta(judge: str, is_on_meta: bool) -> None:
    source = f"""
import torch
from transformers import Auto
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(name, slow, init):
    with torch.device("meta"):
        model = Auto(name)
    {judge}
    judge = FSDP(judge, device_id=torch.cuda.current_device())
    return FSDP(model, param_init_fn=init), judge
"""
    done = rewrite(source)
    assert isinstance(done, Changed)
    assert ("reset_unit(judge" in done.source.decode()) is is_on_meta
    assert not any("not on the meta device" in one.message for one in done.findings)


@pytest.mark.parametrize(("elsewhere", "reset"), [("meta", True), ("cuda", False)])
def test_a_name_that_is_that_of_the_meta_device_on_some_ranks(elsewhere: str, reset: bool) -> None:
    main = META.replace("    with", f'    where = "cpu" if args.rank == 0 else "{elsewhere}"\n    with')
    text = wrapped("sync_module_states=True", main=main.replace('device("meta")', "device(where)").format("net"))
    assert is_native(text) and ("reset_unit(model, " in text) is reset
