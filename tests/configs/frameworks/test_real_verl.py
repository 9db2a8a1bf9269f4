"""verl's own configuration classes against the table, and what they make of a file and of the migrated one."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from fsdp_rules.frameworks.table import table
from tests.configs.frameworks.releases import installed
from tests.configs.helpers import migrated

pytest.importorskip("omegaconf", reason="make frameworks installs omegaconf")
try:
    ROOT = Path(str(importlib.metadata.distribution("verl").locate_file("")))
except importlib.metadata.PackageNotFoundError:
    pytest.skip("make frameworks installs verl", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")
ACTOR = """
actor_rollout_ref:
  actor:
    strategy: fsdp
    rollout_n: 1
    use_dynamic_bsz: true
    fsdp_config:
      wrap_policy: {transformer_layer_cls_to_wrap: [LlamaDecoderLayer]}
      param_offload: true
      optimizer_offload: true
      reshard_after_forward: false
      fsdp_size: 4
      forward_prefetch: true
"""


@pytest.fixture(scope="module")
def configs() -> Iterator[types.ModuleType]:
    """The files of the configuration alone: the package itself imports ray. Classes of other settings are left out."""
    bare = ("verl", "verl.utils", "verl.trainer", "verl.workers", "verl.workers.config")
    for name in bare:
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
    others = {
        "verl.utils.profiler": ["ProfilerConfig"],
        "verl.utils.profiler.config": ["ProfilerConfig"],
        "verl.utils.qat": ["QATConfig"],
        "verl.workers.config.model": ["HFModelConfig"],
    }
    for name, classes in others.items():
        module = sys.modules[name] = types.ModuleType(name)
        for one in classes:
            setattr(module, one, dataclasses.make_dataclass(one, []))
    yield importlib.import_module("verl.workers.config.actor")
    for name in [one for one in sys.modules if one.partition(".")[0] == "verl"]:
        del sys.modules[name]


def actor_of(text: str, configs: Any) -> Any:
    """What verl makes of the actor of a file."""
    given = yaml.safe_load(text)["actor_rollout_ref"]["actor"]
    engine = configs.FSDPEngineConfig(**given.pop("fsdp_config"))
    return configs.FSDPActorConfig(**given, fsdp_config=engine)


def test_the_table_has_keys_and_defaults_of_the_installed_classes(configs: Any) -> None:
    found = {one.name: one.default for one in dataclasses.fields(configs.FSDPEngineConfig)}
    for name, row in table("verl").keys.items():
        if name == "min_num_params":
            continue
        assert str(found[name]).lower() == row.default, name


def test_accepted_values_are_those_of_the_installed_classes(configs: Any) -> None:
    for value in table("verl").keys["strategy"].values:
        assert configs.FSDPEngineConfig(strategy=value).strategy == value
    with pytest.raises(AssertionError, match="not supported"):
        configs.FSDPEngineConfig(strategy="another")


def test_a_migrated_file_differs_in_the_strategy_of_the_engine_alone(configs: Any) -> None:
    before, after = (actor_of(text, configs) for text in (ACTOR, migrated(ACTOR, "ppo.yaml")[0]))
    assert (before.strategy, after.strategy) == ("fsdp", "fsdp2")
    first, second = (dataclasses.asdict(one) for one in (before, after))
    for one in (first, second):
        one.pop("strategy")
        one["fsdp_config"].pop("strategy")
        one.pop("engine", None)
    assert first == second


@pytest.mark.skipif(installed("verl") < Version("0.8"), reason="of verl from 0.8 on")
def test_the_engine_gets_the_strategy_of_the_role(configs: Any) -> None:
    assert actor_of(migrated(ACTOR, "ppo.yaml")[0], configs).engine.strategy == "fsdp2"
    nested = ACTOR.replace("    fsdp_config:\n", "    fsdp_config:\n      strategy: fsdp2\n")
    assert actor_of(nested, configs).engine.strategy == "fsdp"


def test_the_whole_configuration_of_the_release_is_read() -> None:
    """What verl writes out of its own defaults moves, role by role."""
    text = ROOT.joinpath("verl/trainer/config/_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    output, findings = migrated(text, "ppo.yaml")
    changed = [
        (old.strip(), new.strip())
        for old, new in zip(text.splitlines(), output.splitlines(), strict=True)
        if old != new
    ]
    assert changed
    assert set(changed) == {("strategy: fsdp", "strategy: fsdp2")}
    assert {one.rule for one in findings} <= {"FSDP521", "FSDP542"}
