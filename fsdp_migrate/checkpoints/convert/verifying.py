"""Whether checkpoints still hold what was written, by all digests that there are of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.convert import manifest_digests
from fsdp_migrate.checkpoints.convert.convert import Progress
from fsdp_migrate.checkpoints.entries import spelled, tensors
from fsdp_migrate.checkpoints.read import digests, manifest
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all


@dataclass(frozen=True)
class Verdict:
    """About one checkpoint: ``problems``, or without any what was ``said``; ``compared``: all of it has a digest."""

    path: Path
    problems: tuple[str, ...]
    said: str
    compared: bool


def verified(path: Path, progress: Progress) -> list[Verdict]:
    """One verdict for each checkpoint at or under ``path``. Raises :class:`BadCheckpoint` where ``path`` is none."""
    return [_verdict(checkpoint, progress) for checkpoint in open_all(path)]


def _verdict(checkpoint: Checkpoint, progress: Progress) -> Verdict:
    if checkpoint.problems:
        return Verdict(checkpoint.path, checkpoint.problems, "", False)
    size = sum(file.stat().st_size for file in checkpoint.found.files)
    damage = digests.with_damage(checkpoint, progress("CRC-32", size)).damage
    if damage:
        problems = (f"{one.problem}: {', '.join(map(spelled, one.keys)) or 'no tensor'}" for one in damage)
        return Verdict(checkpoint.path, tuple(problems), "", False)
    held = manifest.read(checkpoint)
    count = len(list(tensors(checkpoint.entries)))
    if held is not None:
        nbytes = sum(entry.nbytes for _, entry in tensors(checkpoint.entries))
        found = tuple(manifest_digests.differences(checkpoint, held, progress("SHA-256", nbytes)))
        said = "; ".join(
            (
                f"{count} tensors are as their manifest says (SHA-256)",
                *(f"{one.rule}: {one.message}" for one in held.source),
            )
        )
        return Verdict(checkpoint.path, found, said, True)
    if digests.lacks_digests(checkpoint):
        return Verdict(checkpoint.path, (), f"{count} tensors, some without a digest: not compared", False)
    return Verdict(checkpoint.path, (), f"{count} tensors are as torch.save wrote them (CRC-32)", True)
