"""Steps after the last recorded one cost nothing: nothing of the recorder is left in torch or in the model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.variants import Model


def listening(model: torch.nn.Module) -> list[object]:
    """Everything through which a recorder could be called."""
    hooks = [getattr(each, name) for each in model.modules() for name in ("_forward_pre_hooks", "_forward_hooks")]
    everywhere = [
        optimizer_hooks._global_optimizer_pre_hooks,
        optimizer_hooks._global_optimizer_post_hooks,
        module_hooks._global_forward_pre_hooks,
    ]
    functions = [torch.autograd.backward, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_norm_]
    functions += [torch.distributed.all_reduce, torch.distributed.all_gather_into_tensor]
    of_parameters = [len(parameter._backward_hooks or {}) for parameter in model.parameters()]
    return [*(hook for each in (*hooks, *everywhere) for hook in each.values()), *functions, *of_parameters]


def test_nothing_listens_after_the_last_recorded_step(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    before = listening(model)
    with recorded(Orders(str(tmp_path), 2, stop=False, deep=2)):
        step()
        assert listening(model) != before
        step()
        assert listening(model) == before


def test_the_recorder_ends_inside_a_step_that_others_listen_to(tmp_path: Path) -> None:
    model, seen = Model(), []
    optimizer = torch.optim.AdamW(model.parameters())
    with recorded(Orders(str(tmp_path), 2, stop=False)):
        handles = [
            optimizer_hooks.register_optimizer_step_pre_hook(lambda *_: seen.append("before")),
            optimizer_hooks.register_optimizer_step_post_hook(lambda *_: seen.append("after")),
        ]
        for _ in range(3):
            model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
            optimizer.step()
    for handle in handles:
        handle.remove()
    assert seen == ["before", "after"] * 3
