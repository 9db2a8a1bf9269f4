"""verl's strategy where a Python program sets it, with no YAML beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.rules.helpers import check_findings, check_noop

_ROLE = "actor_rollout_ref.actor"
_YAML = "actor_rollout_ref:\\n  actor:\\n    strategy: fsdp\\n    fsdp_config: {}\\n"


@pytest.mark.parametrize(
    "source",
    [
        f'config.{_ROLE}.strategy = "fsdp"\nprint("verl")\n',
        'import verl\nconfig["actor_rollout_ref"]["ref"]["strategy"] = "fsdp"\n',
        'import verl\ncritic = config.critic\ncritic.strategy = "fsdp"\n',
        'import verl\nKIND = "fsdp"\nconfig.reward_model.strategy = KIND\n',
        f'from omegaconf import OmegaConf\nOmegaConf.update(config, "{_ROLE}.strategy", "fsdp")\n',
        f'import verl\nsetattr(config.{_ROLE}, "strategy", "fsdp")\n',
        'config = {"actor_rollout_ref": {"actor": {"strategy": "fsdp"}}}\n',
        'import verl\nactor = {"strategy": "fsdp"}\nconfig = {"actor": actor}\n',
        'from verl.workers.config import FSDPActorConfig\nconfig = FSDPActorConfig(strategy="fsdp")\n',
        f'import subprocess\nsubprocess.run(["python", "-m", "verl.trainer.main_ppo", "{_ROLE}.strategy=fsdp"])\n',
        f'import os\nos.system(f"python -m verl.trainer.main_ppo {{more}} +{_ROLE}.strategy=fsdp x=1")\n',
        f'config = compose("ppo_trainer", overrides=["{_ROLE}.strategy=\'fsdp\'"])\n',
        f'TEXT = "{_YAML}"\n',
    ],
)
def test_a_finding_each(source: str) -> None:
    check_findings(source, {("FSDP559", "manual")})


@pytest.mark.parametrize(
    "source",
    [
        f'config.{_ROLE}.strategy = "fsdp2"\n',
        f'config.{_ROLE}.strategy = "megatron"\n',
        f'import verl\nif config.{_ROLE}.strategy == "fsdp":\n    pass\n',
        f'import verl\nassert config.{_ROLE}.strategy in ("fsdp", "fsdp2")\n',
        f'from omegaconf import OmegaConf\nOmegaConf.update(config, "{_ROLE}.strategy", "fsdp2")\n',
        f'from omegaconf import OmegaConf\nOmegaConf.update(config, "{_ROLE}.model", "fsdp")\n',
        'config = {"actor_rollout_ref": {"actor": {"strategy": "fsdp2"}}}\n',
        'import verl\nconfig = {"sampler": {"strategy": "fsdp"}}\n',
        f'"""An example:\n\n{_YAML}"""\n',
        f'overrides = ["{_ROLE}.strategy=fsdp2", "{_ROLE}.strategy=fsdp_turbo"]\n',
        'config.actor.strategy = "fsdp"\n',
        'from verl.workers.config import FSDPActorConfig\nconfig = FSDPActorConfig(strategy="fsdp2")\n',
    ],
)
def test_what_is_near_and_is_not(source: str) -> None:
    check_noop(source)


def test_a_tree_of_python_alone_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "from verl.trainer.main_ppo import run_ppo\n\n"
        "def main(config):\n"
        '    config.actor_rollout_ref.actor.strategy = "fsdp"\n'
        '    config.critic.strategy = "fsdp"\n'
        "    run_ppo(config)\n"
    )
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    for line, role in ((4, "actor"), (5, "critic")):
        assert f'train.py:{line}:5: FSDP559 manual: strategy of {role} is "fsdp" here, which is FSDP1' in out
    assert main(["rewrite", "."]) == 1
    text = Path("train.py").read_text()
    assert text.count("# TODO(fsdp-migrate FSDP559)") == 2
    assert main(["rewrite", "."]) == 1
    assert Path("train.py").read_text() == text
