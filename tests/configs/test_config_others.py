"""Frameworks that are only reported, and settings that a project reads itself."""

from __future__ import annotations

import pytest

from fsdp_rules.hosts.host_table import hosts
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Unchanged
from tests.configs.helpers import found, migrated
from tests.rules.helpers import rewrite_tree


@pytest.mark.parametrize(
    "text",
    [
        "base_model: m\nfsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n",
        "base_model: m\nfsdp:\n",
        "fsdp:\n  use: false\n  sharding_strategy: full\n",
        "fsdp_cpu_offload: true\n",
        "trainer:\n  strategy: ddp\n  fsdp_note: ''\n",
        "strategy: none\nx: fsdp\n",
    ],
)
def test_nothing_is_said(text: str) -> None:
    output, findings = migrated(text, "a.yaml")
    assert output == text
    assert not [one for one in findings if one.rule == "FSDP541" or one.level.value == "manual"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("base_model: m\nfsdp:\n- full_shard\n", "FSDP541"),
        ("base_model: m\nfsdp_version: 2\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n", "FSDP531"),
        ("fsdp_config:\n  sharding_strategy: HYBRID_SHARD\n  mixed_precision: PURE\n", "FSDP532"),
        ("fsdp_config:\n  sharding_strategy: FULL_SHARD\n  wrap: true\n", "FSDP542"),
        ("stage: sft\nfsdp: full_shard auto_wrap\n", "FSDP541"),
        ("stage: sft\nfsdp: [hybrid_shard, auto_wrap]\nfsdp_config: a.json\n", "FSDP541"),
        ("trainer:\n  devices: 8\n  strategy: fsdp\n", "FSDP541"),
        ("optim:\n  sharding_strategy: HYBRID_SHARD\n", "FSDP542"),
        ("student:\n  backbone:\n    sharding_strategy: SHARD_GRAD_OP\n    note: fsdp\n", "FSDP542"),
    ],
)
def test_a_finding_each(text: str, rule: str) -> None:
    assert migrated(text, "a.yaml")[0] == text
    assert found(text, "a.yaml") == {(rule, "manual")}


def test_other_keys_are_one_note_for_a_file() -> None:
    assert found("fsdp:\n  wrap: by_block\ngenerator_fsdp_wrap_strategy: size\n", "a.yaml") == {("FSDP542", "info")}


@pytest.mark.parametrize("key", ["class_path", "_target_"])
@pytest.mark.parametrize("host", hosts(), ids=lambda host: host.name)
def test_classes_in_yaml(host: object, key: str) -> None:
    text = f"trainer:\n  strategy:\n    {key}: {host.classes[0]}\n    init_args: {{}}\n# fsdp\n"  # type: ignore[attr-defined]
    assert found(text, "a.yaml") == {("FSDP541", "manual")}


def test_arguments_that_mean_nothing_any_more_are_a_note_each() -> None:
    text = "train:\n  fsdp: true\n  limit_all_gathers: true\n  fsdp_use_orig_params: false\n  other: 1\n"
    output, findings = migrated(text, "train.yaml")
    assert output == text
    told = [one.message for one in findings if "has no effect under FSDP2" in one.message]
    assert [message.split()[0] for message in told] == ["limit_all_gathers", "fsdp_use_orig_params"]
    assert {one.level.value for one in findings} == {"info"}


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n", False),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n", True),
        (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n"
            "model = FSDP(model) if old else fully_shard(model)\n",
            True,
        ),
        ("print(1)\n", True),
    ],
    ids=["FSDP2", "FSDP1", "both", "neither"],
)
def test_strategies_of_a_project_that_shards_with_fsdp2_are_its_own(python: str, said: bool) -> None:
    files = {"net.py": python.encode(), "train.yaml": b"model: small\nfsdp_type: full_shard\n"}
    result = rewrite_tree(files).get("train.yaml", Unchanged())
    assert isinstance(result, Unchanged)
    assert [found.rule for found in result.findings] == ["FSDP542"] * said


