"""The table of axolotl's keys, held against the schema of the installed axolotl."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from tests.configs.frameworks.releases import difference, installed, known

try:
    FILES = {str(path): path for path in importlib.metadata.files("axolotl") or ()}
except importlib.metadata.PackageNotFoundError:
    pytest.skip("make frameworks installs axolotl", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")


def _schema() -> ModuleType:
    """The file of the schema alone: the package imports CUDA kernels."""
    path = FILES["axolotl/utils/schemas/fsdp.py"].locate()
    spec = importlib.util.spec_from_file_location("axolotl_fsdp_schema", str(path))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_has_the_fields_of_the_installed_schema() -> None:
    fields = {name.removeprefix("fsdp_") for name in _schema().FSDPConfig.model_fields}
    expected = {name for name, key in known("axolotl").items() if key.verdict != "dead"}
    assert not (said := difference("axolotl", expected, fields)), said


def test_accepted_values_are_those_of_the_installed_schema() -> None:
    config = _schema().FSDPConfig
    for key in known("axolotl").values():
        if key.values and key.name != "version":
            for value in key.values:
                config(**{key.name: value, **({"min_num_params": 1} if value == "SIZE_BASED_WRAP" else {})})
            with pytest.raises(ValueError, match=key.name):
                config(**{key.name: "ANOTHER"})


@pytest.mark.parametrize("name", [key.name for key in known("axolotl").values() if key.verdict == "dead"])
def test_dead_keys_are_dropped(name: str) -> None:
    assert name not in _schema().FSDPConfig(**{name: "true"}).model_dump()


def test_a_file_without_a_version_is_one() -> None:
    path = FILES["axolotl/utils/schemas/validation.py"].locate()
    text = Path(str(path)).read_text(encoding="utf-8")
    # Before 0.18 nothing is written into the file, and accelerate's own default counts.
    words = 'data["fsdp_version"] = 1' if installed("axolotl") >= Version("0.18") else 'get("fsdp_version", 1)'
    assert words in text
