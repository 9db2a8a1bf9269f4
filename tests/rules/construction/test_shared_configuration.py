"""Definitions that keep FSDP1's configuration because a use of theirs is not seen, or needs it."""

from __future__ import annotations

import json
import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

CONF = """
from torch.distributed.fsdp import ShardingStrategy


def strategy_of(config):
    if config.zero == 2:
        return ShardingStrategy.SHARD_GRAD_OP
    return ShardingStrategy.FULL_SHARD
"""
TRAIN = """
import torch
from conf import strategy_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, config):
    strategy = strategy_of(config)
    model = FSDP(model, sharding_strategy=strategy)
    return model
"""


def files(conf: str = CONF, train: str = TRAIN, **others: str) -> dict[str, bytes]:
    named = {"conf": conf, "train": train, **others}
    return {f"{name}.py": textwrap.dedent(text).encode() for name, text in named.items()}


def converted(tree: dict[str, bytes], settings: Settings | None = None) -> bool:
    """Whether the definition in conf.py changes; it does so with the wrap or not at all."""
    results = rewrite_tree(tree, settings)
    conf, train = results["conf.py"], results["train.py"]
    changes = isinstance(conf, Changed) and b"return {}" in conf.source
    wrap = train.source if isinstance(train, Changed) else tree["train.py"]
    assert (b"**strategy" in wrap) == changes
    return changes


def test_the_definition_changes_with_its_wrap() -> None:
    assert converted(files())


