"""What the wheel of fsdp-migrate holds: everything below ``fsdp_migrate``, so that it clashes with no other package.

In the repository ``fsdp_rules`` is a package next to the command, and ``fsdp_compat`` is another distribution. In the
wheel the rules are ``fsdp_migrate.fsdp_rules``, with the imports that follow from it, and ``fsdp_compat`` is a folder
that only ``verify`` and ``preflight`` lend to programs that have not installed it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_RULES = re.compile(rb"(?<![\w./])fsdp_rules(?=[\s.\"])")
#: The folder of the wheel in which fsdp_migrate/verify/runs/launch.py finds fsdp_compat.
HELPERS = "fsdp_migrate/verify/helpers/fsdp_compat"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class WheelNames(BuildHookInterface[Any]):
    """Gives the build a copy of the packages under their names in the wheel; an editable install needs none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._stage = TemporaryDirectory()
        stage, root = Path(self._stage.name), Path(self.root)
        for source, target in (
            ("fsdp_migrate", "fsdp_migrate"),
            ("rules/fsdp_rules", "fsdp_migrate/fsdp_rules"),
            ("shim/fsdp_compat", HELPERS),
        ):
            shutil.copytree(root / source, stage / target, ignore=_LEFT_OUT)
        for path in (stage / "fsdp_migrate").rglob("*.py"):
            path.write_bytes(_RULES.sub(b"fsdp_migrate.fsdp_rules", path.read_bytes()))
        build_data["force_include"] = {str(stage / "fsdp_migrate"): "fsdp_migrate"}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._stage.cleanup()
