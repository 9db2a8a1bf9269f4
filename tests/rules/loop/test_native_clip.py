"""FSDP215: torch's own clipping on an FSDP1 model."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, check_rewrites, findings

WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
CLIP = "torch.nn.utils.clip_grad_norm_"


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP215"]


def test_models_that_are_never_wrapped_are_left_alone() -> None:
    check_noop(f"import torch\n\nnorm = {CLIP}(model.parameters(), 1.0)\n")


def test_an_unused_norm_changes_nothing_in_the_line() -> None:
    assert levels(WRAP + f"model = FSDP(model)\n{CLIP}(model.parameters(), 1.0)\n") == ["manual"]


@pytest.mark.parametrize("limit", ["1e6", "100000.0", "max_norm=1_000_000"])
def test_a_limit_that_nothing_reaches_is_an_assumption(limit: str) -> None:
    assert levels(WRAP + f"model = FSDP(model)\n{CLIP}(model.parameters(), {limit})\n") == ["review"]
    assert levels(WRAP + f"model = FSDP(model)\nnorm = {CLIP}(model.parameters(), {limit})\n")[:1] == ["manual"]


@pytest.mark.parametrize("limit", ["float('inf')", "math.inf", "max_norm=torch.inf"])
def test_an_infinite_limit_clips_nothing(limit: str) -> None:
    assert levels(WRAP + f"import math\nmodel = FSDP(model)\n{CLIP}(model.parameters(), {limit})\n") == []
    assert levels(WRAP + f"import math\nmodel = FSDP(model)\nreturned = {CLIP}(model.parameters(), {limit})\n")


@pytest.mark.parametrize("limit", ["10.0", "limit", "float(limit)", "config.clip"])
def test_any_other_limit_may_clip(limit: str) -> None:
    assert levels(WRAP + f"model = FSDP(model)\n{CLIP}(model.parameters(), {limit})\n") == ["manual"]


def test_a_norm_that_is_gathered_is_fsdp2_already() -> None:
    assert levels(WRAP + f"model = FSDP(model)\nnorm = {CLIP}(model.parameters(), 1.0).full_tensor()\n") == []


def test_another_model_of_the_same_function() -> None:
    assert levels(WRAP + f"model = FSDP(model)\nnorm = {CLIP}(critic.parameters(), 1.0)\n") == []


def test_edits_inside_the_call_are_kept() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.utils import clip_grad_norm_

        def step(model, parameters):
            model = FSDP(model)
            return clip_grad_norm_(
                filter(trains, model.module.parameters()),
                1.0,  # as in the paper
            ).item()
        """,
        """
        from torch.distributed.fsdp import fully_shard
        from torch.nn.utils import clip_grad_norm_

        def step(model, parameters):
            fully_shard(model)
            # TODO(fsdp-migrate FSDP215): FSDP1 clipped by each rank's own norm, FSDP2 clips by the global norm
            return clip_grad_norm_(
                filter(trains, model.parameters()),
                1.0,  # as in the paper
            ).full_tensor().item()
        """,
    )


def test_a_parameter_that_may_hold_the_model_of_another_file() -> None:
    other = WRAP + "from torch.nn.parallel import DistributedDataParallel\n\nclass T:\n"
    other += "    def __init__(self, net):\n        self.model = FSDP(net)\n"
    source = f"import torch\n\ndef step(trainer):\n    {CLIP}(trainer.model.parameters(), 1.0)\n"
    assert levels(source, trainer=other) == ["review"]
    assert levels(source, trainer=other.replace("from torch.nn.parallel import DistributedDataParallel\n", "")) == [
        "manual"
    ]


def test_the_arm_for_other_models_is_left_alone() -> None:
    source = f"""
def step(model, use_fsdp):
    if use_fsdp:
        model.clip_grad_norm_(1.0)
    else:
        {CLIP}(model.parameters(), 1.0)

step(FSDP(net), True)
"""
    assert levels(WRAP + source) == []


def test_a_norm_of_what_may_be_unsharded_is_not_gathered() -> None:
    source = f"""
def step(model, use_fsdp):
    if use_fsdp:
        model = FSDP(model)
    return {CLIP}(model.parameters(), 1.0)
"""
    assert levels(WRAP + source) == ["manual"]


@pytest.mark.parametrize("test", ["strategy in (FULL, GRAD_OP)", "strategy.name != 'NO_SHARD'"])
def test_arms_of_one_wrapped_model_are_no_arms_for_others(test: str) -> None:
    source = f"""
def train(net, strategy, loss):
    model = FSDP(net, sharding_strategy=strategy)
    loss(model).backward()
    if {test}:
        {CLIP}(model.parameters(), 1.0)
    else:
        model.clip_grad_norm_(1.0)
"""
    assert levels(WRAP + source) == ["manual"]


@pytest.mark.parametrize("test", ["hasattr(model, 'clip_grad_norm_')", "isinstance(model, FSDP)"])
def test_a_test_of_the_model_itself_tells_its_arms_apart(test: str) -> None:
    source = f"""
def train(net, loss):
    model = FSDP(net)
    if {test}:
        model.clip_grad_norm_(1.0)
    else:
        {CLIP}(model.parameters(), 1.0)
"""
    assert levels(WRAP + source) == []


@pytest.mark.parametrize("limit", ["1.0", "1e6", "float('inf')"])
@pytest.mark.parametrize("ignored", ["ignored_modules=[net.lora]", "ignored_states=list(net.lora.parameters())"])
def test_ignored_parameters_beside_sharded_ones_raise(ignored: str, limit: str) -> None:
    source = WRAP + f"model = FSDP(net, {ignored})\n{CLIP}(model.parameters(), {limit})\n"
    (found,) = [one for one in findings(source) if one.rule == "FSDP215"]
    assert (found.level.value, found.message) == (
        "manual",
        "ignored (plain) and sharded parameters are mixed, which raises if both are trained",
    )


def test_ignored_parameters_of_another_model_say_nothing() -> None:
    source = f"other = FSDP(head, ignored_modules=[head.bias])\nmodel = FSDP(net)\n{CLIP}(model.parameters(), 1.0)\n"
    (found,) = [one for one in findings(WRAP + source) if one.rule == "FSDP215"]
    assert "ignored" not in found.message
