"""Other names for a model's tensors, from a file or from a function of the user's."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.entries import spelled
from fsdp_migrate.tree.regular import read_regular

_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


def renamed(state: State, names: str) -> State:
    """The state of a model under the names that ``names`` gives: a file, or ``module:function``.

    Raises :class:`CannotConvert` where it cannot be read, names what is not there, or makes one name of two.
    """
    is_function = _FUNCTION.fullmatch(names) is not None and not Path(names).exists()
    rename = _function(names) if is_function else _of_file(Path(names), {spelled(key) for key in state.entries})
    new: dict[str, str] = {}
    for key in state.entries:
        name = rename(spelled(key))
        if not isinstance(name, str) or not name:
            raise CannotConvert(f"{names}: the new name of {spelled(key)} is {name!r}, not a text")
        new[spelled(key)] = name
    count = sum(old != name for old, name in new.items())
    found = state.renamed(lambda key: (new[spelled(key)],))
    return found.noting(f"renamed {count} of {len(new)} tensors by {names}")


def _of_file(path: Path, known: set[str]) -> Callable[[str], object]:
    try:
        told = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CannotConvert(
            f"{path}: the names cannot be read: {error}; pass a JSON object of old and new names, or MODULE:FUNCTION"
        ) from error
    if not isinstance(told, dict):
        raise CannotConvert(f"{path}: not a JSON object of old and new names")
    if unknown := sorted(told.keys() - known):
        shown = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
        raise CannotConvert(f"{path}: the checkpoint has no {shown}; checkpoint inspect --all shows all names")
    return lambda name: told.get(name, name)


def _function(names: str) -> Callable[[str], object]:
    module, _, function = names.partition(":")
    # As `python -m` finds it: what the user writes for this stands where the command is started.
    sys.path.insert(0, str(Path.cwd()))
    try:
        rename = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise CannotConvert(f"{names}: cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))

    def called(name: str) -> object:
        try:
            return rename(name)
        except Exception as error:
            raise CannotConvert(f"{names}: failed for {name}: {type(error).__name__}: {error}") from error

    return called
