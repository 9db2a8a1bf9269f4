"""Configuration that definitions in other files give to wraps: both change together, and train the same numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

#: Trains a model that each of ``choices`` wraps, on data of each rank's own.
TRAIN = """\
import sys

import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from common import Net, data, finish, note, start
{imports}

rank = start()
for choice in {choices}:
    torch.manual_seed(0)
    model = Net()
{build}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    torch.manual_seed(rank)
    for step in range(3):
        loss = model(data()).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
finish(sys.argv[1])
"""

STRATEGIES = """
from torch.distributed.fsdp import ShardingStrategy


def strategy_of(choice):
    if choice == "full":
        return ShardingStrategy.FULL_SHARD
    elif choice == "zero2":
        return ShardingStrategy.SHARD_GRAD_OP
    return ShardingStrategy.NO_SHARD
"""
BLOCKS = """
import functools

from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def blocks(kind):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={kind})
    return policy
"""
PRECISIONS = """
import torch
from torch.distributed.fsdp import MixedPrecision

whole = MixedPrecision(param_dtype=torch.float32, reduce_dtype=torch.float32, buffer_dtype=torch.float32)
half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
"""
TUPLE = """
from precisions import *
from torch.distributed.fsdp import ShardingStrategy
from wrapping import blocks


def precision_of(choice):
    if choice == "full":
        policy = None
    else:
        policy = whole if choice == "zero2" else half
    return policy


def policies(choice, kind):
    precision = precision_of(choice)
    wrapping = blocks(kind)
    if choice == "full":
        strategy = ShardingStrategy.FULL_SHARD
    elif choice == "zero2":
        strategy = ShardingStrategy.SHARD_GRAD_OP
    else:
        strategy = ShardingStrategy.NO_SHARD
    print(strategy)
    return precision, wrapping, strategy, choice
"""
WRAP = 'model = FSDP(model, {arguments}, device_id=torch.device("cpu"), use_orig_params=True)'
ALL = "auto_wrap_policy=wrapping, mixed_precision=precision, sharding_strategy=strategy"


def program(imports: str, build: str, choices: str = '("full", "zero2", "ddp")', **files: str) -> dict[str, str]:
    """A project whose ``train.py`` wraps in the statements ``build``."""
    train = TRAIN.format(imports=imports.strip("\n"), build=textwrap.indent(build, "    "), choices=choices)
    return tree(train=train, **files)


STRATEGY = f"strategy = strategy_of(choice)\n{WRAP.format(arguments='sharding_strategy=strategy')}"
PROGRAMS = {
    "a strategy": program("from conf import strategy_of", STRATEGY, conf=STRATEGIES),
    "another name": program(
        "from conf import strategy_of as pick", STRATEGY.replace("strategy_of(", "pick("), conf=STRATEGIES
    ),
    "a module": program("import conf", STRATEGY.replace("strategy_of", "conf.strategy_of"), conf=STRATEGIES),
    "passed on by another module": program(
        "from again import chosen",
        STRATEGY.replace("strategy_of", "chosen"),
        again="# of fsdp\nfrom conf import strategy_of as chosen",
        conf=STRATEGIES,
    ),
    "a star import": program("from conf import *", STRATEGY, conf=STRATEGIES),
    "a call in the call": program(
        "from conf import strategy_of", WRAP.format(arguments="sharding_strategy=strategy_of(choice)"), conf=STRATEGIES
    ),
    "a policy": program(
        "from common import Block\nfrom wrapping import blocks",
        "wrapping = blocks(Block)\n" + WRAP.format(arguments="auto_wrap_policy=wrapping"),
        wrapping=BLOCKS,
    ),
    "a policy, or none": program(
        "from common import Block\nfrom wrapping import blocks",
        'wrapping = blocks(Block)\nif choice == "full":\n    wrapping = None\n'
        + WRAP.format(arguments="auto_wrap_policy=wrapping"),
        wrapping=BLOCKS,
    ),
    "a constant": program(
        "from precisions import half",
        WRAP.format(arguments="mixed_precision=half"),
        precisions="\n".join(line for line in PRECISIONS.splitlines() if "whole" not in line),
    ),
    "a constant of two wraps": program(
        "from building import build",
        "model = build(model)",
        '("half",)',
        building=f"""
            import torch
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import MixedPrecision

            HALF = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)

            def wrap_parts(net):
                for index, block in enumerate(net.blocks):
                    block = FSDP(block, mixed_precision=HALF, device_id=torch.device("cpu"), use_orig_params=True)
                    net.blocks[index] = block

            def build(model):
                wrap_parts(model)
                {WRAP.format(arguments="mixed_precision=HALF")}
                return model
        """,
    ),
    "a tuple of three, over three files": program(
        "from common import Block\nfrom conf import policies",
        "precision, wrapping, strategy, _ = policies(choice, Block)\n" + WRAP.format(arguments=ALL),
        conf=TUPLE,
        precisions=PRECISIONS,
        wrapping=BLOCKS,
    ),
    "two programs": program(
        "from common import Block\nfrom conf import policies",
        "precision, wrapping, strategy, _ = policies(choice, Block)\n" + WRAP.format(arguments=ALL),
        conf=TUPLE,
        precisions=PRECISIONS,
        wrapping=BLOCKS,
        evaluate=f"""
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            import torch
            from common import Block
            from conf import policies as given

            def build(model, choice):
                (
                    precision,
                    wrapping,
                    strategy,
                    name,
                ) = given(choice, Block)
                print(name)
                {WRAP.format(arguments=ALL)}
                return model
        """,
    ),
}
ARGUMENTS = """
import functools

