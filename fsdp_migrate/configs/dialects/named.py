"""FSDP1's names as values of any document: Hydra's ``_target_``, and whatever else is imported by its path."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate.configs.nodes import Node
from fsdp_rules.configuration.block import Block, NoEditor
from fsdp_rules.fsdp1.names import FSDP1_NAMES, canonical

#: A comment of TOML, or a string that may be a path.
_QUOTED = re.compile(r"""#[^\n]*|(["'])([\w.]+)\1""")


def named(root: Node) -> Iterator[Block]:
    """One block for each value that is the path of a name of FSDP1's."""
    for node in root.scalars():
        known = canonical(node.value) if isinstance(node.value, str) else None
        if known is not None and known.partition(".")[0] in FSDP1_NAMES:
            yield Block("named", "file", {}, {"name": known}, (node.start, node.end), NoEditor())


def toml_strings(text: str) -> Node:
    """The strings of a file of TOML, without the tables that they are in."""
    found = _QUOTED.finditer(text)
    return Node(0, len(text), items=tuple(Node(one.start(2), one.end(2), one[2]) for one in found if one[2]))
