"""Models and blocks that are compiled before they are wrapped: the keys that FSDP120 speaks of, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

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
