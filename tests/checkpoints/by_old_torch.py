"""What an older torch has written: what is said of it, and that it converts bit for bit.

Not collected by default: ``make old-checkpoints`` writes the files with torch 2.2 and 2.4, in environments of their
own, and runs this with ``FSDP_MIGRATE_WRITTEN`` naming the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from fixtures.checkpoints.model import build
from fsdp_migrate.checkpoints.convert.convert import convert
from fsdp_migrate.checkpoints.convert.plan import Target, Wanted
from fsdp_migrate.checkpoints.judge.judge import findings
from tests.checkpoints.convert.templates import as_json
from tests.checkpoints.written import assert_same, expected

ROOT = Path(os.environ["FSDP_MIGRATE_WRITTEN"]) / "two"
#: What is said of each; torch 2.2 could not write the folder of a mesh.
SAID = {
    "full_orig.pt": [],
    "full_flat.pt": [],
    "sharded_orig": ["FSDP401"],
    "sharded_flat": ["FSDP401"],
    "sharded_orig_dcp": ["FSDP404"],
    "sharded_flat_dcp": ["FSDP404"],
    "local_orig": ["FSDP402"],
    "local_flat": ["FSDP402"],
    "local_orig_dcp": ["FSDP402"],
    "local_flat_dcp": ["FSDP402"],
    "mesh": [],
    "mesh_dcp": [],
}
PRESENT = [name for name in SAID if (ROOT / name).exists()]


def test_no_kind_is_missing() -> None:
    assert set(SAID) - set(PRESENT) <= {"mesh_dcp"}


@pytest.mark.parametrize("name", PRESENT)
def test_findings(name: str) -> None:
    assert [finding.rule for finding in findings(ROOT / name)] == SAID[name]


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
@pytest.mark.parametrize("name", PRESENT)
def test_converted(name: str, to: Target, tmp_path: Path) -> None:
    local = name.startswith("local")
    as_json(build(), tmp_path)
    template = tmp_path / "template.json" if local else None
    wanted = Wanted(to, template=template, decoupled_weight_decay=True)
    convert(ROOT / name, tmp_path / "new", wanted, lambda label, nbytes: lambda count: None)
    if to is Target.DCP:
        dcp_to_torch_save(tmp_path / "new", tmp_path / "read.pt")
    read = torch.load(tmp_path / ("read.pt" if to is Target.DCP else "new"), weights_only=True)
    whole = expected(ROOT, name)
    if local:
        whole = {key[2:]: value for key, value in whole.items() if key[:2] == ("whole", "model")}
    groups = [] if local else read["optim"]["param_groups"]
    assert [group.pop("decoupled_weight_decay") for group in groups] == ([] if local else [True, True])
    assert_same(read, whole)
