"""Programs of several files: rewritten as a project, then trained on two ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_rules.engine.agreement import agreed
from fsdp_rules.engine.rewrite import rewrite_source
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Result, Unchanged
from tests.parity.cpu import fsdp1_on_cpu
from tests.pool import Pool
from tests.rules.helpers import rewrite_tree as pipeline
from tests.rules.projects import project_of

#: What every program starts from: a model whose root and blocks hold parameters, and ranks with data of their own.
COMMON = """\
import torch
import torch.distributed as dist
import torch.nn as nn

CPU = torch.device("cpu")
RECORD = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data():
    return torch.randn(5, 6)


def start():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()


def note(value):
    RECORD.append(float(value))


def finish(path):
    history = [None] * dist.get_world_size()
    dist.all_gather_object(history, RECORD)
    if dist.get_rank() == 0:
        torch.save(history, path)
    dist.destroy_process_group()
"""
#: The end of a ``main()`` in which ``model`` is wrapped by then: three steps on the rank's own data, and their losses.
TRAINED = """\
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Rewritten:
    """The files of a project after a rewrite, and what was said about them."""

    files: Mapping[str, str]
    findings: tuple[Finding, ...]

    def manual(self) -> list[str]:
        """The findings that leave something to do."""
        left = [found for found in self.findings if found.level is Level.MANUAL]
        return [f"{found.path}:{found.line} {found.rule} {found.message}" for found in left]


def tree(**files: str) -> dict[str, str]:
    """A project of ``files`` (module name → text), with what all programs share as ``common``."""
    return {"common.py": COMMON, **{f"{name}.py": textwrap.dedent(text).lstrip("\n") for name, text in files.items()}}


def rewrite_tree(files: Mapping[str, str], settings: Settings | None = None) -> Rewritten:
    """``files`` (path → text) after a rewrite of the whole project.

    :raises RuntimeError: the rewriter failed on a file.
    """
    asked = settings or Settings()
    project = project_of(files)
    agreement = agreed(project, {path: text.encode() for path, text in files.items()}, lambda path: asked, tuple)
    return _rewritten(
        files,
        {
            path: rewrite_source(text.encode(), path, agreement.project, asked, agreement.prepared.get(path))
            for path, text in files.items()
        },
    )


def rewrite_by_command(files: Mapping[str, str], settings: Settings | None = None) -> Rewritten:
    """As :func:`rewrite_tree`, but as the command does it, which interprets the tree and tells programs apart.

    :raises RuntimeError: the rewriter failed on a file.
    """
    return _rewritten(files, pipeline({path: text.encode() for path, text in files.items()}, settings))


def _rewritten(files: Mapping[str, str], results: Mapping[str, Result]) -> Rewritten:
    after: dict[str, str] = {}
    findings: list[Finding] = []
    for path, text in files.items():
        result = results.get(path, Unchanged())
        if not isinstance(result, Changed | Unchanged):
            raise RuntimeError(f"{path}: {result}")
        after[path] = result.source.decode() if isinstance(result, Changed) else text
        findings += result.findings
    return Rewritten(after, tuple(findings))


def train_tree(
    pool: Pool, files: Mapping[str, str], directory: Path, *, fsdp1: bool = False, world_size: int = 2
) -> Any:
    """What ``train.py`` among ``files`` saves after it has run on all ranks; ``directory`` is made for it."""
    import torch

    directory.mkdir(parents=True)
    for path, text in files.items():
        (directory / path).write_text(text)
    saved = directory / "result.pt"
    pool.run_script(directory / "train.py", world_size, [str(saved)], prelude=fsdp1_on_cpu if fsdp1 else None)
    return torch.load(saved, weights_only=True)
