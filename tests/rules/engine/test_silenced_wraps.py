"""A wrap that a comment silences is FSDP1's after the rewrite, and so is all that uses its model."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
KINDS = "from torch.distributed.fsdp import StateDictType\n"
USES = {
    "a test": "if isinstance(model, FSDP):\n        model = model.module",
    "no_sync": "with model.no_sync():\n        model(1)",
    "clipping": "model.clip_grad_norm_(1.0)",
    "the inner model": "print(model.module.config)",
    "a state": "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        save(model.state_dict())",
}
WRAPS = {
    "all rules": "FSDP(net)  # fsdp-migrate: ignore",
    "the wrap": "FSDP(net)  # fsdp-migrate: ignore[FSDP110, FSDP101]",
    "over lines": "FSDP(  # fsdp-migrate: ignore[FSDP101]\n        net,\n    )",
    "in a call": "prepared(  # fsdp-migrate: ignore\n        FSDP(net)\n    )",
}
PREPARED = "def prepared(net):\n    return net\n"


def after(**files: str) -> dict[str, str]:
    """What each file becomes."""
    given = {f"{name}.py": text.encode() for name, text in files.items()}
    found = rewrite_tree(given)
    assert all(isinstance(result, Changed | Unchanged) for result in found.values())
    return {
        name: result.source.decode() if isinstance(result := found.get(f"{name}.py"), Changed) else text
        for name, text in files.items()
    }


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_its_model_keeps_fsdp1(use: str, wrap: str) -> None:
    made = f"{IMPORT}{PREPARED}\ndef made(net):\n    model = {wrap}\n    return model\n"
    run = f"\ndef run(net, save):\n    model = made(net)\n    {use}\n"
    needed = (KINDS if "StateDictType" in use else "") + (IMPORT if "FSDP" in use else "")
    split = {"one": made, "two": f"{needed}from one import made\n{run}"}
    for files in ({"one": (KINDS if KINDS in needed else "") + made + run}, split):
        assert after(**files) == files


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_another_model_of_the_program_moves(use: str) -> None:
    kept = f"def kept(net, save):\n    model = FSDP(net)  # fsdp-migrate: ignore\n    {use}\n"
    moved = f"def moved(net, save):\n    model = FSDP(net)\n    {use}\n"
    once = after(one=f"{KINDS}{IMPORT}\n{kept}\n{moved}")["one"]
    assert kept in once
    assert "fully_shard(net)" in once
    assert moved.partition("\n")[2] not in once
    assert after(one=once)["one"] == once


def test_an_attribute_of_its_name_is_another_thing() -> None:
    source = f"""{IMPORT}
def run(first, second, models):
    module = FSDP(first)  # fsdp-migrate: ignore
    models[0] = FSDP(second)
    if isinstance(models[0], FSDP):
        models[0] = models[0].module
    return module.module
"""
    once = after(one=source)["one"]
    assert "models[0].module" not in once
    assert "return module.module" in once


def test_a_comment_about_an_argument_keeps_no_wrap() -> None:
    source = f"""{IMPORT}
def run(net):
    model = FSDP(net, forward_prefetch=True)  # fsdp-migrate: ignore[FSDP112]
    return model.module.config
"""
    once = after(one=source)["one"]
    assert "FSDP(net" not in once
    assert "return model.config" in once


def test_a_call_of_a_partial_is_rewritten_where_the_partial_is_made() -> None:
    source = f"""from functools import partial
{IMPORT}
def run(net):
    make = partial(FSDP, device_mesh=mesh); net = make(net)  # fsdp-migrate: ignore[FSDP101]
    other = FSDP(net)
    return net.module.config
"""
    once = after(one=source)["one"]
    assert "net.module" not in once
    assert after(one=once)["one"] == once
