"""Reasons for which two recordings must not be compared at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.recording.recording import Recording

#: Files that a run imports.
_CODE = (".py", ".ipynb")


@dataclass(frozen=True)
class Origin:
    """Where the code of one run has to come from, and where it must not; ``changed``: files of which one must run."""

    tree: Path
    others: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()


def trap(before: Recording, after: Recording) -> str | None:
    """Why the two cannot be compared, and what to do; None if they can."""
    for side, recording in (("before", before), ("after", after)):
        if recording.failures:
            return f'the recorder failed in the run "{side}":\n{recording.failures[0]}'
    if len(before.steps) != len(after.steps):
        counts = f"{len(before.steps)} steps before and {len(after.steps)} after"
        return f"the runs recorded {counts}: one of them ended early; see its last output"
    if len(before.optimizers) != len(after.optimizers):
        counts = f"{len(before.optimizers)} optimizers stepped before and {len(after.optimizers)} after"
        return f"{counts}: the runs do different work"
    if after.earlier:
        more = f" and {len(after.earlier) - 1} more" if len(after.earlier) > 1 else ""
        return (
            f"the new run read {after.earlier[0]}{more}, which an earlier run of this comparison wrote; "
            "give each run its own output directory, such as a relative one"
        )
    return None


def wrong_origin(recording: Recording, origin: Origin, side: str) -> str | None:
    """Why what ran is not the code that was to run."""
    files = [Path(file) for file in recording.files]
    tree = origin.tree.resolve()
    for other in origin.others:
        strange = [file for file in files if file.is_relative_to(other.resolve()) and not file.is_relative_to(tree)]
        if strange:
            return (
                f'the run "{side}" imported {strange[0]}, which is not in its copy {tree}: an editable install or an '
                "absolute path points to the original; start the program with paths relative to the repository, and "
                "packages on a relative PYTHONPATH"
            )
    if origin.changed and not {file.resolve() for file in origin.changed} & set(files):
        configured = [file.name for file in origin.changed if file.suffix not in _CODE]
        kinds = {str(unit.get("kind")) for model in recording.models for unit in model.units}
        if configured and kinds == {"fsdp2"}:
            # No process imports a configuration: what it asked for is what was trained.
            return None
        if configured and "fsdp1" in kinds:
            return (
                f'the run "{side}" trained with FSDP1, although {configured[0]} now selects FSDP2; '
                "check that the command reads that file, by a path relative to the repository"
            )
        return f'none of the {len(origin.changed)} rewritten files was imported by the run "{side}"; check the command'
    return None
