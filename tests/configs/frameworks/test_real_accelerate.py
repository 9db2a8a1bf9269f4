"""The mapping of accelerate's keys, held against the installed accelerate: its launcher, its plugin, its training."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from fsdp_rules.frameworks.table import table
from tests.configs.frameworks.releases import difference, known
from tests.configs.helpers import migrated
from tests.pool import Pool

pytest.importorskip("accelerate", reason="make frameworks installs accelerate")
pytestmark = pytest.mark.filterwarnings("default")
KEYS = table("accelerate").keys
LAYERS = ("fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap: Block")


def _file(*keys: str, precision: str = "no", processes: int = 2) -> str:
    return "\n".join(
        ["distributed_type: FSDP", "fsdp_config:", *(f"  {key}" for key in (*LAYERS, *keys))]
        + [f"mixed_precision: '{precision}'", f"num_machines: {processes // 2}", f"num_processes: {processes}", ""]
    )


def _environments(text: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    from tests.configs.frameworks.accelerate_worker import environment

    before, after = folder / "before.yaml", folder / "after.yaml"
    before.write_text(text)
    after.write_text(migrated(text)[0])
    return environment(str(before)), environment(str(after))


def _plugin(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin

    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        monkeypatch.delenv(name)
    # Needs a GPU, and is no part of what is compared.
    for name, value in {**variables, "FSDP_SYNC_MODULE_STATES": "false"}.items():
        monkeypatch.setenv(name, value)
    if variables["FSDP_VERSION"] == "1":
        monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    return FullyShardedDataParallelPlugin()


def test_the_table_has_the_launchers_keys_and_defaults() -> None:
    from accelerate.commands.launch import launch_command_parser

    actions = {
        action.dest: action.default for action in launch_command_parser()._actions if action.dest.startswith("fsdp_")
    }
    # Read from the environment by the plugin, without a flag.
    alive = {name for name, key in known("accelerate").items() if key.verdict != "dead"} - {"fsdp_ignored_modules"}
    defaults = {name: str(default) for name, default in actions.items() if default is not None}
    assert not (said := difference("accelerate", alive, actions, defaults)), said


def test_each_variable_is_set_by_the_launcher_and_dead_keys_set_none() -> None:
    from accelerate.utils import launch

    source = inspect.getsource(launch.prepare_multi_gpu_env)
    for key in known("accelerate").values():
        if key.verdict == "dead":
            assert key.name not in source
        else:
            assert f'"{key.env}"' in source, key.name


def test_a_difference_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert difference("accelerate", ["fsdp_version"], ["fsdp_version"], {"fsdp_version": "1"}) == ""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.1")
    said = difference("accelerate", ["fsdp_a", "fsdp_version"], ["fsdp_b", "fsdp_version"], {"fsdp_version": "2"})
    assert said.startswith(
        "accelerate 99.1, a newer release than the table knows (1.13.0, 1.15.0), has new keys: fsdp_b"
    )
    assert said.endswith("lacks keys: fsdp_a; has 2 for the default of fsdp_version, not 1")


def test_accepted_values_are_those_of_the_installed_code() -> None:
    from accelerate.utils import constants

    assert list(KEYS["fsdp_sharding_strategy"].values) == constants.FSDP_SHARDING_STRATEGY
    assert list(KEYS["fsdp_auto_wrap_policy"].values) == constants.FSDP_AUTO_WRAP_POLICY
    assert list(KEYS["fsdp_backward_prefetch"].values) == constants.FSDP_BACKWARD_PREFETCH
    assert list(KEYS["fsdp_state_dict_type"].values) == constants.FSDP_STATE_DICT_TYPE


def test_every_key_of_to_fsdp2_is_in_the_table() -> None:
    from accelerate.commands import to_fsdp2

    assert set(to_fsdp2.ARGUMENT_KEY_MAPPING) <= set(KEYS)
    removed = {name for name, to in to_fsdp2.ARGUMENT_KEY_MAPPING.items() if isinstance(to, to_fsdp2.ConversionStatus)}
    assert removed == {key.name for key in table("accelerate").with_verdict("removed")}


@pytest.mark.parametrize(
    ("written", "before", "after"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", "FULL_SHARD", True),
        ("fsdp_sharding_strategy: full_shard", "FULL_SHARD", True),
        ("fsdp_sharding_strategy: 1", "FULL_SHARD", True),
        ("fsdp_sharding_strategy: 2", "SHARD_GRAD_OP", False),
        ("sharding_strategy: SHARD_GRAD_OP", "SHARD_GRAD_OP", False),
        ("fsdp_sharding_strategy: 4", "HYBRID_SHARD", True),
        ("fsdp_sharding_strategy: 5", "_HYBRID_SHARD_ZERO2", False),
        ("fsdp_reshard_after_forward: FULL_SHARD", "FULL_SHARD", True),
        # What the file says was never carried out.
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", "FULL_SHARD", True),
    ],
)
def test_the_plugin_before_and_after(
    written: str, before: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _environments(_file(written, processes=4), tmp_path)
    old, new = _plugin(first, monkeypatch), _plugin(second, monkeypatch)
    assert (old.fsdp_version, new.fsdp_version) == (1, 2)
    assert old.sharding_strategy.name == before
    assert new.reshard_after_forward is after
    assert new.state_dict_type == old.state_dict_type
    assert new.transformer_cls_names_to_wrap == old.transformer_cls_names_to_wrap == ["Block"]
    hybrid = "HYBRID" in before
    assert second.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE") == ("2" if hybrid else None)
    assert second.get("PARALLELISM_CONFIG_DP_SHARD_SIZE") == ("2" if hybrid else None)


def test_another_number_of_processes_is_refused() -> None:
    from accelerate.parallelism_config import ParallelismConfig

    class Started:
        num_processes = 8
        multi_device = True

    with pytest.raises(ValueError, match="num_processes"):
        ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)._validate_accelerator(Started())


@pytest.mark.parametrize(
    ("keys", "dropout"),
    [
        (("fsdp_sharding_strategy: FULL_SHARD",), 0.0),
        (("fsdp_sharding_strategy: SHARD_GRAD_OP",), 0.0),
        (("fsdp_sharding_strategy: FULL_SHARD",), 0.5),
        (("fsdp_activation_checkpointing: true",), 0.0),
    ],
)
def test_losses_are_equal_in_full_precision(keys: tuple[str, ...], dropout: float, tmp_path: Path, pool: Pool) -> None:
    first, second = _train(pool, tmp_path, _file(*keys, "fsdp_cpu_ram_efficient_loading: false"), dropout)
    assert (first["class"], second["class"]) == ("FullyShardedDataParallel", "FSDPNet")
    assert first["losses"] == second["losses"]


def test_low_precision_differs_as_the_finding_says(tmp_path: Path, pool: Pool) -> None:
    text = _file("fsdp_cpu_ram_efficient_loading: false", precision="bf16")
    accepted = text.replace("fsdp_config:\n", "fsdp_config:\n  fsdp_version: 2\n")
    (first, kept), (_, second) = (_train(pool, tmp_path, one, 0.0) for one in (text, accepted))
    assert first == kept
    assert (first["class"], second["class"]) == ("FullyShardedDataParallel", "FSDPNet")
    assert (first["dtype"], second["dtype"]) == ("torch.float32", "torch.bfloat16")
    assert first["losses"] != second["losses"]
    assert ("FSDP508", "manual") in {(one.rule, one.level.value) for one in migrated(text)[1]}


def test_checkpointed_dropout_differs_as_the_finding_says(tmp_path: Path, pool: Pool) -> None:
    text = _file("fsdp_activation_checkpointing: true", "fsdp_cpu_ram_efficient_loading: false")
    first, second = _train(pool, tmp_path, text, 0.5)
    assert first["losses"][0] == second["losses"][0]
    assert first["losses"] != second["losses"]
    assert ("FSDP509", "review") in {(one.rule, one.level.value) for one in migrated(text)[1]}


def test_a_missing_broadcast_differs_as_the_finding_says(tmp_path: Path, pool: Pool) -> None:
    text = _file("fsdp_cpu_ram_efficient_loading: false")
    first, second = _train(pool, tmp_path, text, 0.0, by_rank=True)
    assert first["losses"] != second["losses"]
    assert any("same weights" in one.message for one in migrated(text)[1])


def _train(pool: Pool, folder: Path, text: str, dropout: float, by_rank: bool = False) -> list[dict[str, Any]]:
    from tests.configs.frameworks.accelerate_worker import train

    return [pool.run(train, 2, made, dropout, by_rank)[0] for made in _environments(text, folder)]
