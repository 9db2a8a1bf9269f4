"""Rule for names that stand for FSDP1's API or for something else, by what has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.reads import is_read
from fsdp_rules.fsdp1.names import FSDP_PACKAGE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED


class SeveralMeanings(Rule):
    """Name imported from FSDP1 and from elsewhere.

    If the branches of an `if` import one name from torch and from another library, a use after the `if` may mean
    either. All such uses in a file are listed in one finding and not rewritten. Inside a branch, the import of that
    branch counts.
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

    def visit(self, node: cst.ImportFrom | cst.Name, file: File) -> Iterable[Diagnosis]:
        """Each use below imports of different things, and FSDP1's imports among these, which are kept."""
        if type(node) is cst.ImportFrom:
            yield from _kept(node, file)
            return
        for homes, reads in _reads(file.module, file).items():
            if reads[0] is node:
                yield _several(homes, reads, file)


@once
def _reads(module: cst.Module, file: File) -> dict[str, list[cst.Name]]:
    """The names that may be of several packages, by those, in the order of the file."""
    found: dict[str, list[cst.Name]] = {}
    for node in file.nodes(cst.Name):
        if len(targets := file.references.meanings(node)) > 1 and is_read(node, file.layout):
            homes = " or from ".join(sorted({target.partition(".")[0] for target in targets}))
            found.setdefault(homes, []).append(node)
    return {homes: sorted(reads, key=lambda node: file.span(node)) for homes, reads in found.items()}


def _several(homes: str, reads: list[cst.Name], file: File) -> Diagnosis:
    """One finding for all ``reads``, which the same imports make: at the first, with the lines of the others."""
    names = sorted({node.value for node in reads})
    others = sorted({file.span(node).line for node in reads} - {file.span(reads[0]).line})
    places = f" (line{'s' * (len(others) > 1)} {', '.join(map(str, others))} too)" if others else ""
    return Diagnosis(
        reads[0],
        Level.MANUAL,
        f"{', '.join(names)} {'come' if len(names) > 1 else 'comes'} from {homes} here, by what ran above{places}",
        "import them under different names, then run this tool again",
        claims=tuple(reads[1:]),
    )


def _kept(node: cst.ImportFrom, file: File) -> Iterator[Diagnosis]:
    if isinstance(node.names, cst.ImportStar):
        return
    names = (alias.evaluated_alias or alias.evaluated_name for alias in node.names)
    shared = [name for name in names if file.references.is_shared(name)]
    if shared and FSDP_PACKAGE in file.code(node):
        message = f"this import is kept because {', '.join(shared)} is imported from elsewhere too"
        yield Diagnosis(node, Level.INFO, message, "remove it once no code below uses the FSDP1 name")
