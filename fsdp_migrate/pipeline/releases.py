"""What the required releases of frameworks mean for a run, once every file has its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdp_migrate.configs import configuration as configs
from fsdp_migrate.tree.requirement_files import is_requirements
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Result, Unchanged


@dataclass(frozen=True)
class Done:
    """A file of a run, as the user named it, with its text and its result."""

    path: str
    data: bytes
    result: Result
    is_config: bool = False

    @property
    def requires(self) -> bool:
        """Whether the file lists requirements."""
        path = self.path.replace("\\", "/")
        return path.rpartition("/")[2] == "setup.py" or is_requirements(path)


def with_releases(files: Sequence[Done], applied: Callable[[str], Settings]) -> list[Result]:
    """The results of ``files``, in their order, with what their requirements mean.

    ``applied`` gives the settings of a file by its path.
    """
    results = [file.result for file in files]
    spoken = {
        one.rule for file in files if isinstance(file.result, Changed | Unchanged) for one in file.result.findings
    }
    if not any(rule.startswith(("FSDP1", "FSDP3", "FSDP5")) for rule in spoken):
        return results
    for number, file in enumerate(files):
        if file.requires:
            results[number] = configs.with_versions(file.result, file.data, file.path, spoken, applied(file.path))
    return results
