"""What a policy is asked: FSDP1 asks a function whether to go on into the root, and never whether to wrap it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import functools
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, lambda_auto_wrap_policy
from common import CPU, Block, Net, data, finish, note, start
"""
MAIN = """

def main():
    rank = start()
    model = FSDP(Net(), auto_wrap_policy=POLICY, device_id=CPU, use_orig_params=True)
"""
#: The definition of a policy that refuses or counts, and how it is given.
FORMS = {
    "a function that notes all it is asked": (
        """
def policy(module, recurse, nonwrapped_numel):
    for value in (len(type(module).__name__), recurse, nonwrapped_numel):
        note(value)
    return recurse or isinstance(module, Block)
""",
        "policy",
    ),
    "a function that raises, with an argument of its own": (
        """
def policy(module, recurse, nonwrapped_numel, least):
    if not recurse and isinstance(module, Net):
        raise ValueError("the root is wrapped anyway")
    return recurse or nonwrapped_numel > least
""",
        "functools.partial(policy, least=40)",
    ),
    "a predicate that raises": (
        """
def is_unit(module):
    if hasattr(module, "blocks"):
        raise ValueError("the root is wrapped anyway")
    return isinstance(module, Block)
""",
        "functools.partial(lambda_auto_wrap_policy, lambda_fn=is_unit)",
    ),
    "one of several predicates": (
        """
def is_unit(module):
    if hasattr(module, "blocks"):
        raise ValueError("the root is wrapped anyway")
    return isinstance(module, Block)

def chosen(wraps):
    return functools.partial(lambda_auto_wrap_policy, lambda_fn=is_unit) if wraps else None
""",
        "chosen(True)",
    ),
    "one that takes every module, lists of layers included": (
        """
from torch.distributed.fsdp.wrap import always_wrap_policy

def chosen(wraps):
    return always_wrap_policy if wraps else None
""",
        "chosen(True)",
    ),
}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("form", FORMS)
def test_functions_are_asked_what_fsdp1_asks(pool: Pool, tmp_path: Path, form: str, to: str) -> None:
    policy, given = FORMS[form]
    files = tree(train=HEAD + policy + MAIN.replace("POLICY", given) + TRAINED)
    done = rewrite_tree(files, settings=Settings(to=to))  # type: ignore[arg-type]
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ(form, before, after)) == []


#: Classes that the model is asked for: after the first unit is sharded, it would give others.
CLASSES = {
    "the last block's": "{type(model.blocks[-1])}",
    "all blocks', by name": "[next(type(m) for m in model.modules() if type(m).__name__ == n) for n in ['Block']]",
    "an attribute": "{model.blocks[1].__class__, nn.Embedding}",
}
UNITS = """
    note(sum(isinstance(module, FSDP) for module in model.modules()))
    note(sum(isinstance(block, FSDP) for block in model.blocks))
"""


@pytest.mark.parametrize("form", CLASSES)
def test_classes_that_a_policy_asks_the_model_for_are_those_before_sharding(
    pool: Pool, tmp_path: Path, form: str
) -> None:
    given = f"ModuleWrapPolicy({CLASSES[form]})"
    main = MAIN.replace("    model = FSDP(Net(),", "    model = Net()\n    model = FSDP(model,").replace(
        "POLICY", given
    )
    files = tree(train=HEAD + main + UNITS + TRAINED)
    done = rewrite_tree(files)
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ(form, before, after)) == []