import torch
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def precision_of(kind):
    dtype = torch.bfloat16 if kind == "zero2" else torch.float32
    return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)


def kept_for_later():
    return {"mixed_precision": precision_of("full"), "sharding_strategy": ShardingStrategy.NO_SHARD}


def arguments_of(block, strategy, sync=False):
    kind = strategy
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    if strategy == "full":
        strategy = ShardingStrategy.FULL_SHARD
    elif strategy == "zero2":
        strategy = ShardingStrategy.SHARD_GRAD_OP
    elif strategy == "ddp":
        strategy = ShardingStrategy.NO_SHARD
        policy = None
    kwargs = {
        "auto_wrap_policy": policy,
        "mixed_precision": precision_of(kind),
        "sharding_strategy": strategy,
        "device_id": torch.device("cpu"),
        "limit_all_gathers": True,
    }
    if sync:
        kwargs.update({"use_orig_params": True, "sync_module_states": True})
    kwargs["backward_prefetch"] = BackwardPrefetch.BACKWARD_POST
    return kwargs, block
"""
#: Other weights on each rank, of which rank 0's count.
UNLIKE = "model.head.weight.data.add_(rank)\n"
SPREAD = f"{UNLIKE}kwargs, _ = arguments_of(Block, choice, True)\nmodel = FSDP(model, **kwargs)"
PROGRAMS |= {
    "a dictionary of arguments": program(
        "from common import Block\nfrom conf import arguments_of", SPREAD, conf=ARGUMENTS
    ),
    "a dictionary, asked for in a function": program(
        "from common import Block\nfrom building import build",
        f"{UNLIKE}model = build(model, choice)",
        conf=ARGUMENTS,
        building="""
            import conf
            from common import Block
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            def build(net, choice):
                settings, _ = conf.arguments_of(Block, choice, sync=True)
                return FSDP(net, forward_prefetch=False, **settings)
        """,
    ),
    "a dictionary that the wrap itself asks for": program(
        "from conf import arguments",
        "model = FSDP(model, **arguments(choice))",
        conf="""
            from torch import device
            from torch.distributed.fsdp import ShardingStrategy

            def arguments(choice):
                found = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=device("cpu"))
                if choice == "zero2":
                    found["limit_all_gathers"] = True
                return found
        """,
    ),
    "NO_SHARD on a mesh": program(
        "from building import build\nfrom torch.distributed.device_mesh import init_device_mesh",
        "model = build(model, init_device_mesh('cpu', (2,), mesh_dim_names=('dp',)))",
        building="""
            import torch
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import ShardingStrategy

            def build(model, mesh):
                cpu = torch.device("cpu")
                model = FSDP(model, device_mesh=mesh, device_id=cpu, sharding_strategy=ShardingStrategy.NO_SHARD)
                return model
        """,
        choices="(0,)",
    ),
    "a dictionary alone": program(
        "from conf import arguments",
        "settings = arguments(choice)\nmodel = FSDP(model, **settings)",
        conf="""
            from precisions import half
            from torch import device
            from torch.distributed.fsdp import ShardingStrategy

            def arguments(choice):
                found = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=device("cpu"))
                found["mixed_precision"] = half
                return found
        """,
        precisions="\n".join(line for line in PRECISIONS.splitlines() if "whole" not in line),
    ),
}
FACTORY = """
import functools

