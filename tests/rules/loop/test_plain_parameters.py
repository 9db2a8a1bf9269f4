"""``full_tensor()`` of parameters that FSDP ignores, and of those that it shards."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net, {given})\n"
FSDP2 = "from torch.distributed.fsdp import fully_shard\n\nfully_shard(net, {given})\n"
IGNORED, NOTHING = "ignored_modules=[net.frozen]", "use_orig_params=True"
EACH = "for name, p in model.named_parameters():\n    {line}\n"
SYNC = EACH.format(line="send(p.full_tensor())")
GUARDED = (
    EACH.format(line="send(p.full_tensor() if isinstance(p, DTensor) else p)"),
    EACH.format(line='send(p.full_tensor() if hasattr(p, "full_tensor") else p)'),
    EACH.format(line="if not isinstance(p, DTensor):\n        continue\n    send(p.full_tensor())"),
    EACH.format(line="try:\n        send(p.full_tensor())\n    except AttributeError:\n        send(p)"),
)


def levels(source: str, settings: Settings | None = None) -> list[str]:
    return [one.level.value for one in findings(source, settings) if one.rule == "FSDP243"]


def test_each_parameter_of_a_model_with_ignored_ones() -> None:
    assert levels(FSDP1.format(given=IGNORED) + SYNC) == ["manual"]
    assert levels(FSDP1.format(given="ignored_states=chosen(net)") + SYNC) == ["review"]
    assert levels(FSDP1.format(given=IGNORED) + SYNC, Settings(to="shim")) == ["manual"]


@pytest.mark.parametrize("guarded", GUARDED)
def test_a_test_for_the_class_is_enough(guarded: str) -> None:
    assert levels(FSDP1.format(given=IGNORED) + guarded) == []
    assert levels(FSDP2.format(given="ignored_params=frozen") + guarded, Settings(traps=True)) == []


@pytest.mark.parametrize(
    "source",
    [
        FSDP1.format(given=NOTHING) + SYNC,
        FSDP1.format(given=IGNORED) + "send(loss.full_tensor())\n",
        FSDP1.format(given=IGNORED) + SYNC.replace("full_tensor()", "float()"),
        SYNC,
    ],
)
def test_all_others_are_sharded(source: str) -> None:
    assert levels(source) == []


def test_check_reports_it_in_native_code() -> None:
    state = SYNC.replace("model.named_parameters()", "model.state_dict().items()")
    for each in (SYNC, state):
        source = FSDP2.format(given="ignored_params=frozen") + each
        assert levels(source, Settings(traps=True)) == ["review"]
        assert levels(source) == []
        assert levels(FSDP2.format(given="") + each, Settings(traps=True)) == []
