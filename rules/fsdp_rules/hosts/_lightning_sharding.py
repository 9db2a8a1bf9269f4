"""A call of Lightning's ``FSDPStrategy``, and the statements that shard its module in ``configure_model``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.printing import line_with
from fsdp_rules.hosts._imported import renamed_import
from fsdp_rules.hosts._lightning_module import Built
from fsdp_rules.hosts._lightning_options import Wanted
from fsdp_rules.hosts._lightning_trainer import Trained, trained
from fsdp_rules.hosts.host_table import host_of
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.verdict.diagnosis import Build, Edit, InsertAfter, InsertBefore, Replace, ReplaceStatement

_CHECKPOINTING = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing"


def sharding(wanted: Wanted, made: Built, last: cst.CSTNode, file: File) -> Edit:
    """The edit that shards what ``made`` says, behind the statement ``last``."""
    build = _lines(wanted, made, file, last)
    return InsertBefore(last, build) if isinstance(last, cst.Return) else InsertAfter(last, build)


def policy(dtypes: dict[str, str], file: File) -> str:
    """``MixedPrecisionPolicy`` with these ``dtypes``, dotted names by argument."""
    given = ", ".join(f"{name}={file.ref(full)}" for name, full in dtypes.items())
    return f"{file.ref('torch.distributed.fsdp.MixedPrecisionPolicy')}({given})"


def _lines(wanted: Wanted, made: Built, file: File, place: cst.CSTNode) -> Build:
    fully_shard = file.ref("torch.distributed.fsdp.fully_shard")
    mesh, module = file.fresh(place, "mesh", "shard_mesh"), file.fresh(place, "module", "unit", "layer")
    this = made.this
    lines = [f"if {this}.device_mesh is not None:", f'    {mesh} = {this}.device_mesh["data_parallel"]']
    texts = {"mesh": mesh, **wanted.options}
    if "mp_policy" in texts:
        named = file.fresh(place, "mp_policy", "precision_policy")
        lines.append(f"    {named} = {texts['mp_policy']}")
        texts["mp_policy"] = named
    options = ", ".join(f"{name}={text}" for name, text in texts.items())
    layers, checkpointed = (
        names[0] if len(names) == 1 else f"({', '.join(names)})" for names in (wanted.layers, wanted.checkpointed)
    )
    for root in made.roots:
        if wanted.checkpointed:
            lines.append(f"    {file.ref(_CHECKPOINTING)}(")
            lines.append(f"        {this}.{root}, check_fn=lambda {module}: isinstance({module}, {checkpointed})")
            lines.append("    )")
        if wanted.layers:
            lines.append(f"    for {module} in reversed(list({this}.{root}.modules())):")
            lines.append(f"        if isinstance({module}, {layers}):")
            lines.append(f"            {fully_shard}({module}, {options})")
        lines.append(f"    {fully_shard}({this}.{root}, {options})")
        register = file.ref("torch.distributed.fsdp.register_fsdp_forward_method") if made.methods.get(root) else ""
        lines += [f'    {register}({this}.{root}, "{method}")' for method in made.methods.get(root, ())]
    return lambda code: "\n".join(lines)


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
