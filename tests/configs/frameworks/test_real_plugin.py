"""accelerate's plugin in Python: the table against the installed class, and training before and after a rewrite."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest

from fsdp_rules.frameworks.table import table
from tests.pool import Pool, WorkerError
from tests.rules.helpers import findings, rewrite

pytest.importorskip("accelerate", reason="make frameworks installs accelerate")
pytestmark = pytest.mark.filterwarnings("default")
TABLE = table("accelerate")
IMPORTS = """
import functools
import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp.fully_sharded_data_parallel import FullOptimStateDictConfig, FullStateDictConfig
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
"""
LAYERS = 'auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]'


def _programs(arguments: str) -> tuple[str, str]:
    before = f"{IMPORTS}\nplugin = FullyShardedDataParallelPlugin({arguments})\n"
    after = rewrite(before).source.decode()  # type: ignore[union-attr]
    return before, after


def test_every_argument_of_the_installed_plugin_is_in_the_table() -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    fields = {field.name: field.default for field in dataclasses.fields(FullyShardedDataParallelPlugin)}
    known = {key.argument for key in TABLE.keys.values() if key.argument} | set(TABLE.arguments)
    assert set(fields) <= known
    # An older release may lack the newest.
    assert known - set(fields) <= {"activation_checkpointing_offload"}
    assert {name for name, default in fields.items() if default is not None} == {"limit_all_gathers"}


def test_defaults_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from accelerate.utils import FullyShardedDataParallelPlugin

    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        monkeypatch.delenv(name)
    plugin = FullyShardedDataParallelPlugin()
    for key in TABLE.keys.values():
        if key.bare:
            value = getattr(plugin, key.argument)
            assert str(value).lower() == key.bare or (key.name == "fsdp_min_num_params" and value is None), key.name


@pytest.mark.parametrize(
    ("arguments", "reshard", "state"),
    [
        ("", True, "FULL_STATE_DICT"),
        ("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", False, "FULL_STATE_DICT"),
        ("sharding_strategy=ShardingStrategy(2), state_dict_type=StateDictType(3)", False, "SHARDED_STATE_DICT"),
        ('sharding_strategy="full_shard", state_dict_type="sharded_state_dict"', True, "SHARDED_STATE_DICT"),
        # What it says was never carried out.
        ('reshard_after_forward="SHARD_GRAD_OP"', True, "FULL_STATE_DICT"),
        ("cpu_offload=CPUOffload(offload_params=False), limit_all_gathers=True", True, "FULL_STATE_DICT"),
        ("state_dict_config=FullStateDictConfig(offload_to_cpu=True, rank0_only=False)", True, "FULL_STATE_DICT"),
    ],
)
def test_the_plugin_after_a_rewrite(arguments: str, reshard: bool, state: str) -> None:
    before, after = _programs(arguments)
    made: list[dict[str, object]] = [{}, {}]
    for program, names in zip((before, after), made, strict=True):
        exec(compile(program, "plugin.py", "exec"), names)
    old, new = made[0]["plugin"], made[1]["plugin"]
    assert (old.fsdp_version, new.fsdp_version) == (1, 2)  # type: ignore[attr-defined]
    assert old.sharding_strategy.name == ("FULL_SHARD" if reshard else "SHARD_GRAD_OP")  # type: ignore[attr-defined]
    assert new.reshard_after_forward is reshard  # type: ignore[attr-defined]
    assert new.state_dict_type == old.state_dict_type  # type: ignore[attr-defined]
    assert new.state_dict_type.name == state  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "units"),
    [
        ("use_orig_params=True", (1, 1)),
        (f"sharding_strategy='SHARD_GRAD_OP', {LAYERS}, use_orig_params=True", (4, 4)),
        (
            "auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}), "
            "use_orig_params=True",
            (4, 4),
        ),
        # Which modules are units here differs by the release of accelerate.
        (f"{LAYERS}, use_orig_params=True, activation_checkpointing=True", None),
    ],
)
def test_losses_are_equal_before_and_after(arguments: str, units: tuple[int, int] | None, pool: Pool) -> None:
    from tests.configs.frameworks.accelerate_worker import train

    made = [
        pool.run(train, 2, {"ACCELERATE_MIXED_PRECISION": "no"}, 0.0, False, program)[0]
        for program in _programs(arguments)
    ]
    assert [one["class"] for one in made] == ["FullyShardedDataParallel", "FSDPNet"]
    assert made[0]["losses"] == made[1]["losses"]
    assert units is None or tuple(one["units"] for one in made) == units


def test_a_size_policy_fails_on_a_list_of_layers(pool: Pool) -> None:
    from tests.configs.frameworks.accelerate_worker import train

    size = 'fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000'
    with pytest.raises(WorkerError, match="does not support containers"):
        program = f"{IMPORTS}\nplugin = FullyShardedDataParallelPlugin({size})\n"
        pool.run(train, 2, {"ACCELERATE_MIXED_PRECISION": "no"}, 0.0, False, program)
    for policy in ('"size_based_wrap"', "functools.partial(size_based_auto_wrap_policy, min_num_params=1000)"):
        before = f"{IMPORTS}\nplugin = FullyShardedDataParallelPlugin(auto_wrap_policy={policy})\n"
        assert "fsdp_version" not in rewrite(before).source.decode()  # type: ignore[union-attr]
        assert any("SIZE_BASED_WRAP fails" in one.message for one in findings(before))


def test_a_policy_of_dtypes_gives_close_losses(pool: Pool) -> None:
    from tests.configs.frameworks.accelerate_worker import train

    dtypes = "mixed_precision_policy=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    first, second = (
        pool.run(train, 2, {"ACCELERATE_MIXED_PRECISION": "no"}, 0.0, False, program)[0]
        for program in _programs(textwrap.dedent(f"{LAYERS}, {dtypes}, use_orig_params=True"))
    )
    assert (first["dtype"], second["dtype"]) == ("torch.bfloat16", "torch.bfloat16")
    # bfloat16 has eight bits: two units of its last place at the size of these losses.
    assert max(abs(a - b) for a, b in zip(first["losses"], second["losses"], strict=True)) <= 2 * 2**-7


def test_a_hybrid_strategy_has_the_sizes_of_fsdp1(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the object: FSDP1 shards over the GPUs that torch counts, and replicates over the rest of the ranks."""
    import accelerate
    import torch

    monkeypatch.setattr("accelerate.Accelerator", dict)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("WORLD_SIZE", "32")
    before = (
        "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
        'plugin = FullyShardedDataParallelPlugin(sharding_strategy="HYBRID_SHARD")\n'
        "accelerator = Accelerator(fsdp_plugin=plugin)\n"
    )
    made: dict[str, dict[str, object]] = {}
    exec(compile(rewrite(before).source.decode(), "plugin.py", "exec"), made)  # type: ignore[union-attr]
    sizes = made["accelerator"]["parallelism_config"]
    assert isinstance(sizes, accelerate.ParallelismConfig)
    assert (sizes.dp_replicate_size, sizes.dp_shard_size, sizes.total_size) == (4, 8, 32)
