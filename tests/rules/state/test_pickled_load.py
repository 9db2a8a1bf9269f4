"""torch.load of what torch 2.6 refuses by default, in projects that may run on an older torch now."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = (
    "import argparse\nimport numpy as np\nimport torch\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
)


def source(saved: str, load: str = "torch.load(path)") -> str:
    return (
        f"{HEAD}def save(model, args, cfg, step, path):\n    state = {saved}\n    torch.save(state, path)\n\n"
        f"def load(net, path):\n    model = FSDP(net)\n    return model, {load}\n"
    )


@pytest.mark.parametrize(
    "saved",
    [
        "{'model': model.state_dict(), 'args': args}",
        "dict(step=step, config=cfg)",
        "{'step': step, 'more': {'opt': argparse.Namespace(lr=1)}}",
        "{'rng': np.random.get_state()}",
        "{'trainer': TrainerState(step)}",
        "args",
    ],
)
def test_what_needs_pickles_is_loaded_with_them(saved: str) -> None:
    result = rewrite(source(saved))
    assert isinstance(result, Changed)
    assert "return model, torch.load(path, weights_only=False)" in result.source.decode()
    (found,) = [one for one in findings(source(saved)) if one.rule == "FSDP316"]
    assert found.level.value == "review"


@pytest.mark.parametrize(
    ("saved", "load"),
    [
        ("{'args': args}", "torch.load(path, weights_only=True)"),
        ("{'args': args}", "torch.load(path, weights_only=False)"),
        ("{'args': args}", "torch.load(path, **dict(weights_only=False))"),
        ("{'args': args}", "pickle.load(path)"),
        ("{'model': model.state_dict(), 'step': step, 'lr': 0.1}", "torch.load(path)"),
        ("{'args': vars(args), 'config': dict(cfg)}", "torch.load(path)"),
        ("{'rng': torch.get_rng_state()}", "torch.load(path)"),
        ("model.state_dict()", "torch.load(path)"),
    ],
)
def test_what_is_loaded_as_before_is_left_alone(saved: str, load: str) -> None:
    assert not [one for one in findings(source(saved, load)) if one.rule == "FSDP316"]


def test_a_project_that_needs_torch_2_6_now_is_left_alone() -> None:
    settings = Settings(raises_torch=False)
    assert not [one for one in findings(source("{'args': args}"), settings) if one.rule == "FSDP316"]


def test_options_that_are_not_seen_are_an_assumption() -> None:
    (found,) = [
        one for one in findings(source("{'args': args}", "torch.load(path, **options)")) if one.rule == "FSDP316"
    ]
    assert (found.level.value, found.message.partition(":")[0]) == ("review", "assumes options has weights_only=False")