from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def factory(model):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model.blocks[0])})
"""
#: Policies that are not known are kept as they are, and asked about each module.
ASKED = {
    "a policy that the caller makes": program(
        "from common import Block\nfrom conf import arguments_of",
        "kwargs, _ = arguments_of(Block, choice)\n"
        'if choice != "ddp":\n    kwargs["auto_wrap_policy"] = kwargs["auto_wrap_policy"](model)\n'
        "model = FSDP(model, **kwargs)",
        conf=ARGUMENTS.replace(
            "policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})",
            "policy = factory",
        ).replace("import functools", "from factories import factory"),
        factories=FACTORY,
    ),
}
TABLE = """
from torch.distributed.fsdp import ShardingStrategy


def strategy_of(choice: str) -> ShardingStrategy:
    table = {{"full": ShardingStrategy.FULL_SHARD, "zero2": ShardingStrategy.SHARD_GRAD_OP}}
    return {looked_up}
"""
MATCH = """
from torch.distributed.fsdp import ShardingStrategy


def strategy_of(choice):
    match choice:
        case "zero2":
            return ShardingStrategy.SHARD_GRAD_OP
        case _:
            return ShardingStrategy.FULL_SHARD
"""
HALF = """
import torch
from torch.distributed.fsdp import MixedPrecision


def precision_of(choice):
    return {"full": None, "half": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}[choice]
"""
TWO = '("full", "zero2")'
PROGRAMS |= {
    "a table in a function": program(
        "from conf import strategy_of", STRATEGY, TWO, conf=TABLE.format(looked_up="table[choice]")
    ),
    "a table with a default": program(
        "from conf import strategy_of",
        STRATEGY,
        '("zero2", "another")',
        conf=TABLE.format(looked_up="table.get(choice, ShardingStrategy.FULL_SHARD)"),
    ),
    "cases": program("from conf import strategy_of", STRATEGY, TWO, conf=MATCH),
    "a table of precisions in a function": program(
        "from conf import precision_of",
        WRAP.format(arguments="mixed_precision=precision_of(choice)"),
        '("full", "half")',
        conf=HALF,
    ),
    "any name, in capitals": program(
        "from torch.distributed.fsdp import ShardingStrategy",
        WRAP.format(arguments="sharding_strategy=getattr(ShardingStrategy, choice.upper())"),
        '("full_shard", "SHARD_GRAD_OP")',
    ),
}
#: What of FSDP1's configuration is left in none of the files.
NAMES = ("ShardingStrategy", "MixedPrecision(", "auto_wrap_policy", "fsdp_compat", "FullyShardedDataParallel")


@pytest.mark.parametrize("name", PROGRAMS)
def test_definitions_change_with_their_wraps(pool: Pool, tmp_path: Path, name: str) -> None:
    files = PROGRAMS[name]
    rewritten = rewrite_tree(files)
    assert rewritten.manual() == []
    assert left(rewritten.files) == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("rank", before, train_tree(pool, rewritten.files, tmp_path / "after"))) == []
    assert rewrite_tree(rewritten.files).files == rewritten.files


@pytest.mark.parametrize("name", ASKED)
def test_policies_that_are_not_known_are_asked(pool: Pool, tmp_path: Path, name: str) -> None:
    files = ASKED[name]
    rewritten = rewrite_tree(files)
    assert "nonwrapped_numel=0" in rewritten.files["train.py"]
    assert "ShardingStrategy" not in rewritten.files["conf.py"]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("rank", before, train_tree(pool, rewritten.files, tmp_path / "after"))) == []


def left(files: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(path, name) for path, text in files.items() for name in NAMES if name in text]
