"""Objects of the project that are called as functions are: what their class wraps is followed."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

WRAPPING = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Wrapper:
    def __init__(self, sync=True):
        self.sync = sync

    def __call__(self, net):
        return FSDP(net, sync_module_states=self.sync)

wrap = Wrapper()
"""


@pytest.mark.parametrize(
    ("imports", "called"),
    [
        ("from wrapping import wrap", "wrap"),
        ("import wrapping", "wrapping.wrap"),
        ("from wrapping import wrap as w", "w"),
    ],
)
def test_what_an_object_of_another_file_wraps_is_followed(imports: str, called: str) -> None:
    source = f"{imports}\n\nclass Work:\n    def __init__(self, net):\n        self.net = {called}(net)\n"
    used = "    def width(self):\n        return self.net.module.width\n"
    said = findings(source + used, wrapping=WRAPPING)
    assert [(one.rule, one.line) for one in said] == [("FSDP206", source.count("\n") + 2)]
