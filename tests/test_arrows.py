"""Imports run one way, between the packages and between the rooms of each; files and classes stay small."""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
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
        "anyio",
        "editorconfig",
        "fsdp_rules",
        "jinja2",
        "jsonschema",
        "lsprotocol",
        "markdown_it",
        "markupsafe",
        "mcp",
        "numpy",
        "packaging",
        "pathspec",
        "picklescan",
        "platformdirs",
        "pip_requirements_parser",
        "pygls",
        "pygments",
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


# The rooms of each package, by what they may import: a line for each room, from the ground up.
ROOMS: dict[str, dict[str, set[str]]] = {
    "fsdp_rules": {
        "settings": set(),
        "fsdp1": set(),
        "frameworks": set(),
        "project": {"fsdp1"},
        "ir": set(),
        "values": {"fsdp1", "ir", "project"},
        "file": {"fsdp1", "project", "settings"},
        "verdict": {"file", "project"},
        "configuration": {"frameworks", "verdict"},
        "model": {"file", "fsdp1", "project", "verdict"},
        "construction": {"file", "fsdp1", "model", "project", "settings", "verdict"},
        "loop": {"file", "fsdp1", "model", "project", "verdict"},
        "state": {"file", "fsdp1", "model", "project", "settings", "verdict"},
        "beyond": {"file", "fsdp1", "model", "project", "verdict"},
        "hosts": {"configuration", "file", "frameworks", "fsdp1", "project", "settings", "verdict"},
        "retire": {"fsdp1", "project", "verdict"},
        "engine": {
            "beyond",
            "construction",
            "file",
            "fsdp1",
            "hosts",
            "loop",
            "model",
            "project",
            "retire",
            "settings",
            "state",
            "verdict",
        },
    },
    "fsdp_migrate": {
        "tree": set(),
        "configs": {"tree"},
        "checkpoints": {"tree"},
        "pipeline": {"configs", "tree"},
        "check": {"checkpoints", "pipeline", "tree"},
        "report": {"check", "checkpoints", "configs", "pipeline", "tree"},
        "verify": {"checkpoints", "pipeline", "report", "tree"},
        "trace": {"report", "tree", "verify"},
        "tune": {"tree"},
        "migration": {"pipeline", "report", "trace", "tree", "verify"},
        "lsp": {"check", "pipeline", "report", "trace", "tree"},
        "commands": {
            "check",
            "checkpoints",
            "lsp",
            "migration",
            "pipeline",
            "report",
            "trace",
            "tree",
            "tune",
            "verify",
        },
        "cli": {"commands"},
        "__main__": {"cli"},
    },
    "fsdp_compat": {
        "messages": set(),
        "own_vocabulary": set(),
        "vocabulary": {"own_vocabulary"},
        "tables": set(),
        "torch_": set(),
        "memory": {"tables", "torch_"},
        "units": set(),
        "planning": {"messages", "optimizers", "tables", "torch_", "units", "vocabulary"},
        "preflight": {"tables", "torch_", "units"},
        "optimizers": {"messages", "torch_", "units"},
        "states": {"messages", "optimizers", "planning", "torch_", "units", "vocabulary"},
        "step": {"messages", "planning", "torch_", "units"},
        "applying": {"messages", "optimizers", "planning", "step", "torch_", "units", "vocabulary"},
        "face": {"applying", "messages", "optimizers", "planning", "states", "step", "torch_", "units", "vocabulary"},
        "": {
            "face",
            "memory",
            "optimizers",
            "planning",
            "preflight",
            "states",
            "step",
            "torch_",
            "units",
            "vocabulary",
        },
    },
}
LINES = 300
METHODS = 20


@cache
def imports_of(package: str) -> dict[str, set[str]]:
    """What each module of ``package`` imports of it, for type checkers alone too."""
    root = PACKAGES[package]
    modules = {
        ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(root.rglob("*.py"))
    }
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                near = ".".join((package, *path.relative_to(root).parent.parts)).split(".")
                above = near[: len(near) + 1 - node.level] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                names.update(f"{source}.{alias.name}" for alias in node.names)
        # The longest part of a dotted name that is a module.
        known = {next((name[:end] for end in _ends(name) if name[:end] in modules), module) for name in names}
        found[module] = known - {module}
    return found


def _ends(name: str) -> list[int]:
    return [len(name), *(place for place in range(len(name) - 1, 0, -1) if name[place] == ".")]


def _room(module: str) -> str:
    return (module.split(".") + [""])[1]


def circles(arrows: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The groups of two or more in which each reaches each."""
    reached = {start: set(ends) for start, ends in arrows.items()}
    changed = True
    while changed:
        changed = False
        for ends in reached.values():
            more = set().union(*(reached.get(end, set()) for end in ends)) - ends
            changed |= bool(more)
            ends |= more
    groups = {frozenset(other for other in ends if start in reached.get(other, ())) for start, ends in reached.items()}
    return {group for group in groups if len(group) > 1}


def arrows_of(package: str) -> dict[str, set[str]]:
    """What each room of ``package`` imports from."""
    arrows: dict[str, set[str]] = defaultdict(set)
    for module, targets in imports_of(package).items():
        arrows[_room(module)] |= {_room(target) for target in targets} - {_room(module), ""}
    return arrows


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_imports_from_the_rooms_of_the_table_alone(package: str) -> None:
    arrows = {room: ends for room, ends in arrows_of(package).items() if ends}
    assert arrows == {room: ends for room, ends in ROOMS[package].items() if ends}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_circles(package: str) -> None:
    assert circles(arrows_of(package)) | circles(imports_of(package)) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_classes_stay_small(package: str) -> None:
    for path in PACKAGES[package].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods = [entry.name for entry in node.body if isinstance(entry, ast.FunctionDef)]
                public = [name for name in methods if not name.startswith("_")]
                assert len(public) <= METHODS, f"{path}: {node.name}"


def test_no_base_name_occurs_twice_in_a_package() -> None:
    for root in PACKAGES.values():
        names = Counter(path.name for path in root.rglob("*.py") if path.name != "__init__.py")
        assert {name for name, count in names.items() if count > 1} == set(), root
