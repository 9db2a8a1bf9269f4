"""Composer's and llm-foundry's ``fsdp_config``: what moves, and what its FSDP2 drops."""

from __future__ import annotations

import pytest

from tests.configs.helpers import check_kept, check_migrates, found, migrated

NAME = "pretrain.yaml"


def test_keys_that_fsdp2_knows_move() -> None:
    check_migrates(
        """
        max_duration: 1ba
        # FSDP
        fsdp_config:
          sharding_strategy: FULL_SHARD   # as ever
          mixed_precision: PURE
          activation_checkpointing: true
          activation_checkpointing_reentrant: false
          activation_cpu_offload: false
          cpu_offload: false
          data_parallel_shard_degree: -1
          backward_prefetch: BACKWARD_PRE
          load_monolith_rank0_only: ${rank0}
        seed: 1
        """,
        """
        max_duration: 1ba
        # FSDP
        fsdp_config:
          reshard_after_forward: true   # as ever
          mixed_precision: PURE
          activation_checkpointing: true
          activation_cpu_offload: false
          load_monolith_rank0_only: ${rank0}
          state_dict_type: full
        seed: 1
        """,
        NAME,
    )


def test_the_default_strategy_is_written_out_in_a_parallelism_config() -> None:
    check_migrates(
        """
        parallelism_config:
          fsdp:
            activation_cpu_offload: true
            state_dict_type: sharded
        """,
        """
        parallelism_config:
          fsdp:
            activation_cpu_offload: true
            state_dict_type: sharded
            reshard_after_forward: true
        """,
        NAME,
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sharding_strategy: HYBRID_SHARD", "drops sharding_strategy: HYBRID_SHARD"),
        ("sharding_strategy: NO_SHARD", "drops sharding_strategy: NO_SHARD"),
        ("sharding_strategy: ${strategy}", "drops sharding_strategy"),
        ("cpu_offload: true", "drops cpu_offload: true with a warning"),
        ("data_parallel_shard_degree: 8", "drops data_parallel_shard_degree: 8"),
        ("data_parallel_replicate_degree: 2", "drops data_parallel_replicate_degree: 2"),
        ("te_shard_fp8_weight: true", "drops te_shard_fp8_weight"),
        ("sharded_ckpt_prefix_dir: mine", "drops sharded_ckpt_prefix_dir"),
        ("state_dict_type: local", "local does not exist"),
    ],
)
def test_what_fsdp2_drops_keeps_the_file(line: str, said: str) -> None:
    text = f"fsdp_config:\n  mixed_precision: PURE\n  {line}\n"
    check_kept(text, "FSDP532", NAME)
    assert said in " ".join(one.message for one in migrated(text, NAME)[1])


def test_unknown_and_double_keys_are_said() -> None:
    text = "fsdp_config:\n  mixed_precision: PURE\n  min_params: 3\n"
    output, findings = migrated(text, NAME)
    assert "does not read the key min_params" in " ".join(one.message for one in findings)
    assert "min_params: 3" in output
    twice = "fsdp_config:\n  mixed_precision: PURE\n  verbose: true\n  verbose: false\n"
    check_kept(twice, "FSDP532", NAME)
    assert "written twice" in " ".join(one.message for one in migrated(twice, NAME)[1])


def test_a_moved_file_without_a_form_of_states_is_a_note() -> None:
    text = "fsdp_config:\n  mixed_precision: PURE\n  reshard_after_forward: true\n"
    assert found(text, NAME) == {("FSDP532", "info")}
