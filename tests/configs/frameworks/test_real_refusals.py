"""Combinations that frameworks refuse (refusals.toml), held against the validators of the installed frameworks."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import logging
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from fsdp_rules.frameworks.refusals import Refusal, refusals
from tests.configs.frameworks.releases import installed

pytestmark = pytest.mark.filterwarnings("default")
#: Values as the frameworks spell them.
SPELLED = {"true": True, "false": False, "*": "something", "mxfp4config": "Mxfp4Config"}
#: What a validator asks for first.
BESIDE = {"check_relora": {"jagged_restart_steps": 10, "adapter": "lora"}}
#: What says in the code of its function that a combination is refused.
WORDS = {
    "quantization_bit": "Only 4-bit quantized model can use fsdp+qlora",
    "quantization_method": "HQQ quantization is incompatible with DeepSpeed ZeRO-3 or FSDP",
    "use_badam": "Layer-wise BAdam only supports DeepSpeed ZeRO-3 training",
    "galore_layerwise": "Distributed training does not support layer-wise GaLore",
    "apollo_layerwise": "Distributed training does not support layer-wise APOLLO",
}


def root_of(distribution: str) -> Path:
    """Where a framework is installed, which need not be importable."""
    try:
        return Path(str(importlib.metadata.distribution(distribution).locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"make frameworks installs {distribution}")


class Word(str):
    """A value of an enumeration, which axolotl up to 0.17 asks for its value."""

    @property
    def value(self) -> str:
        return str(self)


class Given(types.SimpleNamespace):
    """Arguments of which those that are not given are None."""

    def __getattr__(self, name: str) -> Any:
        return None


@pytest.fixture(scope="module")
def axolotl() -> Iterator[types.ModuleType]:
    """The validators alone: the package itself imports CUDA kernels."""
    root = root_of("axolotl")
    names = ("axolotl", "axolotl.utils", "axolotl.utils.schemas")
    for name in names:
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
    yield importlib.import_module("axolotl.utils.schemas.validation")
    for name in [one for one in sys.modules if one.partition(".")[0] == "axolotl"]:
        del sys.modules[name]


def checked(module: types.ModuleType, one: Refusal, without: str = "") -> None:
    """Give the validator of ``one`` its combination, less the key ``without``."""
    name = one.source.rpartition(", ")[2]
    owners = [owner for owner in vars(module).values() if isinstance(owner, type) and name in vars(owner)]
    if not owners and installed("axolotl") < Version("0.19"):
        pytest.skip("of axolotl from 0.19 on")
    owner = owners[0]
    inner: dict[str, Any] = {"activation_checkpointing": False}
    outer: dict[str, Any] = {"fsdp_version": one.version or 2, **BESIDE.get(name, {})}
    for key, values in one.when.items():
        if key != without:
            place = inner if "." in key else outer
            place[key.rpartition(".")[2]] = SPELLED.get(values[0], Word(values[0]))
    is_before = vars(owner)[name].decorator_info.mode == "before"
    outer["fsdp_config"] = inner if is_before else Given(**inner)
    getattr(owner, name)(outer if is_before else Given(**outer))


IN_VALIDATION = [one for one in refusals("axolotl") if "validation.py" in one.source]


@pytest.mark.parametrize("one", IN_VALIDATION, ids=lambda one: " ".join(one.when))
def test_axolotl_refuses_it(one: Refusal, axolotl: types.ModuleType) -> None:
    with pytest.raises(ValueError):
        checked(axolotl, one)


@pytest.mark.parametrize("one", IN_VALIDATION, ids=lambda one: " ".join(one.when))
def test_axolotl_takes_it_without_one_of_the_keys(one: Refusal, axolotl: types.ModuleType) -> None:
    checked(axolotl, one, next(iter(one.when)))


def test_axolotl_refuses_tables_on_the_cpu_in_its_code() -> None:
    (one,) = [one for one in refusals("axolotl") if "config.py" in one.source]
    assert "ple_cpu_offload" in one.when
    text = root_of("axolotl").joinpath("axolotl/utils/schemas/config.py").read_text(encoding="utf-8")
    if "ple_cpu_offload" not in text:
        pytest.skip("of axolotl from 0.19 on")
    assert "ple_cpu_offload is not compatible with FSDP" in text


def function_in(path: Path, name: str) -> ast.FunctionDef:
    """The function or method ``name`` of an installed file, which is not imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


@pytest.mark.parametrize(
    "one",
    [one for one in refusals("transformers") if one.reader == "LLaMA-Factory"],
    ids=lambda one: " ".join(one.when),
)
def test_what_llamafactory_refuses_is_in_its_code(one: Refusal) -> None:
    path, name = one.source.split(", ")
    function = function_in(root_of("llamafactory").joinpath("llamafactory", path), name)
    assert WORDS[next(iter(one.when))] in ast.unparse(function)


def swift(**given: object) -> None:
    """Run the functions of ms-swift that read ``--fsdp``, with a process for each GPU."""
    folder = root_of("ms-swift") / "swift"
    path = folder / "arguments" / "sft_args.py"

    def parsed(value: str) -> Any:
        return json.loads(Path(value).read_text(encoding="utf-8"))

    names: dict[str, Any] = {
        "__file__": str(path),
        "os": types.SimpleNamespace(path=os.path, environ={}),
        "is_mp": lambda: False,
        "json_parse_to_dict": parsed,
        "enable_fsdp_ram_efficient_loading": lambda: None,
        "logger": logging.getLogger("swift"),
    }
    for name in ("_init_fsdp", "_check_fsdp2_compatibility"):
        exec(compile(ast.Module([function_in(path, name)], []), str(path), "exec"), names)
    arguments = Given(**given)
    arguments._check_fsdp2_compatibility = lambda: names["_check_fsdp2_compatibility"](arguments)
    names["_init_fsdp"](arguments)


@pytest.mark.parametrize("one", refusals("swift"), ids=lambda one: " ".join(one.when))
def test_swift_refuses_it(one: Refusal) -> None:
    given = {key: SPELLED.get(values[0], values[0]) for key, values in one.when.items()}
    with pytest.raises(ValueError, match="FSDP2"):
        swift(**{**given, "fsdp": "fsdp2"})


@pytest.mark.parametrize(
    "given", [{}, {"device_map": "auto"}, {"save_only_model": False}, {"gradient_checkpointing": True}]
)
def test_swift_takes_other_arguments(given: dict[str, Any]) -> None:
    swift(fsdp="fsdp2", **given)