@pytest.mark.parametrize(
    ("lookup", "value", "level"),
    [
        ("ShardingStrategy[name]", "SHARD_GRAD_OP", "info"),
        ("getattr(fsdp.ShardingStrategy, cfg.name)", "SHARD_GRAD_OP", "info"),
        ('{"SHARD_GRAD_OP": ShardingStrategy.SHARD_GRAD_OP}[cfg.name]', "SHARD_GRAD_OP", "info"),
        ("ShardingStrategy[name]", "hybrid_full", "manual"),
        ("ShardingStrategy.SHARD_GRAD_OP if name == 'zero2' else None", "SHARD_GRAD_OP", "manual"),
    ],
)
def test_a_name_that_the_code_looks_up_in_fsdp1_s_own_class_remains(lookup: str, value: str, level: str) -> None:
    python = f"""
from torch.distributed import fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, StateDictType

def build(model, cfg, name):
    return FSDP(model, sharding_strategy={lookup})
"""
    files = {"net.py": python.encode(), "train.yaml": f"fsdp:\n  sharding_strategy: {value}\n".encode()}
    # The shim takes FSDP1's names however the code comes by them.
    for to, said in (("native", level), ("shim", level if value == "hybrid_full" else "info")):
        result = rewrite_tree(files, Settings(to=to))["train.yaml"]
        assert isinstance(result, Unchanged)
        assert [(found.rule, found.level.value) for found in result.findings] == [("FSDP542", said)]


def test_words_of_the_trainer_with_a_file_name_that_file() -> None:
    text = "model_name_or_path: m\nfsdp: full_shard auto_wrap\nfsdp_config: conf/fsdp.json\n"
    assert found(text, "sft.yaml") == {("FSDP541", "info")}
    assert "conf/fsdp.json" in migrated(text, "sft.yaml")[1][0].message


def test_words_of_the_trainer_say_what_to_write() -> None:
    (finding,) = migrated("fsdp: shard_grad_op offload auto_wrap\n", "sft.yaml")[1]
    assert "reshard_after_forward: false, cpu_offload: true" in finding.advice


@pytest.mark.parametrize(
    "text", ["name: fsdp2\nsharding_strategy: full_shard\n", "a:\n  fsdp_version: 2\n  fsdp_strategy: x\n"]
)
def test_settings_that_say_they_are_fsdp2s_are_passed_over(text: str) -> None:
    assert found(text, "strategy.yaml") == set()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("parallel:\n  _target_: torch.distributed.fsdp.FullyShardedDataParallel\n", "a.yaml"),
        ("wrap: [torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel]\n", "a.yml"),
        ('{"policy": {"_target_": "torch.distributed.fsdp.wrap.ModuleWrapPolicy"}}', "a.json"),
        ('{"calls": [["torch.distributed.fsdp.ShardingStrategy.FULL_SHARD", {}]]}', "a.json"),
        ('[parallel]\n"_target_" = "torch.distributed.fsdp.FullyShardedDataParallel"  # FSDP\n', "a.toml"),
        ("calls = ['torch.distributed.fsdp.wrap.always_wrap_policy']\n", "a.toml"),
        # Beside settings of a framework.
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
            "x:\n  _target_: torch.distributed.fsdp.FullyShardedDataParallel\n",
            "a.yaml",
        ),
    ],
)
def test_names_of_fsdp1_that_are_imported_by_their_paths(text: str, name: str) -> None:
    output, findings = migrated(text, name)
    assert output == text
    (said,) = [one for one in findings if one.rule == "FSDP543"]
    assert said.level.value == "manual"
    assert "torch.distributed.fsdp" in text.splitlines()[said.line - 1][said.column : said.end_column]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("parallel:\n  _target_: torch.distributed.fsdp.fully_shard\n", "a.yaml"),
        ("text: reads torch.distributed.fsdp.FullyShardedDataParallel by itself\n", "a.yaml"),
        ("# _target_: torch.distributed.fsdp.FullyShardedDataParallel\n", "a.yaml"),
        ('# x = "torch.distributed.fsdp.FullyShardedDataParallel"\n', "a.toml"),
        ('[tool.fsdp-migrate]\ntorch = "2.13"\n', "pyproject.toml"),
        ('x = "fsdp_compat.FullyShardedDataParallel"\n', "a.toml"),
    ],
)
def test_nothing_is_said_of_other_paths(text: str, name: str) -> None:
    assert [one for one in migrated(text, name)[1] if one.rule == "FSDP543"] == []
