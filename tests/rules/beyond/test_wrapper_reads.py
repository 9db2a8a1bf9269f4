"""FSDP902 where the group, the rank, the size and the device of FSDP1's wrapper are read, or written."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite, rewrite_tree

HEAD = """\
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy

def main(net, group, mesh, kind, other):
    model = FSDP(net{given})
    {use}
    return model
"""
FULL, HYBRID = "ShardingStrategy.FULL_SHARD", "ShardingStrategy.HYBRID_SHARD"
DEFAULT = ("", ", process_group=None", f", device_mesh=None, sharding_strategy={FULL}")
OWN = (", process_group=group", ", device_mesh=mesh", f", sharding_strategy={HYBRID}", ", sharding_strategy=kind")
READS = {
    "print(model.rank)": ("print(dist.get_rank())", "print(dist.get_rank({}))"),
    "a, b = model.world_size, 1": ("a, b = dist.get_world_size(), 1", "a, b = dist.get_world_size({}), 1"),
    "dist.barrier(group=model.process_group)": ("dist.barrier(group=dist.group.WORLD)", "dist.barrier(group={})"),
    'print(f"{model.rank} of {len(other)}")': (
        'print(f"{dist.get_rank()} of {len(other)}")',
        'print(f"{dist.get_rank(HELPER)} of {len(other)}")',
    ),
    'found = getattr(model, "process_group", None)': ("found = dist.group.WORLD", "found = {}"),
    "other[model.rank] = 1": ("other[dist.get_rank()] = 1", "other[dist.get_rank({})] = 1"),
}
HELPER = "fsdp_compat.process_group(model)"


def after(given: str, use: str, settings: Settings | None = None) -> tuple[str, list[str]]:
    """The code after a rewrite, and the levels of what the rule says."""
    result = rewrite(HEAD.replace("{given}", given).replace("{use}", use), settings or Settings())
    assert isinstance(result, Changed)
    return result.source.decode(), [one.level.value for one in result.findings if one.rule == "FSDP902"]


@pytest.mark.parametrize("use", READS)
@pytest.mark.parametrize("given", [*DEFAULT, *OWN])
def test_reads_move(given: str, use: str) -> None:
    text, levels = after(given, use)
    native, helped = READS[use]
    expected = native if given in DEFAULT else helped.replace("HELPER" if "HELPER" in helped else "{}", HELPER)
    assert f"    {expected}\n" in text
    assert levels == ["safe"]
    assert ("fsdp_compat" in text) is (given not in DEFAULT)


@pytest.mark.parametrize(
    "use",
    [
        "model.rank = 1",
        "model.rank: int = 1",
        "model.rank += 1",
        "a, model.process_group = 1, group",
        "[*model.rank] = other",
        "del model.world_size",
        "for model.rank in other: pass",
        "with other as model.process_group: pass",
        "model.rank()",
        'hasattr(model, "rank")',
    ],
)
def test_what_is_no_read_is_left_to_a_human(use: str) -> None:
    text, levels = after("", use)
    assert levels == ["manual"]
    assert use.partition(":")[0] in text


def test_without_helpers_an_own_group_is_left_to_a_human() -> None:
    text, levels = after(", process_group=group", "print(model.rank)", Settings(helpers="never"))
    assert levels == ["manual"] and "model.rank" in text
    assert after("", "print(model.rank)", Settings(helpers="never"))[1] == ["safe"]


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("", "safe"),
        (", process_group=group", "safe"),
        (", cpu_offload=CPUOffload(True)", "manual"),
        (", ignored_states=[net.head]", "manual"),
        (", **other", "manual"),
    ],
)
def test_the_device(given: str, level: str) -> None:
    text, levels = after(given, "other.to(model.compute_device)")
    assert levels == [level]
    assert ("other.to(next(model.parameters()).device)" in text) is (level == "safe")


def test_units_may_have_the_group_of_any_wrap() -> None:
    loop = "for unit in FSDP.fsdp_modules(model): print(unit.rank)"
    assert "print(dist.get_rank())" in after("", loop)[0]
    inner = f"net.head = FSDP(net.head, process_group=group); model = FSDP(net)\n    {loop}"
    assert "dist.get_rank(fsdp_compat.process_group(unit))" in after("", inner)[0]


def test_the_group_is_followed_into_another_file() -> None:
    files = {
        "main.py": HEAD.replace("{given}", ", process_group=group")
        .replace("{use}", "save(model)")
        .replace("import torch", "from saving import save\nimport torch", 1),
        "saving.py": "import torch.distributed.checkpoint as dcp\n\ndef save(model):\n"
        "    dcp.save({}, process_group=model.process_group)\n",
    }
    result = rewrite_tree({path: text.encode() for path, text in files.items()})["saving.py"]
    assert isinstance(result, Changed)
    assert b"dcp.save({}, process_group=fsdp_compat.process_group(model))" in result.source
