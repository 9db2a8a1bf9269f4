"""Rule for ``StateDictType.LOCAL_STATE_DICT``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

MESSAGE = "LOCAL_STATE_DICT returns FSDP1's flat parameters, which FSDP2 does not have"
ADVICE = (
    "save a sharded state with torch.distributed.checkpoint.save(get_model_state_dict(model), ...). Convert "
    "old files once with fsdp-migrate checkpoint convert (FSDP402)."
)


class LocalStateDict(Rule):
    """LOCAL_STATE_DICT.

    FSDP2 shards every parameter separately, so there is no flat parameter to save, and files with flat parameters do
    not load. Sharded states replace them: `get_model_state_dict(model)` written by `torch.distributed.checkpoint`.
    `fsdp-migrate checkpoint convert` converts old files.
    """

    id = "FSDP310"
    name = "local-state-dict"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.Attribute,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def save(model, rank):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), f"model_{rank}.pt")
"""
    after = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def save(model, rank):
    # TODO(fsdp-migrate FSDP310): LOCAL_STATE_DICT returns FSDP1's flat parameters, which FSDP2 does not have
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), f"model_{rank}.pt")
"""

    def visit(self, node: cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """Every mention with ``--to shim``; otherwise what governs a state dict is FSDP301's and FSDP302's affair."""
        if file.settings.to == "shim" and file.fsdp1(node) == "StateDictType.LOCAL_STATE_DICT":
            yield Diagnosis(node, Level.MANUAL, MESSAGE, ADVICE)
