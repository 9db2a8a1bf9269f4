"""accelerate's plugin in Python: which calls move, how they are written, and which are kept."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, check_rewrites, findings, rewrite

IMPORTS = "from accelerate import FullyShardedDataParallelPlugin\n"
TORCH = "from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy, StateDictType\n"
FULL = 'state_dict_type="FULL_STATE_DICT"'


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ("", f"fsdp_version=2, {FULL}"),
        ("fsdp_version=1", f"fsdp_version=2, {FULL}"),
        ("fsdp_version=None, state_dict_type=None", f"fsdp_version=2, {FULL}"),
        ("sharding_strategy='FULL_SHARD'", f"reshard_after_forward=True, fsdp_version=2, {FULL}"),
        ("sharding_strategy=2", f"reshard_after_forward=False, fsdp_version=2, {FULL}"),
        ("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", f"reshard_after_forward=False, fsdp_version=2, {FULL}"),
        ("sharding_strategy=ShardingStrategy(1)", f"reshard_after_forward=True, fsdp_version=2, {FULL}"),
        ("state_dict_type=StateDictType(3)", "state_dict_type=StateDictType(3), fsdp_version=2"),
        ("cpu_offload=CPUOffload(offload_params=True)", f"cpu_offload=True, fsdp_version=2, {FULL}"),
        ("cpu_offload=CPUOffload(args.off)", f"cpu_offload=bool(args.off), fsdp_version=2, {FULL}"),
        ("cpu_offload=CPUOffload()", f"cpu_offload=False, fsdp_version=2, {FULL}"),
        ("backward_prefetch=None, forward_prefetch=args.prefetch", f"fsdp_version=2, {FULL}"),
        ("limit_all_gathers=True", f"fsdp_version=2, {FULL}"),
        ("min_num_params=args.least", f"min_num_params=args.least, fsdp_version=2, {FULL}"),
        (
            "mixed_precision_policy={'param_dtype': half, 'reduce_dtype': half, 'buffer_dtype': half}",
            f"mixed_precision_policy=MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half), fsdp_version=2, {FULL}",
        ),
        ("fsdp_version=2, use_orig_params=True", "fsdp_version=2"),
        ("fsdp_version=2, reshard_after_forward='FULL_SHARD'", "fsdp_version=2, reshard_after_forward=True"),
    ],
)
def test_a_call_moves(arguments: str, after: str) -> None:
    made = rewrite(f"{IMPORTS}{TORCH}plugin = FullyShardedDataParallelPlugin({arguments})\n")
    text = " ".join(made.source.decode().split())  # type: ignore[union-attr]
    assert f"FullyShardedDataParallelPlugin({after})" in text.replace("Plugin( ", "Plugin(").replace(", )", ")")
    assert "TODO" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("**options", "not all named"),
        ("1, 'FULL_SHARD'", "not all named"),
        ("fsdp_version=args.version", "decided at run time"),
        ("sharding_strategy=args.strategy", "its value is only known at run time"),
        ("sharding_strategy='NO_SHARD'", "NO_SHARD has no FSDP2 setting in accelerate, so this plugin"),
        ("sharding_strategy=ShardingStrategy.HYBRID_SHARD", "needs a parallelism_config"),
        ("state_dict_type='LOCAL_STATE_DICT'", "LOCAL_STATE_DICT does not exist"),
        ("auto_wrap_policy=mine", "FSDP2 silently drops a callable"),
        ("auto_wrap_policy='SIZE_BASED_WRAP'", "SIZE_BASED_WRAP fails"),
        ("param_init_fn=init", "does not read param_init_fn"),
        ("mixed_precision_policy=policy", "cannot see its dtypes"),
        ("cpu_offload=offload", "its value is only known at run time"),
        ("cpu_ofload=True", "has no argument cpu_ofload"),
        ("activation_checkpointing=True", "without a wrap policy fails"),
        ("state_dict_type=args.kind", "its value is only known at run time"),
        ("fsdp_version=2, sharding_strategy='SHARD_GRAD_OP'", "raise ValueError under FSDP2"),
        ("fsdp_version=2, auto_wrap_policy=mine", "FSDP2 silently drops a callable"),
    ],
)
def test_a_call_is_kept(arguments: str, said: str) -> None:
    source = f"{IMPORTS}{TORCH}plugin = FullyShardedDataParallelPlugin({arguments})\n"
    told = [one for one in findings(source) if one.rule == "FSDP551"]
    assert {one.level.value for one in told} == {"manual"}
    assert any(said in one.message for one in told), told
    assert f"FullyShardedDataParallelPlugin({arguments})" in rewrite(source).source.decode()  # type: ignore[union-attr]


def test_classes_of_a_policy_become_their_names() -> None:
    check_rewrites(
        """
        import functools
        from accelerate import FullyShardedDataParallelPlugin
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
        from layers import Block, Head as Top

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block, Top})

        def build():
            return FullyShardedDataParallelPlugin(
                # which units
                auto_wrap_policy=policy,
                use_orig_params=True,  # for the optimizer
                cpu_ram_efficient_loading=False
            )
        """,
        """
        from accelerate import FullyShardedDataParallelPlugin
        from layers import Block, Head as Top

        def build():
            return FullyShardedDataParallelPlugin(
                # which units
                auto_wrap_policy="transformer_based_wrap",
                cpu_ram_efficient_loading=False,
                transformer_cls_names_to_wrap=["Block", Top.__name__],
                fsdp_version=2,
                state_dict_type="FULL_STATE_DICT"
            )
        """,
    )


def test_comments_of_arguments_that_change_are_kept() -> None:
    check_rewrites(
        """
        from accelerate.utils import FullyShardedDataParallelPlugin
        from torch.distributed.fsdp import ShardingStrategy

        plugin = FullyShardedDataParallelPlugin(
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
            state_dict_type="SHARDED_STATE_DICT",  # fast
        )
        """,
        """
        from accelerate.utils import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(
            reshard_after_forward=False,  # ZeRO-2
            state_dict_type="SHARDED_STATE_DICT",  # fast
            fsdp_version=2,
        )
        """,
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model = accelerator.prepare_model(model)", "prepare_model() on line 4"),
        ("model = accelerator.prepare(model)", "prepare() without the optimizer on line 4"),
        ("model, loader = accelerator.prepare(model, loader)", "prepare() without the optimizer on line 4"),
    ],
)
def test_a_model_prepared_alone_keeps_the_plugin(line: str, said: str) -> None:
    source = (
        f"{IMPORTS}plugin = FullyShardedDataParallelPlugin()\naccelerator = Accelerator(fsdp_plugin=plugin)\n{line}\n"
    )
    check_findings(source, {("FSDP551", "manual")})
    assert any(said in one.message for one in findings(source))


def test_model_and_optimizer_together_contradict_nothing() -> None:
    lines = "model, optim = a.prepare(model, optim)\na.prepare(loader)\n"
    source = f"{IMPORTS}plugin = FullyShardedDataParallelPlugin()\n{lines}"
    check_findings(source, {("FSDP551", "review"), ("FSDP551", "safe")})


def test_low_precision_of_the_accelerator_is_said() -> None:
    source = f"{IMPORTS}Accelerator(mixed_precision='bf16', fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    assert any("mixed_precision: bf16 changes the losses" in one.message for one in findings(source))
    source = source.replace("bf16", "no")
    assert not any("autocast" in one.message for one in findings(source))


def test_a_missing_broadcast_is_said() -> None:
    source = f"{IMPORTS}plugin = FullyShardedDataParallelPlugin(sync_module_states=True)\n"
    assert any("same weights" in one.message for one in findings(source))
    source = (
        f"{IMPORTS}plugin = FullyShardedDataParallelPlugin(sync_module_states=True, cpu_ram_efficient_loading=True)\n"
    )
    assert not any("same weights" in one.message for one in findings(source))


def test_attributes_that_are_set_later_keep_the_plugin() -> None:
    source = f"{IMPORTS}{TORCH}plugin = FullyShardedDataParallelPlugin()\nplugin.cpu_offload = CPUOffload(args.off)\n"
    assert any("this sets cpu_offload" in one.message for one in findings(source))
    assert "fsdp_version" not in rewrite(source).source.decode()  # type: ignore[union-attr]


def test_another_function_that_prepares_a_model_alone_contradicts_nothing() -> None:
    source = (
        f"{IMPORTS}def build():\n    return FullyShardedDataParallelPlugin()\n\n"
        "def evaluate(accelerator, model):\n    return accelerator.prepare(model)\n"
    )
    assert "fsdp_version=2" in rewrite(source).source.decode()  # type: ignore[union-attr]


HYBRID = """
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(sharding_strategy="HYBRID_SHARD_ZERO2", use_orig_params=True)
a = Accelerator(mixed_precision="no", fsdp_plugin=plugin)
"""


def test_a_hybrid_strategy_gets_the_meshes_that_fsdp1_makes() -> None:
    check_rewrites(
        HYBRID,
        """
        import os

        import accelerate
        import torch
        from accelerate import Accelerator
        from accelerate.utils import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(
            reshard_after_forward=False,
            fsdp_version=2,
            state_dict_type="FULL_STATE_DICT",
        )
        a = Accelerator(mixed_precision="no", fsdp_plugin=plugin, parallelism_config=accelerate.ParallelismConfig(
            dp_replicate_size=int(os.environ["WORLD_SIZE"]) // torch.cuda.device_count(),
            dp_shard_size=torch.cuda.device_count(),
        ))
        """,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fsdp_plugin=plugin)", "fsdp_plugin=plugin, parallelism_config=mine)"),
        ("fsdp_plugin=plugin)", "fsdp_plugin=plugin, **options)"),
        ("a = Accelerator", "c = Accelerator(fsdp_plugin=plugin)\nb = Accelerator"),
        ("fsdp_plugin=plugin)", ")"),
    ],
)
def test_a_hybrid_strategy_without_one_accelerator_is_kept(old: str, new: str) -> None:
    source = HYBRID.replace(old, new)
    told = [one.message for one in findings(source) if one.rule == "FSDP551" and one.level.value == "manual"]
    assert any("needs a parallelism_config" in one for one in told)


POLICIES = (
    "functools.partial(size_based_auto_wrap_policy, min_num_params=10)",
    "lambda module, recurse, nonwrapped_numel: recurse or nonwrapped_numel > 10",
    "CustomPolicy(lambda module: isinstance(module, Block))",
    "fsdp_auto_wrap_policy(model)",
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "lines",
    [
        "accelerator.state.fsdp_plugin.auto_wrap_policy = {}",
        "fsdp_plugin = trainer.accelerator.state.fsdp_plugin\nfsdp_plugin.auto_wrap_policy = {}",
        "plugin = AcceleratorState().fsdp_plugin\nif plugin is not None:\n    plugin.auto_wrap_policy = {}",
        "setattr(accelerator.state.fsdp_plugin, 'auto_wrap_policy', {})",
    ],
)
def test_a_policy_that_is_set_on_the_plugin_of_a_running_program_is_left_to_a_human(policy: str, lines: str) -> None:
    source = (
        "import functools\nfrom accelerate import Accelerator\n"
        "from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy\n\n"
        f"accelerator = Accelerator()\n{lines.format(policy)}\naccelerator.prepare(model, optimizer)\n"
    )
    (found,) = [one for one in findings(source) if one.rule == "FSDP551"]
    assert (found.level.value, found.line) == ("manual", source[: source.index(policy)].count("\n") + 1)
    assert "only the root is sharded" in found.message


@pytest.mark.parametrize(
    "line",
    [
        "accelerator.state.fsdp_plugin.auto_wrap_policy = None",
        "accelerator.state.fsdp_plugin.state_dict_config = config",
        "policy = accelerator.state.fsdp_plugin.auto_wrap_policy",
        "trainer.auto_wrap_policy = make(size_based_auto_wrap_policy)",
    ],
)
def test_what_means_the_same_on_the_plugin_of_a_running_program(line: str) -> None:
    source = f"from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy\n\n{line}\n"
    assert not [one for one in findings(source) if one.rule == "FSDP551"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_plugin_whose_losses_would_change_is_kept(precision: str) -> None:
    source = (
        f"{IMPORTS}plugin = FullyShardedDataParallelPlugin()\n"
        f"Accelerator(mixed_precision='{precision}', fsdp_plugin=plugin)\n"
    )
    made = rewrite(source)
    assert "fsdp_version" not in made.source.decode()  # type: ignore[union-attr]
    assert {one.level.value for one in findings(source)} == {"manual"}
