"""Shell scripts: edited word by word, with continued lines kept."""

from __future__ import annotations

import pytest

from fsdp_migrate.configs.editing.shell_words import commands
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.configs.helpers import check_migrates, found, migrated
from tests.rules.helpers import rewrite_tree

NAME = "train.sh"


@pytest.mark.parametrize(
    "text",
    [
        "echo fsdp\n",
        "# accelerate launch --use_fsdp train.py\n",
        "python train.py --fsdp ''\n",
        "python train.py --fsdp --fsdp_use_orig_params\n",
        "accelerate launch --multi_gpu train.py --fsdp_thing 1\n",
        "accelerate launch --config_file fsdp.yaml --use_fsdp train.py\n",
        "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false train.py\n",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.x=1\n",
        "python -m verl.trainer.main_ppo --config-name megatron actor_rollout_ref.actor.x=1\n",
        "echo 'open fsdp\n",
        "echo $(fsdp\n",
    ],
)
def test_what_is_not_fsdp1_is_not_touched(text: str) -> None:
    assert migrated(text, NAME) == (text, ())


def test_flags_of_the_launcher() -> None:
    check_migrates(
        """
        set -e  # before
        accelerate launch --num_processes $N --mixed_precision "no" \\
            --use_fsdp \\
            --fsdp_sharding_strategy 2 --fsdp_offload_params=true \\
            --fsdp_transformer_layer_cls_to_wrap "Block" \\
            --fsdp_use_orig_params true \\
            train.py --name fsdp  # after
        """,
        """
        set -e  # before
        accelerate launch --num_processes $N --mixed_precision "no" \\
            --use_fsdp \\
            --fsdp_reshard_after_forward false --fsdp_offload_params=true \\
            --fsdp_transformer_layer_cls_to_wrap "Block" \\
            --fsdp_version 2 \\
            --fsdp_state_dict_type FULL_STATE_DICT \\
            train.py --name fsdp  # after
        """,
        NAME,
    )


def test_hybrid_flags() -> None:
    output, _ = migrated(
        "accelerate launch --num_machines=2 --num_processes=8 --mixed_precision=no --use_fsdp "
        "--fsdp_sharding_strategy=HYBRID_SHARD --fsdp_state_dict_type=FULL_STATE_DICT train.py\n",
        NAME,
    )
    assert output == (
        "accelerate launch --num_machines=2 --num_processes=8 --mixed_precision=no --use_fsdp "
        "--fsdp_reshard_after_forward=true --fsdp_state_dict_type=FULL_STATE_DICT --fsdp_version 2 "
        "--parallelism_config_dp_replicate_size 2 --parallelism_config_dp_shard_size 4 --use_parallelism_config "
        "train.py\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "accelerate launch --use_fsdp --fsdp_sharding_strategy $STRATEGY train.py\n",
        'accelerate launch --use_fsdp --fsdp_sharding_strategy "${STRATEGY}" train.py\n',
        "accelerate launch --use_fsdp --fsdp_sharding_strategy NO_SHARD train.py\n",
        "accelerate launch --use_fsdp --fsdp_sharding_strategy 4 --num_processes $N train.py\n",
        "accelerate launch --config_file a.yaml --fsdp_sharding_strategy 2 train.py\n",
    ],
)
def test_what_only_the_running_script_knows_is_reported(text: str) -> None:
    output, findings = migrated(text, NAME)
    assert output == text
    assert "manual" in {one.level.value for one in findings}


