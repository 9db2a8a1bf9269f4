"""FSDP902: FSDP1's private functions and attributes."""

from __future__ import annotations

import inspect
import re

import pytest
from torch import nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    _common_utils,
    _init_utils,
    _runtime_utils,
    _state_dict_utils,
)

from fsdp_compat.face.attributes import ATTRIBUTES
from fsdp_rules.beyond.private_api import PUBLIC, SHIMMED
from fsdp_rules.fsdp1.private_names import private_names
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite, rewrite_tree

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"


def found(source: str) -> list[tuple[str, str]]:
    return [(one.level.value, one.advice) for one in findings(source) if one.rule == "FSDP902"]


def test_attributes_of_that_spelling_in_other_projects_are_left_alone() -> None:
    check_noop("library._handle.close()\nprint(group.process_group, tensor.flat_param)\n")


def test_fsdp2_has_private_parts_of_its_own() -> None:
    check_noop("from torch.distributed.fsdp._fully_shard import _fsdp_init\n\nprint(_fsdp_init)\n")


@pytest.mark.parametrize("name", ["default_auto_wrap_policy", "DistributedDataParallel"])
def test_a_name_that_torch_does_not_have_is_not_called_private(name: str) -> None:
    source = f"from torch.distributed.fsdp import {name}\n\nprint({name})\n"
    said = [one.message for one in findings(source) if one.rule == "FSDP902"]
    assert said == [f"torch.distributed.fsdp has no {name}"]


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        ("print(model._handle)", "to_local()"),
        ("for unit in units:\n    unit._handle.flat_param.data.zero_()", "to_local()"),
        ("kind = model.sharding_strategy", "mesh"),
        ("for unit in units:\n    if isinstance(unit, FSDP) and unit.sharding_strategy:\n        pass", "mesh"),
        ("import torch.distributed.fsdp._traversal_utils as t\nprint(t._get_fsdp_handles(model))", "to_local()"),
        (
            "from torch.distributed.fsdp._runtime_utils import _lazy_init\nx = _lazy_init(model, model)",
            "delete the call",
        ),
        ("assert model._is_root", "passed to fully_shard last"),
        ("from torch.distributed.fsdp import FlatParameter\nprint(FlatParameter)", "to_local()"),
    ],
)
def test_one_finding_with_advice(use: str, advice: str) -> None:
    ((level, text),) = found(WRAP + use + "\n")
    assert level == "manual"
    assert advice in text


def test_public_attributes_of_other_objects_are_left_alone() -> None:
    assert found(WRAP + "print(trainer.process_group, config.sharding_strategy)\n") == []


def test_freeing_parameters_by_hand() -> None:
    check_rewrites(
        """
        import torch.distributed.fsdp._runtime_utils as runtime

        def free(units):
            for unit in units:
                runtime._reshard(unit, unit._handle, True)
        """,
        """
        def free(units):
            for unit in units:
                unit.reshard()
        """,
    )


def test_keeping_them_is_another_thing() -> None:
    source = "from torch.distributed.fsdp._runtime_utils import _reshard\n_reshard(unit, unit._handle, False)\n"
    assert {level for level, _ in found(source)} == {"manual"}


