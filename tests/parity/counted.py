"""The collectives of a training program: how many ran and what they moved, before and after a rewrite."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.recorder.calls import Calls
from tests.parity.cpu import fsdp1_on_cpu
from tests.pool import Pool

#: What one rank ran: a count by the name of each collective, and the bytes by ``"<name> bytes"``.
Counts = Mapping[str, int]


class _Nobody:
    """Is told of everything else that the recorder sees."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Count the collectives of this rank around a script, for :func:`train_counted`."""
    calls = Calls(_Nobody())
    calls.replace()
    try:
        with fsdp1_on_cpu():
            yield
    finally:
        calls.give_back()
    Path(f"{sys.argv[1]}.{os.environ['RANK']}.json").write_text(json.dumps(calls.collectives))


@dataclass(frozen=True)
class Counted:
    """What a program saved, and the collectives of each rank."""

    saved: Any
    ranks: tuple[Counts, ...]

    def calls(self) -> list[Counts]:
        """How often each rank called each collective."""
        return [{name: count for name, count in rank.items() if " " not in name} for rank in self.ranks]

    def nbytes(self) -> int:
        """What the collectives of all ranks moved."""
        return sum(count for rank in self.ranks for name, count in rank.items() if " " in name)


def train_counted(pool: Pool, files: Mapping[str, str], directory: Path, world_size: int = 2) -> Counted:
    """Train ``train.py`` among ``files`` in ``directory``, which is made for it."""
    import torch

    directory.mkdir(parents=True)
    for path, text in files.items():
        (directory / path).write_text(text)
    saved = directory / "result.pt"
    pool.run_script(directory / "train.py", world_size, [str(saved)], prelude=counting)
    ranks = tuple(json.loads(Path(f"{saved}.{rank}.json").read_text()) for rank in range(world_size))
    return Counted(torch.load(saved, weights_only=True), ranks)
