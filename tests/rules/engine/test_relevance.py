"""Which files are parsed: all that a sharded model or one of its parameters reaches, whatever they do with it."""

from __future__ import annotations

import pytest

from fsdp_rules.loop import _flat_shards as shards
from fsdp_rules.loop import _reductions as reductions
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

MAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

{imports}

def main(net, device):
    model = FSDP(net, device_id=device)
    for p in model.parameters():
{calls}
"""
#: Whatever the rules know of one tensor, and of several, as a call; each call is all that its file has.
OF_ONE = {
    **{f"torch.{name}(w, 2)": name for name in (reductions.REDUCES | reductions.ORDERS | reductions.OF_TENSORS)},
    **{f"torch.{name}(w, 2)": name for name in shards.ROWS | shards.ROWS_OF_TENSORS | shards.FLATTENS},
    **{f"w.{name}()": name for name in shards.MEMORY | shards.FLATTENS | (reductions.REDUCES | reductions.ORDERS)},
}
OF_MANY = {f"torch.nn.utils.{name}(w)": name for name in reductions.OF_MANY | reductions.JOINS}
BY_PARAMETER = dict.fromkeys(OF_ONE, "look(p)")
BY_ALL = dict.fromkeys(OF_MANY, "look(list(model.parameters()))")
USES = {**BY_PARAMETER, **BY_ALL}


@pytest.fixture(scope="module")
def spoken_of() -> set[str]:
    """The uses that are found, each in a file of its own."""
    names = {use: f"use_{number}" for number, use in enumerate(USES)}
    imports = "".join(f"import {name}\n" for name in names.values())
    calls = "".join(f"        {names[use]}.{call}\n" for use, call in USES.items())
    files = {f"{name}.py": f"import torch\n\n\ndef look(w):\n    return {use}\n" for use, name in names.items()}
    files["main.py"] = MAIN.format(imports=imports, calls=calls)
    results = rewrite_tree({path: text.encode() for path, text in files.items()})
    found = set()
    for use, name in names.items():
        result = results.get(f"{name}.py", Unchanged())
        assert isinstance(result, Changed | Unchanged), result
        if any(finding.level in (Level.MANUAL, Level.REVIEW) for finding in result.findings):
            found.add(use)
    return found


@pytest.mark.parametrize("use", USES)
def test_a_file_that_has_this_operation_alone_is_parsed(use: str, spoken_of: set[str]) -> None:
    assert use in spoken_of