def test_an_initialisation_brought_forward_goes() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp._runtime_utils import _lazy_init

        def build(model):
            model = FSDP(model)
            _lazy_init(model, model)
            return model
        """,
        """
        import torch
        from torch.distributed.fsdp import fully_shard

        def build(model):
            fully_shard(model)
            return model
        """,
    )


CLASS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"


@pytest.mark.parametrize(
    "body",
    [
        'if hasattr(module, "_handles"): pass',
        'print(getattr(module, "_handle", None))',
        "module.head._streams = None",
        'if hasattr(module, "_exec_order_data"): pass',
        "module._exec_order_data._forward_prefetch_limit = 2",
        "if not isinstance(module, FSDP): return\n    module.params.clear()",
        "print(is_fsdp(module) and module.sharding_strategy is not ShardingStrategy.NO_SHARD)",
        "FSDP.set_state_dict_type(module, kind)\n    print(module.sharding_strategy)",
        "import torch.distributed.fsdp._runtime_utils as t\n    t._lazy_init(module, module)\n    module._is_root",
        "state = FSDP.sharded_optim_state_dict(module, optimizer)\n    write(state, module.sharding_strategy)",
        "for a, b in zip(get_fsdp_modules(module), get_fsdp_modules(other)):\n        print(a.params, b.ready)",
    ],
)
def test_more_ways_to_what_only_the_wrapper_has(body: str) -> None:
    found = findings(f"{CLASS}\ndef free(module):\n    {body}\n")
    assert ("FSDP902", "manual") in {(entry.rule, entry.level.value) for entry in found}


def test_attributes_of_other_objects_are_left_alone() -> None:
    body = "module.params.clear()\n    print(cfg.sharding_strategy)\n    FSDP.optim_state_dict(cfg.model, optimizer)"
    found = findings(f"{CLASS}\ndef free(module, cfg):\n    {body}\n")
    assert [entry.rule for entry in found if entry.rule == "FSDP902"] == []


def test_one_comment_stands_above_a_statement_that_uses_an_attribute_twice() -> None:
    result = rewrite(f"{CLASS}\ndef copy(a, b):\n    a.flat_param.data = b.flat_param.data\n")
    assert isinstance(result, Changed)
    assert result.source.count(b"TODO") == 1 and len(result.findings) == 3


def test_names_of_the_wrapper_alone_need_no_import_where_the_project_wraps() -> None:
    source = "def look(model):\n    return model.fc._flat_param, model._handle\n"
    assert [entry.message for entry in findings(source, main=WRAP)] == ["only FSDP1's wrapper has ._flat_param"]
    check_noop(source)


def test_what_stands_behind_a_question_is_told_of_there() -> None:
    body = 'if hasattr(unit, "_handles") and unit._handles:\n        unit._handles.clear()'
    found = findings(f"{CLASS}\ndef free(unit):\n    {body}\n")
    assert [(entry.rule, entry.line) for entry in found if entry.rule == "FSDP902"] == [("FSDP902", 4)]
    other = findings(
        f"{CLASS}\ndef free(unit, other):\n    {body.replace('unit._handles.clear', 'other._handles.clear')}\n"
    )
    assert [entry.line for entry in other if entry.rule == "FSDP902"] == [4, 5]


@pytest.mark.parametrize("name", ["cpu_offload", "mixed_precision", "training_state"])
def test_attributes_of_the_wrapper_that_programs_print(name: str) -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"class Trainer:\n    def __init__(self, net, {name}):\n        self.{name} = {name}\n"
        "        self.model = FSDP(net)\n\n"
        f"    def report(self):\n        print(f'{{self.model.{name}}} {{self.{name}}}')\n"
    )
    (found,) = [one for one in findings(source) if one.rule == "FSDP902"]
    assert (found.level.value, found.message) == ("manual", f"only FSDP1's wrapper has .{name}")


def test_what_the_shim_has_is_no_finding_there() -> None:
    assert {name for name in PUBLIC if name in ATTRIBUTES} == SHIMMED
    for name in sorted(PUBLIC):
        source = (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
            f"def build(net):\n    model = FSDP(net)\n    return model.{name}\n"
        )
        found = {one.rule for one in findings(source, Settings(to="shim"))}
        assert ("FSDP902" in found) is (name not in SHIMMED), name


@pytest.mark.parametrize(
    ("use", "levels"),
    [
        ("print(core.world_size)", ["review"]),
        ("return core.rank", ["review"]),
        ("core.rank = 3", []),
        ("return core.rank()", []),
        ("return config.world_size, args.rank", []),
    ],
)
@pytest.mark.parametrize("wrap", ["FSDP(net)", "net"])
def test_attributes_of_what_may_be_a_model(use: str, levels: list[str], wrap: str) -> None:
    """An element of a list in an object of another file: what is read of it may be the wrapper's."""
    files = {
        "main.py": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom job import Job\n"
        f"from steps import go\n\ndef main(net, config, args):\n    FSDP(net.other)\n"
        f"    go(Job([{wrap}, net.last]), config, args)\n",
        "job.py": "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    cores: list\n",
        "steps.py": f"def go(job, config, args):\n    for core in job.cores:\n        {use}\n",
    }
    result = rewrite_tree({path: text.encode() for path, text in files.items()}).get("steps.py", Unchanged())
    assert isinstance(result, Changed | Unchanged)
    found = [one.level.value for one in result.findings if one.rule == "FSDP902"]
    assert found == (levels if wrap == "FSDP(net)" else [])


@pytest.mark.parametrize("name", ["sharding_strategy", "limit_all_gathers", "mixed_precision"])
@pytest.mark.parametrize("question", ["getattr(model, '{}', None)", "hasattr(model, '{}')", "getattr(policy, '{}')"])
def test_questions_for_public_attributes_find_none(question: str, name: str) -> None:
    asked = question.format(name)
    source = f"{WRAP}policy = model\nfound = {asked}\n"
    ((level, advice),) = found(source)
    assert (level, advice) == ("manual", PUBLIC[name])
    shim = [one for one in findings(source, Settings(to="shim")) if one.rule == "FSDP902"]
    assert shim == []