@pytest.mark.parametrize(
    "text",
    [
        "torchrun train.py --fsdp 'full_shard auto_wrap' --fsdp_config=settings\n",
        'torchrun train.py --fsdp \'full_shard auto_wrap\' --fsdp_config "{\\"xla\\": false}"\n',
        "torchrun train.py --fsdp full_shard auto_wrap --bf16 True\n",
        "ARGS=\"--fsdp 'full_shard auto_wrap' --bf16 True\"\ntorchrun train.py $ARGS\n",
        "WORDS='full_shard auto_wrap'\ntorchrun train.py --fsdp \"$WORDS\"\n",
        "torchrun train.py --fsdp=${1}\n",
        'ssh host "torchrun train.py --fsdp=shard_grad_op"\n',
        "export FSDP_SHARDING_STRATEGY=1\n",
        "cat << EOF > a.yaml\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\nEOF\necho\n",
    ],
)
def test_other_ways_are_reported(text: str) -> None:
    assert migrated(text, NAME)[0] == text
    assert found(text, NAME) == {("FSDP513", "manual")}


@pytest.mark.parametrize(
    "start", ["composer train.py", "python -m composer.cli.launcher a.py", "env/bin/composer a.py"]
)
def test_the_version_of_composer_is_not_accelerates(start: str) -> None:
    (finding,) = migrated(f"export FSDP_VERSION=1\n{start} pretrain.yaml\n", NAME)[1]
    assert "Composer run FSDP1" in finding.message
    assert migrated(f"FSDP_VERSION=2 {start} pretrain.yaml\n", NAME)[1] == ()
    (other,) = migrated("export FSDP_VERSION=1\naccelerate launch train.py\n", NAME)[1]
    assert "accelerate run FSDP1" in other.message


def test_flags_of_the_trainer() -> None:
    check_migrates(
        """
        # before
        torchrun --nproc_per_node=8 train.py \\
          --fsdp "full_shard auto_wrap offload"  \\
          --fsdp_transformer_layer_cls_to_wrap 'A,B' \\
          --fsdp_min_num_params 0 --n 1 \\
          --out "$OUT"  # after
        """,
        """
        # before
        torchrun --nproc_per_node=8 train.py \\
          --fsdp "full_shard auto_wrap offload" \\
          --fsdp_config '{"transformer_layer_cls_to_wrap": ["A", "B"], "version": 2, "cpu_offload": true}' --n 1 \\
          --out "$OUT"  # after
        """,
        NAME,
    )


def test_settings_of_the_trainer_in_the_command() -> None:
    check_migrates(
        """
        torchrun train.py --fsdp=shard_grad_op --fsdp_config='{ "backward_prefetch": "backward_pre",
          "state_dict_type": "x" }' -n
        """,
        """
        torchrun train.py --fsdp=shard_grad_op --fsdp_config='{ "state_dict_type": "x", "version": 2, "Y": false }' -n
        """.replace("Y", "reshard_after_forward"),
        NAME,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torchrun train.py --fsdp=hybrid_shard\n", "refuses hybrid_shard"),
        ("torchrun train.py --fsdp 'no_shard auto_wrap' --fsdp_min_num_params 3\n", "refuses no_shard"),
        (
            "torchrun train.py --fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap $LAYER\n",
            "built from variables",
        ),
    ],
)
def test_flags_of_the_trainer_that_have_no_counterpart(text: str, said: str) -> None:
    output, findings = migrated(text, NAME)
    assert output == text
    assert said in " ".join(one.message for one in findings if one.level.value == "manual")


@pytest.mark.parametrize(
    ("text", "is_assumed"),
    [
        ("ARGS=(--fsdp 'full_shard auto_wrap')\ntorchrun a.py \"${ARGS[@]}\"\n", True),
        ("torchrun a.py --fsdp 'full_shard auto_wrap' $MORE\n", True),
        ("torchrun a.py --fsdp 'full_shard auto_wrap' --bf16 $BF16\n", True),
        ("torchrun a.py --fsdp 'full_shard auto_wrap' --out $OUT --name=$NAME\n", False),
    ],
)
def test_precision_from_elsewhere_is_an_assumption(text: str, is_assumed: bool) -> None:
    assert (("FSDP508", "review") in found(text, NAME)) == is_assumed


