"""Fields and methods of classes that keep FSDP1's configuration because a use of theirs is not seen, or needs it."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

CONF = """
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp import MixedPrecision


@dataclass
class Recipe:
    rate: float = 0.1
    precision: MixedPrecision = field(default_factory=lambda: MixedPrecision(param_dtype=torch.bfloat16))
"""
TRAIN = """
from conf import Recipe
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, recipe):
    model = FSDP(model, mixed_precision=recipe.precision)
    return model


def main(model):
    return build(model, Recipe(0.2))
"""
METHOD = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision


class Trainer:
    def precision(self):
        return MixedPrecision(param_dtype=torch.bfloat16)

    def setup(self, model):
        self.model = FSDP(model, mixed_precision=self.precision())
"""


def converted(conf: str = CONF, train: str = TRAIN, **others: str) -> bool:
    """Whether the definition in conf.py changes; the wraps do so with it or not at all."""
    tree = {"conf": conf, "train": train, **others}
    files = {f"{name}.py": textwrap.dedent(text).encode() for name, text in tree.items()}
    results = rewrite_tree(files)
    texts = {path: result.source.decode() for path, result in results.items() if isinstance(result, Changed)}
    changes = "return MixedPrecisionPolicy(" in texts.get("conf.py", "") or ": MixedPrecisionPolicy(" in texts.get(
        "conf.py", ""
    )
    reads = any("mp_policy=recipe.precision" in text or "mp_policy = self.prec" in text for text in texts.values())
    assert reads == changes
    return changes


def test_a_field_changes_with_its_wrap() -> None:
    assert converted()


def test_a_method_changes_with_its_wrap() -> None:
    assert converted(METHOD, "")


def test_a_field_of_the_same_name_in_another_class_is_another() -> None:
    other = "class Other:\n    precision: str = 'high'\n\ndef show(other: Other):\n    return other.precision\n# fsdp\n"
    assert converted(train=TRAIN.replace("recipe)", "recipe: Recipe)"), other=other)


UNSEEN = {
    "reads its dtype": {"train": f"{TRAIN}\n\ndef dtype(recipe):\n    return recipe.precision.buffer_dtype\n"},
    "asks for it by its text": {"train": f'{TRAIN}\n\ndef show(recipe):\n    return getattr(recipe, "precision")\n'},
    "is given another value": {"train": f"{TRAIN}\n\ndef change(recipe, other):\n    recipe.precision = other\n"},
    "is built with another value": {"train": TRAIN.replace("Recipe(0.2)", "Recipe(0.2, load())")},
    "is built with a value by name": {"train": TRAIN.replace("Recipe(0.2)", "Recipe(precision=load())")},
    "is copied with another value": {
        "train": f"{TRAIN}\n\ndef other(recipe, precision):\n    return replace(recipe, precision=precision)\n"
    },
    "is a namespace's too": {
        "train": f"{TRAIN}\n\ndef other(model, old):\n    return build(model, SimpleNamespace(precision=old))\n"
    },
    "a file without FSDP reads it": {"other": "def show(recipe):\n    print(recipe.precision.reduce_dtype)\n"},
    "a class of the same name": {"other": "class Job:\n    precision = 'high'\n\n# of FSDP\n"},
    "a class that inherits has its own": {
        "conf": f"{METHOD}\n\nclass Other(Trainer):\n    def precision(self):\n        return None\n",
        "train": "",
    },
    "a method that takes a parameter's value": {
        "conf": METHOD.replace("def precision(self)", "def precision(self, old)")
        .replace("return MixedPrecision(param_dtype=torch.bfloat16)", "return old")
        .replace("self.precision()", "self.precision(MixedPrecision(param_dtype=torch.bfloat16))"),
        "train": "",
    },
    "a field that is made in another way": {
        "conf": CONF.replace("lambda: MixedPrecision(param_dtype=torch.bfloat16)", "MixedPrecision")
    },
}


@pytest.mark.parametrize("name", UNSEEN)
def test_nothing_changes_where_a_use_is_not_seen(name: str) -> None:
    assert not converted(**UNSEEN[name])


def test_a_function_in_a_plain_class_would_be_its_method() -> None:
    conf = """
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        class Trainer:
            wrapping = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})

            def setup(self, model):
                return FSDP(model, auto_wrap_policy=self.wrapping)
    """
    result = rewrite_tree({"conf.py": textwrap.dedent(conf).encode()})["conf.py"]
    assert isinstance(result, Changed)
    assert "lambda module" not in result.source.decode()


TABLES = """
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

POLICIES = {"blocks": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}), "none": None}


def build(model, name):
    policy = POLICIES[name]
    return FSDP(model, auto_wrap_policy=policy)
"""


@pytest.mark.parametrize(
    "reader",
    [
        "",
        "# of FSDP\nfrom conf import POLICIES\n\nunits = POLICIES['blocks'](block, recurse=False)\n",
        "# of FSDP\nimport conf\n\nunits = conf.POLICIES['blocks'](block, recurse=False)\n",
    ],
)
def test_a_dictionary_that_another_file_reads_is_left(reader: str) -> None:
    files = {"conf.py": TABLES.encode(), "other.py": reader.encode()}
    result = rewrite_tree(files)["conf.py"]
    assert isinstance(result, Changed)
    assert ("lambda module" in result.source.decode()) == (not reader)