def test_questions_follow_the_model_into_functions() -> None:
    source = (
        f"{WRAP}\ndef strategy(policy):\n    return getattr(policy, 'sharding_strategy', None)\n\nstrategy(model)\n"
    )
    assert [level for level, _ in found(source)] == ["manual"]


@pytest.mark.parametrize(
    "question", ["getattr(config, 'sharding_strategy', None)", "hasattr(net, 'rank')", "getattr(model, 'size', 1)"]
)
def test_noop_for_questions_to_others(question: str) -> None:
    assert found(f"{WRAP}net = build()\nfound = {question}\n") == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("te.distributed.prepare_te_modules_for_fsdp(model)", ["manual"]),
        ("prepare_te_modules_for_fsdp(model)", ["manual"]),
        ("prepare_te_modules_for_fsdp(net)", []),
        ("te.distributed.checkpoint(model)", []),
    ],
)
def test_functions_of_libraries_that_take_fsdp1_alone(call: str, said: list[str]) -> None:
    imports = "import transformer_engine.pytorch as te\n"
    imports += "from transformer_engine.pytorch.distributed import prepare_te_modules_for_fsdp\n"
    assert [level for level, _ in found(f"{imports}{WRAP}net = build()\n{call}\n")] == said


def test_a_mark_on_parameters_is_fsdp1_s_wherever_the_tree_shards() -> None:
    """Optimizers that reduce over ranks ask for it, in files that import nothing of FSDP1."""
    optimizer = 'def is_sharded(p):\n    return hasattr(p, "_fsdp_flattened")\n'
    said = {}
    for main in (WRAP, "model = None\n"):
        results = rewrite_tree({"prodigy.py": optimizer.encode(), "main.py": f"import prodigy\n{main}".encode()})
        said[main] = [one.level.value for one in results["prodigy.py"].findings if one.rule == "FSDP902"]
    assert said == {WRAP: ["manual"], "model = None\n": []}


@pytest.mark.parametrize(("base", "said"), [("nn.Module", 0), ("FSDP", 2)])
def test_a_class_of_the_tree_may_call_its_own_attributes_so(base: str, said: int) -> None:
    by_hand = f"""
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class ByHand({base}):
    def __init__(self, module):
        super().__init__()
        self._flat_param = nn.Parameter(module.weight.flatten())

    def gather(self):
        return self._flat_param.clone()
"""
    train = f"""
from by_hand import ByHand
{WRAP.splitlines()[0]}

def build(by_hand):
    base = Net()
    return ByHand(base) if by_hand else FSDP(base)
"""
    done = rewrite_tree({"by_hand.py": by_hand.encode(), "train.py": train.encode()})["by_hand.py"]
    assert sum(one.rule == "FSDP902" for one in done.findings) == said


_STATES = (_init_utils, _runtime_utils, _state_dict_utils)


def _of_wrappers() -> set[str]:
    """The attributes that torch's own source gives FSDP1's wrapper, and no other module."""
    found = {name for name, value in vars(FullyShardedDataParallel).items() if isinstance(value, property)}
    for own, source in (("self", _common_utils._FSDPState.__init__), *(("state", one) for one in _STATES)):
        found.update(re.findall(rf"\b{own}\.(\w+)\s*(?::[^=\n]+)?=[^=]", inspect.getsource(source)))
    return {name for name in found if not hasattr(nn.Module(), name) and not hasattr(FSDPModule, name)}


def test_every_attribute_of_the_wrapper_has_advice() -> None:
    # FSDP206 speaks of the inner module.
    known = {*private_names("attributes"), *private_names("public"), "module", "_fsdp_wrapped_module"}
    assert _of_wrappers() - known == set()
    assert len(_of_wrappers()) > 40


@pytest.mark.parametrize("name", ["_has_params", "_use_orig_params", "_ignored_params", "_state_dict_type"])
def test_private_attributes_of_units_are_found_by_the_model_alone(name: str) -> None:
    body = f"    for unit in FSDP.fsdp_modules(model):\n        print(unit.{name})\n    return net.{name}\n"
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"def run(net, plain):\n    model = FSDP(plain)\n{body}"
    )
    assert [(one.line, one.level) for one in findings(source) if one.rule == "FSDP902"] == [(6, Level.MANUAL)]
