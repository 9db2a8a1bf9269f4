"""A CustomPolicy gives units arguments of their own: FSDP1 and the native output train the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys

import torch
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy

import common
from common import Block, Net, data, finish, note, start
"""
CPU = 'device_id=torch.device("cpu"), use_orig_params=True'
#: A function that says all there is to say.
EVERYTHING = """
FULL = MixedPrecision(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=True)
ZERO2 = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, limit_all_gathers=True)


def choose(module: torch.nn.Module) -> "bool | dict":
    name = type(module).__name__
    if isinstance(module, torch.nn.Linear) and module.out_features == 3:
        return {"mixed_precision": FULL, "sharding_strategy": ShardingStrategy.FULL_SHARD}
    if name == "Block":
        return ZERO2
    return isinstance(module, torch.nn.LayerNorm)
"""


def program(wrap: str, above: str = "", **others: str) -> dict[str, str]:
    """A project that trains what ``wrap`` makes of ``model``, below the definitions ``above``."""
    main = f"\n\ndef main():\n    rank = start()\n    model = Net()\n{wrap}\n{TRAINED}"
    return tree(train=f"{HEAD}{above}{main}", **others)


def custom(function: str, others: str = "") -> str:
    return f"    model = FSDP(model, auto_wrap_policy=CustomPolicy({function}), {others}{CPU})"


BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16), "
NATIVE = {
    "a lambda that tests": program(custom("lambda m: isinstance(m, Block)")),
    "a lambda with arguments": program(
        custom('lambda m: {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP} if isinstance(m, Block) else False')
    ),
    "arguments behind a test": program(
        custom('lambda m: isinstance(m, Block) and {"mixed_precision": MixedPrecision(reduce_dtype=torch.bfloat16)}')
    ),
    "a function": program(custom("choose"), EVERYTHING),
    "a function, with the model's own arguments": program(
        custom("choose", f"{BF16}sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, "), EVERYTHING
    ),
    "a function of another file, for two wraps": program(
        f"    policy = CustomPolicy(lambda_fn=conf.choose)\n    model = FSDP(model, auto_wrap_policy=policy, {CPU})",
        "import conf\n",
        conf=f"import torch\nfrom torch.distributed.fsdp import MixedPrecision, ShardingStrategy\n{EVERYTHING}",
        evaluate=f"""
            import torch
            from conf import choose as pick
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp.wrap import CustomPolicy

            def build(net):
                return FSDP(net, auto_wrap_policy=CustomPolicy(pick), {CPU})
        """,
    ),
    "a test of another file": program(
        custom("chosen"),
        "from conf import chosen\n",
        conf="""
            # which modules FSDP wraps
            from common import Block

            def chosen(module):
                if isinstance(module, Block):
                    return True
                return False
        """,
    ),
    "a function inside": program(
        "    chosen = list(model.blocks)\n    def choose(module):\n"
        '        return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP} if module in chosen else False\n'
        + custom("choose", BF16)
    ),
    "a table of classes": program(
        custom("choose", "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, "),
        """
TABLE = {
    Block: {"sharding_strategy": ShardingStrategy.FULL_SHARD},
    torch.nn.Linear: True,
}


def choose(module):
    return TABLE.get(type(module), False)
""",
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_units_train_with_their_own_arguments(pool: Pool, tmp_path: Path, name: str) -> None:
    rewritten = rewrite_tree(NATIVE[name])
    assert rewritten.manual() == []
    for path, text in rewritten.files.items():
        assert "fsdp_compat" not in text, (path, text)
        assert "CustomPolicy" not in text, (path, text)
        assert "ShardingStrategy" not in text, (path, text)
    before = train_tree(pool, NATIVE[name], tmp_path / "before", fsdp1=True)
    after = train_tree(pool, rewritten.files, tmp_path / "after")
    assert list(differ("rank", before, after)) == []
    assert rewrite_tree(rewritten.files).files == rewritten.files
