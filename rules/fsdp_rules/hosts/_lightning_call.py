"""A call of Lightning's ``FSDPStrategy``, with all that its own file says of it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.printing import line_with
from fsdp_rules.hosts._imported import renamed_import
from fsdp_rules.hosts._lightning_options import Wanted
from fsdp_rules.hosts._lightning_trainer import Trained, trained
from fsdp_rules.hosts.host_table import host_of
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.verdict.diagnosis import Edit, Replace, ReplaceStatement

_PACKAGES = ("lightning.pytorch.strategies", "pytorch_lightning.strategies")


def is_strategy(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is a call of one of Lightning's classes that are FSDP1."""
    full = file.resolved(node.func) if isinstance(node, cst.Call) else None
    host = host_of(full) if full else None
    return host is not None and host.name == "lightning"


@dataclass
class StrategyCall:
    """``name`` is what the new class is called there, ``renamed`` are the edits of its import. ``reason`` says why the
    call is kept, whatever the module is; empty if it can move.
    """

    node: cst.Call
    wanted: Wanted
    run: Trained
    name: str = ""
    renamed: tuple[ReplaceStatement, ...] = ()
    reason: str = ""

    @classmethod
    def read(cls, node: cst.Call, file: File) -> StrategyCall:
        """What ``file`` says of the call ``node``."""
        found = cls(node, Wanted.read(node, file), trained(node, file))
        found.reason = found.wanted.reason or found.run.reason
        imported = renamed_import(node, _PACKAGES, "FSDPStrategy", "ModelParallelStrategy", file)
        if imported is not None:
            found.name, found.renamed = imported
        elif not found.reason:
            found.reason = "its name is used in other places"
        return found

    def moved(self, file: File) -> tuple[Edit, ...]:
        """The edits that make the new strategy in its place."""
        texts = {"data_parallel_size": self.run.size, "tensor_parallel_size": "1", **self.wanted.strategy}
        parts = [f"{key}={text}" for key, text in texts.items()]
        text = f"{self.name}({', '.join(parts)})"
        if line_with(text, self.node, False, file) > LINE_LENGTH:
            text = f"{self.name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
        return Replace(self.node, lambda code: text), *self.renamed
