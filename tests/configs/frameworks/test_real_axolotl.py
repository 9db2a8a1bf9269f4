"""The table of axolotl's keys, held against the schema of the installed axolotl."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_rules.frameworks.table import table
from tests.configs.frameworks.releases import difference, known

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
    for key in table("axolotl").keys.values():
        if key.values and key.name != "version":
            for value in key.values:
                config(**{key.name: value, **({"min_num_params": 1} if value == "SIZE_BASED_WRAP" else {})})
            with pytest.raises(ValueError, match=key.name):
                config(**{key.name: "ANOTHER"})


@pytest.mark.parametrize("name", [key.name for key in table("axolotl").keys.values() if key.verdict == "dead"])
def test_dead_keys_are_dropped(name: str) -> None:
    assert name not in _schema().FSDPConfig(**{name: "true"}).model_dump()


@pytest.mark.parametrize(
    "words",
    [
        'in ["adamw_8bit", "adamw_bnb_8bit"]',
        "FSDP2 does not support load_in_8bit or load_in_4bit",
        "cpu_ram_efficient_loading is not supported for Mxfp4Config",
        'data["fsdp_version"] = 1',
    ],
)
def test_what_axolotl_refuses_is_in_its_code(words: str) -> None:
    path = FILES["axolotl/utils/schemas/validation.py"].locate()
    assert words in Path(str(path)).read_text(encoding="utf-8")