UNSEEN = {
    "reads its name": files(train=f"{TRAIN}\n\ndef name(config):\n    return strategy_of(config).name\n"),
    "compares it": files(train=TRAIN.replace("    return model", "    return model if strategy else None")),
    "passes the function on": files(train=f"{TRAIN}\nTABLE = [strategy_of]\n"),
    "another file reads it": files(other="import conf\n\nprint(conf.strategy_of(None).name)\n"),
    "another file calls it by another name": files(
        again="from conf import strategy_of as pick\n", other="from again import pick\n\nx = pick(None).value\n"
    ),
    "a file asks for it by its text": files(other='import conf\n\nprint(getattr(conf, "strategy_of")(None))\n'),
    "a module is imported by its text": files(
        other='import importlib\n\nprint(importlib.import_module("conf").strategy_of(None))\n'
    ),
    "it may return nothing": files(
        CONF.replace("    return ShardingStrategy.FULL_SHARD\n", "    if config.zero == 3:\n        return None\n")
    ),
    "it returns what it is given": files(CONF.replace("return ShardingStrategy.FULL_SHARD", "return config.strategy")),
    "it is decorated": files(f"import functools\n{CONF.replace('def ', '@functools.cache' + chr(10) + 'def ')}"),
    "it is a generator": files(CONF.replace("return ShardingStrategy.FULL", "yield ShardingStrategy.FULL")),
    "it is defined twice": files(f"{CONF}\n\nstrategy_of = lambda config: ShardingStrategy.FULL_SHARD\n"),
    "another wrap needs the helper": files(
        other="""
        from conf import strategy_of
        from torch.distributed.fsdp import CPUOffload
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


        def build(model, config):
            return FSDP(model, sharding_strategy=strategy_of(config), cpu_offload=config.offload)
        """
    ),
    "the call is silenced": files(train=TRAIN.replace("=strategy)", "=strategy)  # fsdp-migrate: ignore[FSDP101]")),
    "the definition is silenced": files(
        CONF.replace("SHARD_GRAD_OP\n", "SHARD_GRAD_OP  # fsdp-migrate: ignore[FSDP123]\n")
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_nothing_changes_where_a_use_is_not_seen(name: str) -> None:
    assert not converted(UNSEEN[name])


def test_a_notebook_may_use_anything() -> None:
    cell = {"cell_type": "code", "source": ["from conf import strategy_of\n"], "metadata": {}, "outputs": []}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    assert not converted({**files(), "look.ipynb": json.dumps(notebook).encode()})


@pytest.mark.parametrize("settings", [Settings(ignore=("FSDP123",)), Settings(helpers="always")])
def test_what_was_asked_for_counts(settings: Settings) -> None:
    assert not converted(files(), settings)


def test_the_use_that_prevents_it_is_named() -> None:
    results = rewrite_tree(files(other="import conf\n\nprint(conf.strategy_of(None).name)\n"))
    conf = results["conf.py"]
    assert isinstance(conf, Changed | Unchanged)
    said = [found for found in conf.findings if found.rule == "FSDP123"]
    assert [found.message for found in said] == ["strategy_of keeps FSDP1's values, which other.py uses"]


def test_wraps_on_two_kinds_of_devices_keep_it() -> None:
    other = TRAIN.replace("=strategy)", '=strategy, device_id=torch.device("cpu"))')
    assert not converted(files(other=other))


ARGUMENTS = """
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy


def arguments_of(config):
    kwargs = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "limit_all_gathers": True}
    return kwargs
"""
SPREAD = """
from conf import arguments_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, config):
    kwargs = arguments_of(config)
    model = FSDP(model, **kwargs)
    return model
"""


def put(line: str) -> dict[str, bytes]:
    """The project whose dictionary is changed by ``line`` before it is returned."""
    return files(ARGUMENTS.replace("    return", f"    {line}\n    return"), SPREAD)


def of_arguments(tree: dict[str, bytes]) -> bool:
    """Whether the dictionary in conf.py changes; it does so with the wrap or not at all."""
    results = rewrite_tree(tree)
    conf, train = results["conf.py"], results["train.py"]
    changes = isinstance(conf, Changed) and b'"reshard_after_forward": False' in conf.source
    assert isinstance(train, Changed)
    assert (b"fully_shard(model, **kwargs" in train.source) == changes
    assert (b"fsdp_compat.shard(model, " in train.source) != changes
    return changes


def test_a_dictionary_changes_with_its_wrap() -> None:
    assert of_arguments(files(ARGUMENTS, SPREAD))
    assert of_arguments(put('kwargs["use_orig_params"] = config.compile'))
    assert of_arguments(put('kwargs.update({"forward_prefetch": True})'))


KEPT = {
    "an argument that is not known": put('kwargs["ignored_modules"] = config.ignored'),
    "a key that is not known": put("kwargs[config.key] = True"),
    "what another function adds": put("config.more(kwargs)"),
    "what another dictionary adds": put("kwargs.update(config.more)"),
    "what is taken out": put('kwargs.pop("limit_all_gathers")'),
    "a second strategy": put('kwargs["sharding_strategy"] = ShardingStrategy.FULL_SHARD'),
    "a precision of some runs": put('if config.bf16:\n        kwargs["mixed_precision"] = MixedPrecision()'),
    "a device that is not known": put('kwargs["device_id"] = config.device'),
    "a state that is synced in some runs": put('kwargs["sync_module_states"] = config.sync'),
    "a precision that is not known": put('kwargs["mixed_precision"] = config.precision'),
    "an argument besides": files(ARGUMENTS, SPREAD.replace("**kwargs", "cpu_offload=config.offload, **kwargs")),
    "two dictionaries": files(ARGUMENTS, SPREAD.replace("**kwargs", "**kwargs, **config.more")),
    "a read of the strategy": files(
        ARGUMENTS, SPREAD.replace("    model = ", '    print(kwargs["sharding_strategy"].name)\n    model = ')
    ),
    "a caller that changes it": files(
        ARGUMENTS, SPREAD.replace("    model = ", '    kwargs["mixed_precision"] = None\n    model = ')
    ),
    "a read in a function inside": files(
        ARGUMENTS, SPREAD.replace("    return", "    config.show = lambda: kwargs.copy()\n    return")
    ),
    "a dictionary of two models": files(
        ARGUMENTS, SPREAD.replace("    return", "    config.other = FSDP(config.other, **kwargs)\n    return")
    ),
    "a dictionary of the models in a loop": files(
        ARGUMENTS,
        SPREAD.replace(
            "    model = FSDP(model, **kwargs)", "    for model in config.all:\n        model = FSDP(model, **kwargs)"
        ),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_dictionary_that_is_not_seen_whole_is_kept(name: str) -> None:
    assert not of_arguments(KEPT[name])
