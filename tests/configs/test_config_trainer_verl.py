"""The Trainer's files and verl's roles."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.configs.helpers import check_kept, check_migrates, found, migrated
from tests.rules.helpers import rewrite_tree

LAYERS = '"transformer_layer_cls_to_wrap": ["Block"]'


@pytest.mark.parametrize(
    "text",
    ['{"fsdp": "not a Trainer\'s file"}', '{"min_num_params": 1, "a": 1, "b": 2, "c": "fsdp"}', '["fsdp"]'],
)
def test_other_json_is_not_touched(text: str) -> None:
    assert migrated(text, "a.json") == (text, ())


def test_words_beside_the_file_are_written_out() -> None:
    check_migrates(
        f'{{"fsdp": "shard_grad_op auto_wrap offload", "fsdp_config": {{{LAYERS}}}}}\n',
        f'{{"fsdp": "shard_grad_op auto_wrap offload", "fsdp_config": {{{LAYERS}, "version": 2, '
        '"reshard_after_forward": false, "cpu_offload": true}}\n',
        "args.json",
    )


def test_size_policy_is_written_out() -> None:
    check_migrates(
        '{"fsdp_min_num_params": 2000, "fsdp_version": 1}\n',
        '{"fsdp_version": 2}\n',
        "fsdp.json",
    )


@pytest.mark.parametrize("word", ["hybrid_shard auto_wrap", "no_shard"])
def test_refused_words_keep_the_file(word: str) -> None:
    check_kept(f'{{"fsdp": "{word}", "fsdp_config": {{{LAYERS}}}}}', "FSDP511", "a.json")


def test_names_of_accelerate_have_no_effect() -> None:
    text = f'{{{LAYERS}, "fsdp_offload_params": "true", "version": 2, "_comment": "x", "typo_key": 1}}'
    output, findings = migrated(text, "a.json")
    assert output == text
    assert [(one.rule, one.level.value) for one in findings] == [("FSDP512", "manual")] * 2


def test_xla_is_another_thing() -> None:
    text = f'{{{LAYERS}, "xla": true}}'
    assert migrated(text, "a.json")[0] == text
    assert found(text, "a.json") == {("FSDP511", "info")}


def test_an_absent_strategy_of_verl_is_the_default() -> None:
    text = """
    actor_rollout_ref:
      actor:
        fsdp_config:
          strategy: fsdp2
    """
    finding = check_kept(text, "FSDP521", "ppo.yaml")
    assert "silently" in finding.message


def test_verl_roles_that_are_not_fsdp1() -> None:
    text = "actor_rollout_ref:\n  actor:\n    strategy: megatron\n  ref:\n    strategy: fsdp2\n"
    assert migrated(text, "ppo.yaml") == (text, ())


def test_a_file_of_one_role() -> None:
    check_migrates(
        "_target_: verl.workers.config.FSDPActorConfig\nstrategy: fsdp\nfsdp_config:\n  fsdp_size: -1\n",
        "_target_: verl.workers.config.FSDPActorConfig\nstrategy: fsdp2\nfsdp_config:\n  fsdp_size: -1\n",
        "dp_actor.yaml",
    )


def test_size_policy_of_verl_is_reported() -> None:
    text = "critic:\n  strategy: fsdp\n  model:\n    fsdp_config:\n      wrap_policy:\n        min_num_params: 100\n"
    assert ("FSDP521", "manual") in found("actor_rollout_ref: {}\n" + text, "ppo.yaml")


def test_words_in_a_list_are_read_as_one() -> None:
    text = "fsdp:\n- shard_grad_op\n- offload\n- auto_wrap\nfsdp_config:\n  transformer_layer_cls_to_wrap: [A]\n"
    output, _ = migrated(text, "sft.yaml")
    assert "reshard_after_forward: false" in output
    assert "cpu_offload: true" in output
    refused = text.replace("shard_grad_op", "hybrid_shard")
    assert migrated(refused, "sft.yaml")[0] == refused


@pytest.mark.parametrize("off", ["[]", "''", "null", "false"])
def test_a_record_of_arguments_in_which_fsdp_is_off_is_nothing(off: str) -> None:
    text = f"fsdp: {off}\nfsdp_config:\n  min_num_params: 0\n  xla: false\n"
    assert migrated(text, "config.yaml") == (text, ())


OLDER = {
    "verl/workers/fsdp_workers.py": b"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
    "verl/trainer/main_ppo.py": b"def run(config, fsdp):\n    if config.actor.strategy == 'fsdp':\n        fsdp()\n",
    "conf/ppo.yaml": b"actor_rollout_ref:\n  actor:\n    strategy: fsdp\n    fsdp_config:\n      fsdp_size: -1\n",
    "run.sh": b"python -m verl.trainer.main_ppo actor_rollout_ref.actor.fsdp_config.fsdp_size=-1\n",
}


@pytest.mark.parametrize("knows", [False, True])
def test_a_tree_with_the_code_of_an_older_verl_keeps_its_strategies(knows: bool) -> None:
    files = dict(OLDER)
    if knows:
        files["verl/trainer/main_ppo.py"] = b"def run(config, fsdp):\n    return config.strategy in {'fsdp', 'fsdp2'}\n"
    results = rewrite_tree(files)
    said = {
        path: {(one.rule, one.level.value) for one in results[path].findings}  # type: ignore[union-attr]
        for path in ("conf/ppo.yaml", "run.sh")
    }
    if knows:
        assert isinstance(results["conf/ppo.yaml"], Changed)
        assert said == {"conf/ppo.yaml": {("FSDP521", "review")}, "run.sh": {("FSDP521", "manual")}}
    else:
        assert isinstance(results["conf/ppo.yaml"], Unchanged)
        assert said == {"conf/ppo.yaml": {("FSDP521", "info")}, "run.sh": {("FSDP521", "info")}}


def test_an_older_verl_does_not_know_what_it_is_asked_for() -> None:
    text = OLDER["conf/ppo.yaml"].replace(b"strategy: fsdp", b"strategy: fsdp2")
    result = rewrite_tree({**OLDER, "conf/ppo.yaml": text})["conf/ppo.yaml"]
    assert isinstance(result, Unchanged)
    assert {(one.rule, one.level.value) for one in result.findings} == {("FSDP521", "manual")}
