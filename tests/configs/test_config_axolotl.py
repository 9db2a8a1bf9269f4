"""axolotl's YAML: what moves, what axolotl refuses, and where the version is."""

from __future__ import annotations

import pytest

from tests.configs.helpers import check_kept, check_migrates, found, migrated

NAME = "axolotl.yaml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fsdp_config:\n  offload_params: true\n", "fsdp_config:\n  offload_params: true\nfsdp_version: 2\n"),
        (
            "fsdp_version: 1  # old\nfsdp_config:\n  fsdp_use_orig_params: true\n  auto_wrap_policy: NO\n",
            "fsdp_version: 2  # old\nfsdp_config:\n  auto_wrap_policy: NO\n",
        ),
        ("fsdp_config:\n  version: 1\n", "fsdp_config:\n  version: 2\n"),
        (
            "fsdp_version: 1\nfsdp_config:\n  fsdp_version: 1\n",
            "fsdp_version: 2\nfsdp_config:\n  fsdp_version: 2\n",
        ),
        (
            "fsdp:\n  - shard_grad_op\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP # two\n",
            "fsdp:\n  - shard_grad_op\nfsdp_config:\n  fsdp_reshard_after_forward: false # two\nfsdp_version: 2\n",
        ),
        (
            "fsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n  backward_prefetch: BACKWARD_PRE\noptimizer: adamw\n",
            "fsdp_config:\n  reshard_after_forward: true\noptimizer: adamw\nfsdp_version: 2\n",
        ),
        (
            "fsdp_version: 2\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n  offload_params: true\n",
            "fsdp_version: 2\nfsdp_config:\n  offload_params: true\n",
        ),
        (
            "optimizer: q_galore_adamw8bit\nfsdp_config:\n  use_orig_params: true\n",
            "optimizer: q_galore_adamw8bit\nfsdp_config:\n  use_orig_params: true\nfsdp_version: 2\n",
        ),
    ],
)
def test_a_file_moves(before: str, after: str) -> None:
    check_migrates(f"base_model: m\n{before}", f"base_model: m\n{after}", NAME)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("fsdp: [hybrid_shard]\n", "refuses fsdp: hybrid_shard"),
        ("fsdp_config:\n  state_dict_type: LOCAL_STATE_DICT\n", "LOCAL_STATE_DICT"),
        ("fsdp_config:\n  auto_wrap_policy: SIZE_BASED_WRAP\n  min_num_params: 5\n", "SIZE_BASED_WRAP fails"),
        ("lora_dropout: 0.05\nfsdp_config:\n  activation_checkpointing: true\n", "lora_dropout is on"),
    ],
)
def test_what_fails_under_fsdp2_keeps_the_file(lines: str, said: str) -> None:
    config = "" if "fsdp_config" in lines else "fsdp_config:\n  offload_params: false\n"
    assert said in check_kept(f"base_model: m\n{lines}{config}", "FSDP531", NAME).message


def test_a_strategy_that_was_never_read_is_said() -> None:
    text = "base_model: m\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
    assert any("was never read, and FULL_SHARD ran" in one.message for one in migrated(text, NAME)[1])


def test_low_precision_and_unknown_keys_are_said() -> None:
    text = "base_model: m\nbf16: auto\nfsdp_config:\n  fsdp_offlod_params: true\n"
    assert found(text, NAME) == {("FSDP508", "manual"), ("FSDP531", "manual")}
