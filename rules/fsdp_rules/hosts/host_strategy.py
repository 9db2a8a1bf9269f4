"""Rule for classes by which a framework runs FSDP1."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.hosts.host_table import host_of
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED


class HostStrategy(Rule):
    """FSDP1's strategies and configurations of NeMo, Ray Train, Composer, MMEngine, d2go and SageMaker.

    The finding names the class, or a class that extends it, and what to write instead. The list of frameworks is
    rules/fsdp_rules/hosts/hosts.toml. Lightning's and torchtnt's strategies are rewritten (FSDP556, FSDP555).
    """

    id = "FSDP553"
    is_wrap = True
    name = "host-strategy"
    alone = (r"FSDPStrategy|FSDPConfig|FSDPModelingHook|FSDPWrapper|build_fsdp|torch\.sagemaker",)
    what_to_test = HOSTED
    visits = (cst.Call, cst.ClassDef)
    shim = True
    # The names of the list in which no word of FSDP is.
    spelled = ("torch.sagemaker",)
    before = """
from lightning.pytorch import Trainer
from ray.train.lightning import RayFSDPStrategy

trainer = Trainer(devices=8, strategy=RayFSDPStrategy(sharding_strategy="SHARD_GRAD_OP"))
"""
    after = """
from lightning.pytorch import Trainer
from ray.train.lightning import RayFSDPStrategy

# TODO(fsdp-migrate FSDP553): RayFSDPStrategy is Lightning's FSDPStrategy, which is FSDP1
trainer = Trainer(devices=8, strategy=RayFSDPStrategy(sharding_strategy="SHARD_GRAD_OP"))
"""

    def visit(self, node: cst.Call | cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """Calls of a class of the list, and classes that extend one."""
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                host = host_of(file.resolved(base.value) or "")
                if host is not None:
                    told = f"{node.name.value} extends a class of {host.title}, which is FSDP1"
                    yield Diagnosis(node, Level.MANUAL, told, host.advice)
        else:
            host = host_of(file.resolved(node.func) or "")
            if host is not None and not host.moved_in_python:
                yield Diagnosis(node, Level.MANUAL, host.message, host.advice)
