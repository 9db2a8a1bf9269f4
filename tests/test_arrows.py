"""Imports run one way: fsdp_migrate → fsdp_rules → libcst, and fsdp_compat → torch; nothing points back."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "fsdp_migrate": ROOT / "fsdp_migrate",
    "fsdp_rules": ROOT / "rules/fsdp_rules",
    "fsdp_compat": ROOT / "shim/fsdp_compat",
}
ALLOWED = {
    "fsdp_migrate": {
        "click",
        "fsdp_rules",
        "jinja2",
        "markdown_it",
        "markupsafe",
        "numpy",
        "packaging",
        "pathspec",
        "picklescan",
        "rich",
        "ruamel",
        "safetensors",
        "tomli",
    },
    "fsdp_rules": {"libcst"},
    "fsdp_compat": {"packaging", "torch"},
}


#: Two formats that torch alone writes; the modules are imported only when one of them is asked for.
WRITERS = {"to_dcp.py", "to_full.py"}
#: Runs inside the user's program alone, where torch is.
RECORDER = PACKAGES["fsdp_migrate"] / "verify/recorder"


def _alone(path: Path) -> set[str]:
    return {"torch"} if path.name in WRITERS or path.is_relative_to(RECORDER) else set()


def _roots(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_stands_on(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files
    foreign = {str(path): _roots(path) - ALLOWED[package] - {package} - _alone(path) for path in files}
    assert {path: roots for path, roots in foreign.items() if roots} == {}
