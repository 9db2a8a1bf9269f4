"""Configuration that fields and methods of classes give to wraps: they change with their uses, and train the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.test_shared_configuration import NAMES, WRAP, program
from tests.parity.trees import rewrite_tree, train_tree
from tests.pool import Pool

HEAD = """
import functools
from dataclasses import dataclass, field
from typing import Callable, Optional

import torch
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from common import Block
"""
BLOCKS = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
HALF = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
RECIPE = f"""{HEAD}

@dataclass
class Recipe:
    name: str = "zero2"
    wrapping: Optional[Callable] = {BLOCKS}
    precision: Optional[MixedPrecision] = field(default_factory=lambda: {HALF})
"""
PLAIN = (
    'model = FSDP(model, device_id=CPU, device_mesh=init_device_mesh("cpu", (2,)), sharding_strategy=recipe.strategy)'
)
METHODS = f"""{HEAD}

class Job:
    def __init__(self, choice):
        self.choice = choice

    def strategy(self) -> ShardingStrategy:
        if self.choice == "full":
            return ShardingStrategy.FULL_SHARD
        elif self.choice == "zero2":
            return ShardingStrategy.SHARD_GRAD_OP
        return ShardingStrategy.NO_SHARD

    def precision(self) -> MixedPrecision:
        return {HALF}

    @property
    def wrapping(self):
        policy = {BLOCKS}
        return policy
"""
FIELDS = "auto_wrap_policy=recipe.wrapping, mixed_precision=recipe.precision"
CALLS = "auto_wrap_policy=job.wrapping, mixed_precision=job.precision(), sharding_strategy=job.strategy()"
TABLES = f"""{HEAD}
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

POLICIES = {{
    "full": None,
    "zero2": {BLOCKS},
    "ddp": functools.partial(size_based_auto_wrap_policy, min_num_params=40),
}}
PRECISIONS = {{"full": None, "zero2": {HALF}, "ddp": MixedPrecision(param_dtype=torch.float32)}}
"""
WRAPS = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, choice):
    {WRAP.format(arguments="auto_wrap_policy=POLICIES[choice], mixed_precision=PRECISIONS[choice]")}
    return model
"""
PROGRAMS = {
    "dictionaries of the module": program(
        "from wrapping import build", "model = build(model, choice)", wrapping=f"{TABLES}{WRAPS}"
    ),
    "dictionaries of another file": program(
        "from wrapping import build",
        "model = build(model, choice)",
        tables="\n".join(line for line in TABLES.splitlines() if "size_based" not in line),
        wrapping="import torch\nimport tables\nfrom tables import PRECISIONS\n"
        + WRAPS.replace("POLICIES", "tables.POLICIES"),
        choices='("full", "zero2")',
    ),
    "fields of a dataclass": program(
        "from recipes import Recipe", f"recipe = Recipe()\n{WRAP.format(arguments=FIELDS)}", recipes=RECIPE
    ),
    "a field that the constructor is given": program(
        "from recipes import Recipe\nfrom torch.distributed.fsdp import MixedPrecision",
        "recipe = Recipe(choice, precision=MixedPrecision(param_dtype=torch.float32))\n"
        + WRAP.format(arguments=FIELDS),
        recipes=RECIPE,
    ),
    "a field of a field": program(
        "from building import build\nfrom jobs import Job",
        "model = build(model, Job())",
        recipes=RECIPE,
        jobs="""
            from dataclasses import dataclass, field

            from recipes import Recipe

            # What FSDP is given.
            @dataclass
            class Job:
                recipe: Recipe = field(default_factory=Recipe)
        """,
        building=f"""
            import torch
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            def build(model, job):
                recipe = job.recipe
                {WRAP.format(arguments=FIELDS)}
                return model
        """,
    ),
    "a strategy in a field": program(
        "from recipes import Recipe\nfrom torch.distributed.device_mesh import init_device_mesh",
        f'CPU = torch.device("cpu")\nrecipe = Recipe()\n{PLAIN}',
        recipes=f"{HEAD}\n@dataclass\nclass Recipe:\n    strategy: ShardingStrategy = ShardingStrategy.SHARD_GRAD_OP\n",
    ),
    "methods of another file's class": program(
        "from jobs import Job", f"job = Job(choice)\n{WRAP.format(arguments=CALLS)}", jobs=METHODS
    ),
    "methods of a base": program(
        "from trainers import Trainer",
        "model = Trainer(choice).setup(model)",
        jobs=METHODS,
        trainers=f"""
            import torch
            from jobs import Job
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            class Trainer(Job):
                def setup(self, model):
                    {WRAP.format(arguments=CALLS.replace("job.", "self."))}
                    return model
        """,
    ),
    "attributes of an object": program(
        "from trainers import Trainer",
        "model = Trainer(choice).setup(model)",
        trainers=f"""{HEAD}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    precision: Optional[MixedPrecision]

    def __init__(self, choice):
        self.wrapping = {BLOCKS}
        self.precision = None
        if choice != "full":
            self.precision = {HALF}

    def setup(self, model):
        {WRAP.format(arguments=FIELDS.replace("recipe.", "self."))}
        return model
""",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_fields_and_methods_change_with_their_wraps(pool: Pool, tmp_path: Path, name: str) -> None:
    files = PROGRAMS[name]
    rewritten = rewrite_tree(files)
    assert rewritten.manual() == []
    names = (*NAMES, "MixedPrecision]")
    assert [(path, one) for path, text in rewritten.files.items() for one in names if one in text] == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("rank", before, train_tree(pool, rewritten.files, tmp_path / "after"))) == []
    assert rewrite_tree(rewritten.files).files == rewritten.files
