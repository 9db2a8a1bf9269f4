"""The list of FSDP1's names against torch itself: no name without a verdict, no verdict without a name."""

from __future__ import annotations

import dataclasses
import enum
import inspect

import libcst as cst
import pytest
import torch
from packaging.version import Version
from torch.distributed.fsdp import FullyShardedDataParallel, api, wrap
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import fsdp_compat
from fsdp_compat.face.fsdp import _Methods
from fsdp_rules.construction._plan.argument_rule import argument_rules
from fsdp_rules.engine.registry import all_rules
from fsdp_rules.fsdp1.api import KINDS, VERDICTS, Entry, entries
from fsdp_rules.fsdp1.names import CLASS_NAMES, CONFIG_NAMES, POLICY_NAMES
from fsdp_rules.verdict.rule import Rule

#: Names of nn.Module that mean something else on FSDP1's class, and private names that many projects use.
INHERITED = {"load_state_dict", "state_dict"}
#: What the shim's functions take beyond FSDP1's arguments: FSDP2's, by keyword only.
ADDED_BY_THE_SHIM = {"reshard_after_forward"}
WIDELY_USED = {"_module_wrap_policy", "_or_policy"}


def listed(kind: str, owner: str | None = None) -> set[str]:
    return {entry.name for entry in entries() if entry.kind == kind and owner in (None, entry.owner)}


def members(cls: type) -> set[str]:
    public = {name for name in vars(cls) if not name.startswith("_")}
    return public | (vars(cls).keys() & {"__getattr__", "__getitem__"})


@pytest.mark.parametrize("cls", [FullyShardedDataParallel, ShardedGradScaler], ids=lambda cls: cls.__name__)
def test_constructor_arguments(cls: type) -> None:
    parameters = inspect.signature(cls.__init__).parameters.keys() - {"self"}
    assert listed("argument", cls.__name__) == parameters


def test_methods() -> None:
    assert listed("method", "FullyShardedDataParallel") == members(FullyShardedDataParallel) | INHERITED


def test_configuration_classes() -> None:
    public = {*api.__all__, "FullyShardedDataParallel", "OptimStateKeyType", "FlatParameter", "ShardedGradScaler"}
    assert listed("class") == public


def test_fields_and_values() -> None:
    fields: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}
    for name in [*api.__all__, "OptimStateKeyType"]:
        cls = getattr(torch.distributed.fsdp, name)
        if dataclasses.is_dataclass(cls):
            fields[name] = {field.name for field in dataclasses.fields(cls)}
        elif issubclass(cls, enum.Enum):
            values[name] = set(cls.__members__)
    assert {owner: listed("field", owner) for owner in fields} == fields
    assert {owner: listed("value", owner) for owner in values} == values
    owners = {entry.owner for entry in entries() if entry.kind in ("field", "value")}
    assert owners == fields.keys() | values.keys()


def test_wrapping() -> None:
    assert listed("policy") == set(wrap.__all__) | WIDELY_USED
    assert all(hasattr(wrap, name) for name in WIDELY_USED)


def test_names_that_the_rules_know() -> None:
    assert listed("class") == CONFIG_NAMES | CLASS_NAMES | {"FlatParameter"}
    assert listed("policy") == POLICY_NAMES


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.owner}.{entry.name}")
def test_entry(entry: Entry) -> None:
    assert entry.kind in KINDS
    assert entry.rewriter in VERDICTS
    assert entry.shim in VERDICTS
    assert entry.rule in {rule.id for rule in all_rules()}
    assert Version("2.6") <= Version(entry.torch) <= Version("2.13")
    assert entry.fsdp2 or entry.rewriter != "exact", "what is exact says how FSDP2 says it"
    assert entry.note or entry.rewriter == "exact" or entry.kind == "class", "what is not exact says why"


def test_each_argument_has_its_rule() -> None:
    rules = {name: rule.id for name, rule in argument_rules().items()}
    for entry in entries():
        if (entry.kind, entry.owner) == ("argument", "FullyShardedDataParallel"):
            assert rules[entry.name] == entry.rule, entry.name


def test_the_shim_takes_the_same_arguments() -> None:
    for ours, theirs in (
        (fsdp_compat.shard, FullyShardedDataParallel),
        (fsdp_compat.FullyShardedDataParallel, FullyShardedDataParallel),
        (fsdp_compat.ShardedGradScaler, ShardedGradScaler),
    ):
        wanted = inspect.signature(theirs).parameters.values()
        found = inspect.signature(ours).parameters.values()
        taken = [(one.name, one.default) for one in found if one.name not in ADDED_BY_THE_SHIM]
        assert taken == [(one.name, one.default) for one in wanted]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.owner}.{entry.name}")
def test_the_shim_has_what_it_says(entry: Entry) -> None:
    if entry.shim not in ("exact", "emulated"):
        return
    if entry.kind in ("class", "policy"):
        assert entry.name in fsdp_compat.__all__
    elif entry.kind == "method":
        assert hasattr(_Methods, entry.name) or hasattr(torch.nn.Module, entry.name)
        if isinstance(vars(FullyShardedDataParallel).get(entry.name), staticmethod):
            assert hasattr(fsdp_compat.FullyShardedDataParallel, entry.name)


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.visits], ids=lambda rule: rule.id)
def test_a_rule_takes_the_nodes_that_it_visits(rule: Rule) -> None:
    written = inspect.signature(rule.visit).parameters["node"].annotation
    kinds = tuple(getattr(cst, kind.removeprefix("cst.")) for kind in written.split(" | "))
    assert all(issubclass(visited, kinds) for visited in rule.visits)
