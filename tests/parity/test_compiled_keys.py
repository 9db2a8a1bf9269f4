"""Models and blocks that are compiled before they are wrapped: the keys that FSDP120 speaks of, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """
    import sys
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from common import CPU, Block, Net, finish, note, start

    def main():
        start()
        model = Net()
        COMPILE
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True)
        state = model.state_dict()
        note(len(state))
        note(sum("_orig_mod." in name for name in state))
        finish(sys.argv[1])

    if __name__ == "__main__":
        main()
"""
#: What is noted of an optimizer's state, which is loaded again.
STATE = """
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        # A step that no compiled code takes part in.
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = FSDP.optim_state_dict(model, optimizer)
        note(len(state["state"]))
        note(sum("_orig_mod." in name for name in state["state"]))
        note(sum("_orig_mod." in name for group in state["param_groups"] for name in group["params"]))
        for numbered in (True, False):
            kind = OptimStateKeyType.PARAM_ID if numbered else OptimStateKeyType.PARAM_NAME
            other = FSDP.rekey_optim_state_dict(state, kind, model, optim=optimizer)
            state = FSDP.rekey_optim_state_dict(other, OptimStateKeyType.PARAM_NAME, model, optim=optimizer)
            note(sum("_orig_mod." in str(name) for name in state["state"]))
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
        note(sum(one["exp_avg"].sum() for one in FSDP.optim_state_dict(model, optimizer)["state"].values()))
"""
FORMS = {
    "the model": ("model = torch.compile(model, backend='eager')", 12),
    "the blocks": (
        "for at, one in enumerate(model.blocks):\n            model.blocks[at] = torch.compile(one, backend='eager')",
        8,
    ),
    "a part": ("model.head = torch.compile(model.head, backend='eager')", 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_keys_lose_what_the_finding_says(pool: Pool, tmp_path: Path, form: str) -> None:
    text, number = FORMS[form]
    files = tree(train=TRAIN.replace("COMPILE", text))
    done = rewrite_tree(files)
    said = [found for found in done.findings if found.rule == "FSDP120"]
    assert [found.level.value for found in said] == ["review"]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert ({tuple(one) for one in before}, {tuple(one) for one in after}) == ({(12, number)}, {(12, 0)})


@pytest.mark.parametrize("form", FORMS)
def test_the_shim_keeps_the_names_of_an_optimizers_state(pool: Pool, tmp_path: Path, form: str) -> None:
    head, _, rest = TRAIN.replace("import Fully", "import OptimStateKeyType, Fully").partition("        model = FSDP(")
    end = rest.partition("in name for name in state))\n")[2]
    text = head.replace("COMPILE", FORMS[form][0]) + STATE.lstrip("\n") + end
    files = tree(train=text)
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    done = rewrite_tree(files, Settings(to="shim"))
    assert before[0][1] > 0
    assert train_tree(pool, done.files, tmp_path / "after") == before
