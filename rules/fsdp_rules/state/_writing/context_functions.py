"""Whether a function that only gives the context for a kind of state can go: nothing calls it any more."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import call_of
from fsdp_rules.file.file import File
from fsdp_rules.file.other_files import other_file
from fsdp_rules.state._governing.entering import context_items
from fsdp_rules.state._governing.returned import Returned, uses
from fsdp_rules.state._writing.verdict import problem_of


def is_removable(found: Returned, rule: str) -> bool:
    """Whether all that names it is a ``with`` of the program that enters what it gives, and ``rule`` rewrites it."""
    files = [found.file, *(other_file(path, found.file) for path in naming(found))]
    entered = [file is not None and _is_entered(found, rule, file) for file in files]
    return True in entered and False not in entered


def naming(found: Returned) -> list[str]:
    """The other files whose text has its name."""
    word = re.compile(rb"\b%s\b" % found.function.name.value.encode())
    sources = found.file.project.sources
    return [path for path, text in sources.items() if path != found.file.path and word.search(text)]


def _is_entered(found: Returned, rule: str, file: File) -> bool | None:
    """Whether each use in ``file`` is such a ``with``; None where there is none."""
    name = found.function.name.value
    blocks = [_entering(use, file) for use in uses(found, file)]
    imported = [one for one in file.nodes(cst.ImportAlias) if one.evaluated_name == name]
    if not blocks:
        # What is imported for others is not seen to be used.
        return False if imported else None
    renamed = any(one.asname is not None for one in imported)
    return not renamed and all(block is not None and _is_rewritten(block, rule, file) for block in blocks)


def assumption_of(found: Returned) -> str:
    """What has to be true for it to go, "" for a private one: a file that says nothing of FSDP may call it too."""
    name = found.function.name.value
    return "" if name.startswith("_") else f"assumes no other file calls {name}"


def _entering(use: cst.CSTNode, file: File) -> cst.With | None:
    """The ``with`` that enters what the call of ``use`` gives."""
    call = call_of(use, file)
    item = file.parent(call) if call is not None else None
    block = file.parent(item) if item is not None else None
    if isinstance(block, cst.With) and any(call is one for _, one in context_items(block, file)):
        return block
    return None


def _is_rewritten(block: cst.With, rule: str, file: File) -> bool:
    call = context_items(block, file)[0][1]
    is_left_alone = file.suppressions.ignored(rule, call) or file.suppressions.gated(call) is not None
    return not is_left_alone and problem_of(block, file) is None