def test_a_flag_that_begins_a_command_is_removed_alone() -> None:
    text = "torchrun a.py \\  # a comment ends the line\n--fsdp_min_num_params 0 --fsdp 'full_shard auto_wrap'\n"
    output, _ = migrated(text, NAME)
    assert output == (
        "torchrun a.py \\  # a comment ends the line\n --fsdp 'full_shard auto_wrap' --fsdp_config '{\"version\": 2}'\n"
    )


def test_flags_of_the_trainer_wait_for_a_release_that_reads_them() -> None:
    text = "torchrun train.py --fsdp 'full_shard auto_wrap'\n"
    output, findings = migrated(text, NAME, Settings(transformers=(4, 57)))
    assert output == text
    assert "the newest transformers that the project allows is 4.57" in findings[0].message
    assert "version" in migrated(text, NAME, Settings(transformers=(5, 12)))[0]


def test_one_unit_is_named_where_the_word_is_missing() -> None:
    told = [one.message for one in migrated("torchrun train.py --fsdp full_shard\n", NAME)[1]]
    assert any("without auto_wrap" in message for message in told)


def test_overrides_of_verl_in_every_form() -> None:
    check_migrates(
        """
        ARGS=(
          actor_rollout_ref.actor.strategy=fsdp
          "+critic.strategy=fsdp"  # also
        )
        python3 -m verl.trainer.main_ppo "${ARGS[@]}" ++reward_model.strategy='fsdp' \\
          actor_rollout_ref.actor.fsdp_config.param_offload=False
        """,
        """
        ARGS=(
          actor_rollout_ref.actor.strategy=fsdp2
          "+critic.strategy=fsdp2"  # also
        )
        python3 -m verl.trainer.main_ppo "${ARGS[@]}" ++reward_model.strategy='fsdp2' \\
          actor_rollout_ref.actor.fsdp_config.param_offload=False
        """,
        NAME,
    )


def test_verl_without_a_strategy_is_the_default() -> None:
    text = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.fsdp_config.param_offload=False\n"
    assert found(text, NAME) == {("FSDP521", "manual")}


def test_an_ignored_line() -> None:
    text = "torchrun a.py --fsdp $WORDS  # fsdp-migrate: ignore[FSDP513]\n"
    assert migrated(text, NAME) == (text, ())


@pytest.mark.parametrize(
    "text", ['a "b', "a 'b", "a `b", "a ${b", "a $(b $(c)", "a <<END\nb", "\\", "a\\", "((a)", "\\\n"]
)
def test_broken_scripts_end(text: str) -> None:
    commands(text)
    assert migrated(text + "\n# fsdp", NAME)[0] == text + "\n# fsdp"


SETTINGS = b"""distributed_type: FSDP
mixed_precision: 'no'
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
"""


@pytest.mark.parametrize(
    ("start", "is_kept"),
    [
        ("accelerate launch --config_file conf/fsdp.yaml --mixed_precision bf16 train.py", True),
        ("accelerate launch \\\n  --mixed-precision=fp16 --config-file=$ROOT/conf/fsdp.yaml train.py", True),
        ("accelerate launch --config_file ./conf/fsdp.yaml train.py --mixed_precision bf16", False),
        ("accelerate launch --config_file conf/other.yaml --mixed_precision bf16 train.py", False),
        ("accelerate launch --config_file conf/fsdp.yaml --mixed_precision no train.py", False),
    ],
)
def test_the_precision_of_a_launch_counts_more_than_its_file(start: str, is_kept: bool) -> None:
    results = rewrite_tree({"conf/fsdp.yaml": SETTINGS, "run.sh": f"{start}\n".encode(), "train.py": b"import fsdp\n"})
    findings = results["conf/fsdp.yaml"].findings  # type: ignore[union-attr]
    said = [one.message for one in findings if one.rule == "FSDP508"]
    assert [("(run.sh) changes the losses" in one) for one in said] == [True] * is_kept
    assert isinstance(results["conf/fsdp.yaml"], Changed) is not is_kept
