"""Rule for classes by which a framework runs FSDP1."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.hosts._lightning import lightning_advice
from fsdp_rules.hosts.host_table import host_of
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED


class HostStrategy(Rule):
    """`FSDPStrategy` of Lightning and NeMo, and similar classes.

    Lightning has no strategy of that name for FSDP2. `ModelParallelStrategy` leaves sharding to `configure_model`, and
    its sizes have to be written out: the default "auto" means one data-parallel rank per machine, so that on one
    machine every GPU gets the same data and nothing is sharded. Its checkpoints are sharded by default, those of
    `FSDPStrategy` are full. The list of frameworks is rules/fsdp_rules/hosts/hosts.toml.
    """

    id = "FSDP553"
    name = "host-strategy"
    alone = (r"FSDPStrategy|FSDPConfig|FSDPModelingHook|FSDPWrapper|build_fsdp|torch\.sagemaker|DDPFullyShardedNative",)
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    # The names of the list in which no word of FSDP is.
    spelled = ("DDPFullyShardedNativeStrategy", "torch.sagemaker")
    before = """
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

trainer = Trainer(devices=8, strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP"))
"""
    after = """
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

# TODO(fsdp-migrate FSDP553): Lightning's FSDPStrategy is FSDP1, and Lightning has no strategy of that name for FSDP2
trainer = Trainer(devices=8, strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP"))
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Calls of a class of the list."""
        if not isinstance(node, cst.Call):
            return
        full = file.resolved(node.func)
        host = host_of(full) if full else None
        if host is not None and not host.moved_in_python:
            advice = lightning_advice(node, file) if host.name == "lightning" else host.advice
            yield Diagnosis(node, Level.MANUAL, host.message, advice)
