"""Rule FSDP203: the static method summon_full_params."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, check_rewrites, findings

HEAD = """
import contextlib

import fsdp_compat
import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

kept = contextlib.nullcontext, fsdp_compat, torch, fully_shard
"""
HELPER = "fsdp_compat.summon_full_params"
IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    "line",
    ["module.summon_full_params()", "FSDP.summon_full_params(module)", "trainer.strategy.summon_full_params(module)"],
)
def test_noop_for_other_classes(line: str) -> None:
    check_noop(f"from elsewhere import FullyShardedDataParallel as FSDP\n\ndef step(module, trainer):\n    {line}\n")


@pytest.mark.parametrize("name", ["FSDP", "torch.distributed.fsdp.FullyShardedDataParallel"])
@pytest.mark.parametrize(
    "form",
    [
        "with {}(m):\n        pass",
        "with {}(m, True, writeback=False, with_grads=True) as c, open(c):\n        pass",
        "with {}(m) if c else contextlib.nullcontext():\n        pass",
        "c = lambda: ({}(m, recurse=False) if c else contextlib.nullcontext())",
        "c = {} if c else kept",
        "with {}(\n        m,  # why\n        recurse=c\n    ):\n        pass",
    ],
)
def test_every_form(form: str, name: str) -> None:
    before = HEAD + "\ndef step(m, c):\n    " + form.format(f"{name}.summon_full_params") + "\n"
    after = HEAD + "\ndef step(m, c):\n    " + form.format(HELPER) + "\n"
    check_rewrites(before, after.replace(IMPORT, ""))
    manual = findings(before, Settings(helpers="never"))
    assert [(found.rule, found.level.value) for found in manual if found.rule != "FSDP100"] == [("FSDP203", "manual")]


@pytest.mark.parametrize("owner", ["model", "type(model)", "model.__class__"])
def test_through_an_instance(owner: str) -> None:
    head = "import fsdp_compat\nfrom w import wrap\n\n\ndef step(net):\n    model = wrap(net)\n    with "
    wrap = "from torch.distributed.fsdp import FullyShardedDataParallel\n\n\ndef wrap(model):\n"
    check_rewrites(
        f"{head}{owner}.summon_full_params(model):\n        pass\n",
        f"{head}fsdp_compat.summon_full_params(model):\n        pass\n",
        w=f"{wrap}    return FullyShardedDataParallel(model)\n",
    )


def test_the_name_alone_gives_it_away_where_the_project_wraps() -> None:
    wraps = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    before = (
        "import fsdp_compat\n\nkept = fsdp_compat\n\n\ndef step(model):\n    with {}(model.module):\n        pass\n"
    )
    check_rewrites(before.format("model.module.summon_full_params"), before.format(HELPER), main=wraps)
    (found,) = findings(before.format("model.module.summon_full_params"), main=wraps)
    assert found.level.value == "review"


@pytest.mark.parametrize("owner", ["self", "trainer.strategy", "backend"])
def test_noop_for_methods_of_the_project(owner: str) -> None:
    wraps = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    own = "class Backend:\n    def summon_full_params(self, model):\n        pass\n" if owner == "backend" else ""
    check_noop(
        f"def step(self, model, trainer, backend):\n    {owner}.summon_full_params(model)\n", main=wraps, own=own
    )


@pytest.mark.parametrize(("main", "level"), [("", "review"), (IMPORT + "model = FSDP(model)\n", "safe")])
def test_a_model_that_a_library_wraps(main: str, level: str) -> None:
    source = f"{IMPORT}\ndef sample(model):\n    return FSDP.summon_full_params(model)\n"
    (found,) = (entry for entry in findings(source, main=main) if entry.rule == "FSDP203")
    assert (found.level.value, "this project does not wrap" in found.message) == (level, level == "review")
