"""Composer's own configuration classes against the table, and what they make of a migrated file.

Composer requires an older torch than the others, so that its one file of these classes is read by itself.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import sys
import warnings
from typing import Any

import pytest
import yaml
from packaging.version import Version

from fsdp_rules.frameworks.table import table
from tests.configs.frameworks.releases import difference, installed, known
from tests.configs.helpers import migrated

try:
    PLACE = importlib.metadata.distribution("mosaicml").locate_file("composer/utils/parallelism.py")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("make frameworks installs mosaicml", allow_module_level=True)


WITHOUT_DTYPES = installed("composer") < Version("0.32")


@pytest.mark.skipif(not WITHOUT_DTYPES, reason="of Composer before 0.32")
def test_older_releases_drop_the_dtypes_of_a_migrated_file(classes: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        classes.FSDP2Config.from_compatible_attrs({"reshard_after_forward": True, "mixed_precision": "PURE"})
    assert any("mixed_precision" in str(one.message) for one in told)


@pytest.fixture(scope="module")
def classes() -> Any:
    spec = importlib.util.spec_from_file_location("composer_parallelism", str(PLACE))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_has_the_fields_of_both_versions(classes: Any) -> None:
    first = {one.name for one in dataclasses.fields(classes.FSDPConfig) if not one.name.startswith("_")}
    second = classes.FSDP2Config.settable_attrs()
    assert set(table("composer").keys) == first | second - {"device_mesh"}
    expected = {name for name, row in known("composer").items() if row.verdict in ("kept", "values")}
    assert not (said := difference("composer", expected, second - {"device_mesh"})), said


def test_the_table_has_the_defaults_of_fsdp1(classes: Any) -> None:
    defaults = {one.name: one.default for one in dataclasses.fields(classes.FSDPConfig)}
    for name, row in table("composer").keys.items():
        if name in defaults and row.default:
            assert str(defaults[name]).lower() == row.default.lower(), name


@pytest.mark.skipif(WITHOUT_DTYPES, reason="of Composer from 0.32 on, which a migrated file assumes")
@pytest.mark.parametrize(("strategy", "reshard"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_a_migrated_file_means_the_same_and_nothing_is_dropped(strategy: str, reshard: bool, classes: Any) -> None:
    text = (
        f"fsdp_config:\n  sharding_strategy: {strategy}\n  mixed_precision: PURE\n  activation_checkpointing: true\n"
        "  limit_all_gathers: true\n  use_orig_params: true\n"
    )
    made = yaml.safe_load(migrated(text, "pretrain.yaml")[0])["fsdp_config"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        config = classes.FSDP2Config.from_compatible_attrs(made)
    assert not [one for one in told if "will be ignored" in str(one.message)]
    old = classes.FSDPConfig(**yaml.safe_load(text)["fsdp_config"])
    assert config.reshard_after_forward is reshard
    for name in ("mixed_precision", "activation_checkpointing", "activation_cpu_offload", "state_dict_type"):
        assert getattr(config, name) == getattr(old, name), name
