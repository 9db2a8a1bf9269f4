"""Rule for names that stand for FSDP1's API or for something else, by what has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.reads import is_read
from fsdp_rules.fsdp1.names import FSDP_PACKAGE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED


class SeveralMeanings(Rule):
    """Name imported from FSDP1 and from elsewhere.

    Where the arms of an `if` import one name from torch and from another library, a use below both may be either. It is
    listed and not rewritten. A use inside of one arm is read by the import of that arm.
    """

    id = "FSDP906"
    name = "several-meanings"
    what_to_test = UNCHECKED
    visits = (cst.ImportFrom, cst.Name)
    shim = True
    before = """
def wrap(model, old):
    if old:
        from fairscale.nn import FullyShardedDataParallel as FSDP
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    return FSDP(model)
"""
    after = """
def wrap(model, old):
    if old:
        from fairscale.nn import FullyShardedDataParallel as FSDP
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    # TODO(fsdp-migrate FSDP906): FSDP comes from fairscale or from torch here, by what ran above
    return FSDP(model)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Each use below imports of different things, and FSDP1's imports among these, which are kept."""
        if type(node) is cst.ImportFrom:
            yield from _kept(node, file)
        if type(node) is not cst.Name or len(found := file.references.meanings(node)) < 2:
            return
        if not is_read(node, file.layout):
            return
        homes = " or from ".join(sorted({target.partition(".")[0] for target in found}))
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{node.value} comes from {homes} here, by what ran above",
            "import the two under different names, then run this tool again",
        )


def _kept(node: cst.ImportFrom, file: File) -> Iterator[Diagnosis]:
    if isinstance(node.names, cst.ImportStar):
        return
    names = (alias.evaluated_alias or alias.evaluated_name for alias in node.names)
    shared = [name for name in names if file.references.is_shared(name)]
    if shared and FSDP_PACKAGE in file.code(node):
        message = f"this import is kept, since {', '.join(shared)} is imported from elsewhere too"
        yield Diagnosis(node, Level.INFO, message, "remove it once nothing below reads FSDP1's")
