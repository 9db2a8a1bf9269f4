"""Arms the recorder in a Python process of the program, then runs the ``sitecustomize`` that this one hides."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_RECORDER = "fsdp_migrate_recorder"
#: Functions of the recorder that are called when a module has been imported.
_TOLD = {
    "torch": "arm",
    "fsdp_compat": "helpers_loaded",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "fsdp1_loaded",
}


class _After(importlib.abc.MetaPathFinder):
    """Calls the recorder as soon as the program has imported a module; a process without it costs nothing."""

    def __init__(self, name: str, function: str) -> None:
        self._name, self._function = name, function

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            load(module)
            getattr(_recorder("arm"), self._function)()

        spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec


class _HelpersLast(importlib.abc.MetaPathFinder):
    """Finds ``fsdp_compat`` beside the command where the program's own environment has none."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "fsdp_compat":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._directory])


def _recorder(module: str) -> ModuleType:
    if _RECORDER not in sys.modules:
        package = _HERE.parent
        spec = importlib.util.spec_from_file_location(
            _RECORDER, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[_RECORDER] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_RECORDER])
    return importlib.import_module(f"{_RECORDER}.{module}")


def _chain() -> None:
    this = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


if os.environ.get("FSDP_MIGRATE_RECORD"):
    sys.meta_path[:0] = [_After(name, function) for name, function in _TOLD.items()]
    if os.environ.get("FSDP_MIGRATE_HELPERS"):
        sys.meta_path.append(_HelpersLast(os.environ["FSDP_MIGRATE_HELPERS"]))
    _recorder("opened").watch()
_chain()
