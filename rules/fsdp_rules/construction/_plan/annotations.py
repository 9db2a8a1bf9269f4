"""Annotations that name FSDP1's configuration, where what they annotate becomes FSDP2's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.slots import ENTRIES
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Build, Replace

#: What values of FSDP1's classes become; a strategy becomes the arguments of fully_shard.
BECOMES = {
    "CPUOffload": "torch.distributed.fsdp.OffloadPolicy",
    "MixedPrecision": "torch.distributed.fsdp.MixedPrecisionPolicy",
    "ShardingStrategy": "",
}


def annotation_edits(annotation: cst.Annotation | None, part: str, file: File) -> Iterator[Replace]:
    """What the names of FSDP1 in ``annotation`` become, or (``part``) those of that element of the tuple it names."""
    if annotation is None:
        return
    node: cst.CSTNode = annotation.annotation
    if part == ENTRIES:
        return
    if part:
        entries = node.slice if isinstance(node, cst.Subscript) else ()
        if int(part) >= len(entries):
            return
        node = entries[int(part)]
    for name in (*file.inside(node, cst.Name), *file.inside(node, cst.Attribute)):
        known = file.fsdp1(name)
        if known in BECOMES and not isinstance(file.parent(name), cst.Attribute):
            yield Replace(name, _named(BECOMES[known], file))


def _named(full: str, file: File) -> Build:
    text = file.ref(full) if full else "dict"
    return lambda code: text
