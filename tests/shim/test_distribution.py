"""fsdp_compat as a distribution of its own says the same as the whole project about versions and dependencies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def project(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text())["project"]


def version_file(path: str) -> Path:
    named = tomllib.loads((ROOT / path).read_text())["tool"]["hatch"]["version"]["path"]
    return (ROOT / path).parent / named


def test_the_shims_distribution_agrees_with_the_project() -> None:
    whole, shim = project("pyproject.toml"), project("shim/pyproject.toml")
    for field in ("requires-python", "license"):
        assert shim[field] == whole[field]
    assert "version" in shim["dynamic"]
    assert "version" in whole["dynamic"]
    assert version_file("shim/pyproject.toml") == version_file("pyproject.toml")
    assert version_file("pyproject.toml").is_file()
    # numpy, which the extra has too, is for conversions: the shim imports none.
    wanted = [*whole["dependencies"], *whole["optional-dependencies"]["torch"]]
    assert sorted(shim["dependencies"]) == sorted(each for each in wanted if each.startswith(("packaging", "torch")))
