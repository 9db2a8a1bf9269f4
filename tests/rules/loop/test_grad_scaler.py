"""Rule FSDP204: the class ShardedGradScaler."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, check_rewrites, findings

HEAD = "import torch\nfrom torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n"
REST = "import torch\n\n"


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP204"]


def test_noop_for_other_scalers() -> None:
    check_noop("import torch\n\nscaler = torch.amp.GradScaler('cuda')\n")
    check_noop("from elsewhere import ShardedGradScaler\n\nscaler = ShardedGradScaler()\n")


@pytest.mark.parametrize(
    ("before", "after", "level"),
    [
        ("ShardedGradScaler()", 'torch.amp.GradScaler("cuda")', "safe"),
        ("ShardedGradScaler(enabled=fp16)", 'torch.amp.GradScaler("cuda", enabled=fp16)', "safe"),
        ("ShardedGradScaler('cpu')", "torch.amp.GradScaler('cpu')", "safe"),
        ("ShardedGradScaler(enabled=fp16, device=device)", "torch.amp.GradScaler(device, enabled=fp16)", "safe"),
        (
            "ShardedGradScaler('cuda', 1024.0, 0.25, 4.0, 100, fp16)",
            "torch.amp.GradScaler('cuda', init_scale=1024.0, backoff_factor=0.25, growth_factor=4.0, "
            "growth_interval=100, enabled=fp16)",
            "safe",
        ),
        ("ShardedGradScaler(2.0**10, 0.25)", None, "safe"),
        ("ShardedGradScaler(process_group=None)", 'torch.amp.GradScaler("cuda")', "safe"),
        ("ShardedGradScaler(process_group=group)", 'torch.amp.GradScaler("cuda")', "review"),
        ("ShardedGradScaler(**options)", "torch.amp.GradScaler(**options)", "review"),
    ],
)
def test_constructor(before: str, after: str | None, level: str) -> None:
    if after is None:
        after = 'torch.amp.GradScaler("cuda", init_scale=2.0**10, backoff_factor=0.25)'
    if len(after) > 100:
        function, _, arguments = after.removesuffix(")").partition("(")
        after = f"{function}(\n" + "".join(f"    {argument},\n" for argument in arguments.split(", ")) + ")"
    check_rewrites(f"{HEAD}scaler = {before}\n", f"{REST}scaler = {after}\n")
    assert levels(f"{HEAD}scaler = {before}\n") == [level]


@pytest.mark.parametrize("line", ["ShardedGradScaler(*options)", "ShardedGradScaler(1, 2, 3, 4, 5, 6, 7, 8)"])
def test_manual_where_the_order_is_unknown(line: str) -> None:
    assert levels(f"{HEAD}scaler = {line}\n") == ["manual"]


def test_as_a_value() -> None:
    before = HEAD + (
        "def build(scaler: ShardedGradScaler | None, sharded, fp16):\n"
        "    if isinstance(scaler, ShardedGradScaler):\n        return scaler\n"
        "    return (ShardedGradScaler if sharded else torch.amp.GradScaler)(enabled=fp16)\n"
    )
    after = before.removeprefix(HEAD).replace("ShardedGradScaler", "torch.amp.GradScaler")
    check_rewrites(before, REST + after)
    assert levels(before) == ["review"] * 3


def test_manual_as_a_base() -> None:
    assert levels(f"{HEAD}class Scaler(ShardedGradScaler):\n    pass\n") == ["manual"]


@pytest.mark.parametrize(
    "other",
    ["FSDP(model, ignored_modules=[head])", "FSDP(model, cpu_offload=CPUOffload(True))", "FSDP(model.half())"],
)
def test_review_where_gradients_are_special(other: str) -> None:
    assert levels(f"{HEAD}scaler = ShardedGradScaler()\n", other=other) == ["review"]


def test_own_name_for_it() -> None:
    before = HEAD + "Scaler: type = ShardedGradScaler\nShardedGradScaler = ShardedGradScaler\n"
    after = HEAD + "Scaler: type = torch.amp.GradScaler\nShardedGradScaler = torch.amp.GradScaler\n"
    check_rewrites(before, after)


def test_models_with_process_groups_of_their_own() -> None:
    wrapping = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net{})\n"
    source = HEAD + "scaler = ShardedGradScaler()\n"
    assert levels(source, main=wrapping.format(", process_group=data_parallel_group()")) == ["review"]
    assert levels(source, main=wrapping.format("")) == ["safe"]


WRAPS = (
    "from start import start\nfrom torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP\n\n"
    "def wrap(net):\n    start()\n    return FSDP(net, cpu_offload=CPUOffload(True))\n"
)
GROUP = "import torch.distributed as dist\n\ndef start():\n    dist.init_process_group({})\n"
SUBGROUP = (
    "import torch.distributed as dist\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
    "def wrap(net):\n    return FSDP(net, process_group=dist.new_group([0, 1]))\n"
)


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("scaler = ShardedGradScaler()", "scaler = fsdp_compat.ShardedGradScaler()"),
        ("scaler = ShardedGradScaler('cuda', 1024.0)", "scaler = fsdp_compat.ShardedGradScaler('cuda', 1024.0)"),
        ("scaler = ShardedGradScaler(**options)", "scaler = fsdp_compat.ShardedGradScaler(**options)"),
        ("kinds = {'fp16': ShardedGradScaler}", "kinds = {'fp16': fsdp_compat.ShardedGradScaler}"),
    ],
)
@pytest.mark.parametrize(
    "others", [{"wrap": WRAPS, "start": GROUP.format("'nccl'")}, {"wrap": SUBGROUP}], ids=["offloaded", "subgroup"]
)
def test_the_helper_where_the_project_contradicts_what_torch_does(
    line: str, after: str, others: dict[str, str]
) -> None:
    check_rewrites(f"{HEAD}{line}\n", f"import fsdp_compat\nimport torch\n\n{after}\n", **others)
    assert levels(f"{HEAD}{line}\n", **others) == ["safe"]
    never = findings(f"{HEAD}{line}\n", Settings(helpers="never"), **others)
    assert [entry.level.value for entry in never if entry.rule == "FSDP204"] == ["manual"]


@pytest.mark.parametrize("group", ["", "'cpu:gloo,cuda:nccl'", "backend"])
def test_torchs_scaler_where_the_group_may_reduce_on_the_cpu(group: str) -> None:
    assert levels(f"{HEAD}scaler = ShardedGradScaler()\n", wrap=WRAPS, start=GROUP.format(group)) == ["review"]


START = "import torch.distributed as dist\n\ndef start():\n    dist.init_process_group('nccl')\n"


@pytest.mark.parametrize("line", ["scaler = ShardedGradScaler()", "kinds = {'fp16': ShardedGradScaler}"])
def test_torchs_scaler_where_the_same_file_starts_the_group(line: str) -> None:
    others = {"wrap": WRAPS, "start": "from example import start\n"}
    found = findings(f"{HEAD}{START}{line}\n", **others)
    assert {"FSDP204", "FSDP232"} <= {each.rule for each in found}
    check_rewrites(
        f"{HEAD}{START}{line}\n",
        "import torch\n\n"
        + START.replace("'nccl'", "'cpu:gloo,cuda:nccl'")
        + line.replace("ShardedGradScaler()", 'torch.amp.GradScaler("cuda")').replace(
            "ShardedGradScaler", "torch.amp.GradScaler"
        )
        + "\n",
        **others,
    )
    ignored = line + "  # fsdp-migrate: ignore[FSDP204]"
    assert "FSDP232" not in {each.rule for each in findings(f"{HEAD}{START}{ignored}\n", **others)}


TRAIN = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef train(net, mode):\n"
STEP = "    scaler.scale(model(1).sum()).backward()\n"


@pytest.mark.parametrize("target", ["native", "shim"])
@pytest.mark.parametrize(
    ("scaler", "expected"),
    [
        ("torch.amp.GradScaler('cuda', init_scale=8.0)", ["review"]),
        ("torch.cuda.amp.GradScaler(enabled=mode == 'fp16')", ["review"]),
        ("torch.amp.GradScaler('cuda', enabled=False)", []),
        ("torch.amp.GradScaler('cuda') if mode == 'ddp' else None", []),
    ],
)
def test_a_plain_scaler_that_saw_shards_is_listed(scaler: str, expected: list[str], target: str) -> None:
    source = f"{TRAIN}    model = FSDP(net)\n    scaler = {scaler}\n{STEP}"
    found = findings(source, Settings(to=target))
    assert [one.level.value for one in found if one.rule == "FSDP204"] == expected
    assert levels(source.replace("FSDP(net)", "net")) == []
