"""What kind of state a literal names, where a star import gives ``StateDictType``."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings, rewrite_tree

CLASS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SAVE = """
def save(net):
    model = FSDP(net)
    with FSDP.state_dict_type(model, {}):
        return model.state_dict()
"""
STARS = {
    "the package": "from torch.distributed.fsdp import *\n",
    "its file": "from torch.distributed.fsdp.api import *\n",
    "a file of the project": "from base import *\n",
    "one that names it": "from named import *\n",
}
OTHERS = {
    "base": "from torch.distributed.fsdp import *\n",
    "named": "from torch.distributed.fsdp import StateDictType\n",
}


def said(source: str) -> list[str]:
    return [one.message for one in findings(source, **OTHERS) if one.rule in ("FSDP301", "FSDP309", "FSDP310")]


@pytest.mark.parametrize("star", STARS.values(), ids=STARS)
def test_a_literal_is_what_it_says(star: str) -> None:
    for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        messages = said(CLASS + star + SAVE.format(f"StateDictType.{kind}"))
        assert messages and not any("assum" in message and " or " in message for message in messages), messages
        named = said(CLASS + star + "KIND = StateDictType." + kind + "\n" + SAVE.format("KIND"))
        assert named == messages
    assert any("LOCAL" in message for message in said(CLASS + star + SAVE.format("StateDictType.LOCAL_STATE_DICT")))


def test_a_class_of_the_program_is_another_one() -> None:
    own = "class StateDictType:\n    FULL_STATE_DICT = pick()\n"
    messages = said(CLASS + STARS["the package"] + own + SAVE.format("StateDictType.FULL_STATE_DICT"))
    assert any("assum" in message or "cannot" in message for message in messages)


@pytest.mark.parametrize(
    "main",
    [
        "from wrappers import *\n\ndef wrap(net):\n    return FullyShardedDataParallel(net, use_orig_params=True)\n",
        "from wrappers import *\n\nCLASS = FullyShardedDataParallel\n\ndef wrap(net):\n    return CLASS(net)\n",
    ],
)
def test_a_file_that_has_the_class_by_a_star_alone_is_read(main: str) -> None:
    wrappers = "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    results = rewrite_tree({"wrappers.py": wrappers.encode(), "main.py": main.encode()})
    assert b"fully_shard(net)" in results["main.py"].source  # type: ignore[union-attr]
