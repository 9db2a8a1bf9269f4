"""Which parameters an optimizer was given, told by a file: its states are numbered in their order, and name none.

The file is JSON: a list with a list of names for each param group, in the order in which the optimizer had groups and
parameters. :data:`RECIPE` writes it in the program that saved the checkpoint, with the model as FSDP has wrapped it;
with ``use_orig_params=False`` the names are then those of flat parameters.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from fsdp_migrate.checkpoints.convert.keys.names import DDP, clean
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.tree.regular import read_regular

#: Writes the JSON, where the model and its optimizer have been made.
RECIPE = (
    "names = {p: n for n, p in model.named_parameters()}; pathlib.Path('groups.json').write_text("
    "json.dumps([[names[p] for p in group['params']] for group in optimizer.param_groups]))"
)
#: How to get one.
ADVICE = f"write one in the program that saved the checkpoint, after model and optimizer are built: {RECIPE}"


def read_groups(path: Path) -> list[list[str]]:
    """The names of each param group, without what wrappers leave in them.

    Raises :class:`CannotConvert` for anything else.
    """
    try:
        told = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CannotConvert(f"{path}: the groups cannot be read: {error}; {ADVICE}") from error
    if not isinstance(told, list) or not told or not all(isinstance(group, list) for group in told):
        raise CannotConvert(f"{path}: not a list of lists of names, one for each param group; {ADVICE}")
    for group in told:
        for name in group:
            if not isinstance(name, str) or not name:
                raise CannotConvert(f"{path}: {json.dumps(name)[:80]} is not a parameter name; {ADVICE}")
    return without_wrappers(told, str(path))


def without_wrappers(groups: list[list[str]], where: str) -> list[list[str]]:
    """The names as the bare model has them. Raises :class:`CannotConvert` where one is there twice."""
    cleaned = [[clean(name) for name in group] for group in groups]
    names = [name for group in cleaned for name in group]
    ddp = DDP if all(name.startswith(DDP) for name in names) else ""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise CannotConvert(
            f"{where}: {twice[0]} occurs {names.count(twice[0])} times, but an optimizer has each parameter once"
        )
    return [[name.removeprefix(ddp) for name in group] for group in cleaned]
