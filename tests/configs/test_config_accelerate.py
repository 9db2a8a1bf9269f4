"""accelerate's files: strategies in every spelling, what keeps a file on FSDP1, and what is not FSDP at all."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.configs.helpers import check_kept, check_migrates, found, migrated

FULL = "fsdp_state_dict_type: FULL_STATE_DICT"


def _file(*keys: str, around: str = "mixed_precision: 'no'\nnum_machines: 2\nnum_processes: 16") -> str:
    return "\n".join(["distributed_type: FSDP", "fsdp_config:", *(f"  {key}" for key in keys), around, ""])


@pytest.mark.parametrize(
    "text",
    [
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
        "distributed_type: FSDP\nfsdp_config: {}\n",
        _file("fsdp_version: 2", "fsdp_reshard_after_forward: false", FULL),
        "# about fsdp\nanswer: 42\n",
    ],
)
def test_what_is_not_fsdp1_is_not_touched(text: str) -> None:
    output, findings = migrated(text)
    assert output == text
    assert not findings


def test_a_file_that_starts_something_else_is_a_note() -> None:
    text = "distributed_type: MULTI_GPU\nfsdp_config:\n  fsdp_sharding_strategy: 1\n"
    assert migrated(text)[0] == text
    assert found(text) == {("FSDP501", "info")}


@pytest.mark.parametrize(
    ("written", "reshard"),
    [
        ("FULL_SHARD", "true"),
        ("full_shard", "true"),
        ("1", "true"),
        ("'1'", "true"),
        ("SHARD_GRAD_OP", "false"),
        ("shard_grad_op", "false"),
        ("2", "false"),
        ('"SHARD_GRAD_OP"', "false"),
    ],
)
@pytest.mark.parametrize("key", ["fsdp_sharding_strategy", "sharding_strategy"])
def test_strategies_in_every_spelling(key: str, written: str, reshard: str) -> None:
    check_migrates(
        _file(f"{key}: {written}  # why", FULL),
        _file(f"fsdp_reshard_after_forward: {reshard}  # why", FULL, "fsdp_version: 2"),
    )


@pytest.mark.parametrize(
    ("written", "reshard"), [("HYBRID_SHARD", "true"), ("4", "true"), ("hybrid_shard_zero2", "false"), ("5", "false")]
)
def test_hybrid_strategies_get_a_parallelism_config(written: str, reshard: str) -> None:
    sizes = "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 8"
    around = "mixed_precision: 'no'\nnum_machines: 2\nnum_processes: 16"
    check_migrates(
        _file(f"fsdp_sharding_strategy: {written}", FULL),
        _file(f"fsdp_reshard_after_forward: {reshard}", FULL, "fsdp_version: 2", around=f"{around}\n{sizes}"),
    )
    assert ("FSDP502", "review") in found(_file(f"fsdp_sharding_strategy: {written}", FULL))


@pytest.mark.parametrize("written", ["NO_SHARD", "no_shard", "3", "'3'"])
def test_no_shard_keeps_the_file(written: str) -> None:
    finding = check_kept(_file(f"fsdp_sharding_strategy: {written}", "fsdp_use_orig_params: true"), "FSDP502")
    assert "DDP" in finding.advice


@pytest.mark.parametrize(
    "around",
    [
        "mixed_precision: 'no'",
        "num_machines: 3\nnum_processes: 16",
        "num_machines: 2\nnum_processes: 16\nparallelism_config:\n  parallelism_config_tp_size: 2",
    ],
)
def test_hybrid_without_sizes_keeps_the_file(around: str) -> None:
    check_kept(_file("fsdp_sharding_strategy: HYBRID_SHARD", around=around), "FSDP502")


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("fsdp_sharding_strategy: SHARDED", "FSDP502"),
        ("fsdp_sharding_strategy: 7", "FSDP502"),
        ("fsdp_state_dict_type: LOCAL_STATE_DICT", "FSDP503"),
        ("fsdp_state_dict_type: 2", "FSDP503"),
        ("fsdp_state_dict_type: whole", "FSDP503"),
        ("fsdp_auto_wrap_policy: BY_HAND", "FSDP507"),
        ("fsdp_activation_checkpointing: true", "FSDP509"),
        ("fsdp_version: 3", "FSDP501"),
    ],
)
def test_values_without_a_counterpart_keep_the_file(key: str, rule: str) -> None:
    check_kept(_file(key, "fsdp_forward_prefetch: true"), rule)


def test_a_key_written_twice_keeps_the_file() -> None:
    check_kept(_file("fsdp_sharding_strategy: 1", "fsdp_sharding_strategy: 2"), "FSDP505")


def test_unknown_keys_are_findings_and_kept() -> None:
    text = _file("fsdp_auto_wrap_polcy: NO_WRAP", FULL)
    output, findings = migrated(text)
    assert output == _file("fsdp_auto_wrap_polcy: NO_WRAP", FULL, "fsdp_version: 2")
    (unknown,) = [one for one in findings if one.rule == "FSDP505"]
    assert (unknown.level.value, unknown.line) == ("manual", 3)
    assert "fsdp_auto_wrap_policy" in unknown.advice


def test_reshard_after_forward_was_never_read_under_fsdp1() -> None:
    check_migrates(
        _file("fsdp_reshard_after_forward: SHARD_GRAD_OP", FULL),
        _file("fsdp_reshard_after_forward: true", FULL, "fsdp_version: 2"),
    )
    assert ("FSDP502", "review") in found(_file("fsdp_reshard_after_forward: SHARD_GRAD_OP", FULL))
    check_migrates(
        _file("fsdp_reshard_after_forward: FULL_SHARD", "fsdp_sharding_strategy: SHARD_GRAD_OP", FULL),
        _file("fsdp_reshard_after_forward: false", FULL, "fsdp_version: 2"),
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("fsdp_sync_module_states: true",), False),
        (("fsdp_sync_module_states: true", "fsdp_cpu_ram_efficient_loading: true"), False),
        (("fsdp_sync_module_states: true", "fsdp_cpu_ram_efficient_loading: false"), True),
        (("fsdp_cpu_ram_efficient_loading: false",), True),
        (("fsdp_sync_module_states: false", "fsdp_cpu_ram_efficient_loading: false"), False),
    ],
)
def test_a_missing_broadcast_is_an_assumption(keys: tuple[str, ...], expected: bool) -> None:
    _, findings = migrated(_file(*keys, FULL))
    assert any("same weights" in one.message for one in findings) is expected


@pytest.mark.parametrize(("value", "level"), [("true", "review"), ("false", "safe")])
def test_prefetching_in_forward_that_goes_is_told(value: str, level: str) -> None:
    _, findings = migrated(_file(f"fsdp_forward_prefetch: {value}", FULL))
    assert [one.level.value for one in findings if "fsdp_forward_prefetch" in one.message] == [level]


@pytest.mark.parametrize(
    ("around", "level"),
    [
        ("mixed_precision: bf16", "manual"),
        ("mixed_precision: fp16", "manual"),
        ("mixed_precision: no", None),
        ("mixed_precision: 'no'", None),
        ("x: 1", "review"),
    ],
)
def test_low_precision_is_told_once(around: str, level: str | None) -> None:
    levels = [one.level.value for one in migrated(_file(FULL, around=around))[1] if one.rule == "FSDP508"]
    assert levels == ([level] if level else [])


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_a_file_whose_losses_would_change_is_kept(precision: str) -> None:
    text = _file(FULL, around=f"mixed_precision: {precision}")
    after, findings = migrated(text)
    assert "fsdp_version" not in after
    assert ("FSDP508", "manual") in {(one.rule, one.level.value) for one in findings}
    accepted = _file("fsdp_version: 2", FULL, around=f"mixed_precision: {precision}")
    assert not [one for one in migrated(accepted)[1] if one.rule == "FSDP508"]


def test_half_migrated_files_lose_what_is_not_read() -> None:
    check_migrates(
        _file("fsdp_version: 2", "fsdp_sharding_strategy: FULL_SHARD", "fsdp_backward_prefetch: NO_PREFETCH", FULL),
        _file("fsdp_version: 2", FULL),
    )


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD", "2", "4"])
def test_an_ignored_strategy_is_reported(strategy: str) -> None:
    text = _file("fsdp_version: 2", f"fsdp_sharding_strategy: {strategy}", FULL)
    output, findings = migrated(text)
    assert output == text
    assert [(one.rule, one.level.value) for one in findings] == [("FSDP506", "manual")]
    assert "full sharding" in findings[0].message


def test_the_launcher_still_looks_at_sync_module_states() -> None:
    text = _file("fsdp_version: 2", "fsdp_sync_module_states: false", FULL)
    assert migrated(text)[0] == text


def test_what_is_left_out_keeps_the_whole_block() -> None:
    text = _file("fsdp_sharding_strategy: SHARD_GRAD_OP", FULL)
    for settings in (Settings(ignore=("FSDP502",)), Settings(ignore=("FSDP501",)), Settings(select=("FSDP503",))):
        assert migrated(text, settings=settings)[0] == text
    ignored = _file("fsdp_sharding_strategy: SHARD_GRAD_OP  # fsdp-migrate: ignore[FSDP502]", FULL)
    output, findings = migrated(ignored)
    assert output == ignored
    assert [(one.rule, one.level.value) for one in findings] == [("FSDP501", "manual")]


def test_json_keeps_its_form() -> None:
    before = """
    {
      "distributed_type": "FSDP",
      "num_machines": 2, "num_processes": 4,
      "mixed_precision": "no",
      "fsdp_config": {
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_sharding_strategy": "HYBRID_SHARD",
        "fsdp_use_orig_params": true
      }
    }
    """
    after = """
    {
      "distributed_type": "FSDP",
      "num_machines": 2, "num_processes": 4,
      "mixed_precision": "no",
      "fsdp_config": {
        "fsdp_reshard_after_forward": true,
        "fsdp_version": 2,
        "fsdp_state_dict_type": "FULL_STATE_DICT"
      },
      "parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2}
    }
    """
    check_migrates(before, after, "accelerate.json")
    check_migrates(before, after, "accelerate.yaml")


def test_a_comment_above_a_key_that_goes_is_kept_and_one_beside_it_goes() -> None:
    """It may be about several keys, or say why the block is as it is; only who wrote it knows."""
    check_migrates(
        _file(
            "# measured: 3 % faster",
            "fsdp_backward_prefetch: BACKWARD_PRE  # on our cluster",
            "# needed for frozen layers",
            "fsdp_use_orig_params: true",
            FULL,
        ),
        _file("# measured: 3 % faster", "# needed for frozen layers", FULL, "fsdp_version: 2"),
    )
