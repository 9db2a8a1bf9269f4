"""Settings of a project's own that its code gives to arguments which FSDP2 does not have."""

from __future__ import annotations

import pytest

from fsdp_rules.project.own_keys import own_keys_of
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, cfg, args, fsdp_cfg, self):
    {before}
    return FSDP(model, {given})
"""


def said(files: dict[str, str]) -> dict[str, list[str]]:
    """What is said of the project's own settings, by file."""
    found: dict[str, list[str]] = {}
    for path, result in rewrite_tree({path: text.encode() for path, text in files.items()}).items():
        assert isinstance(result, Changed | Unchanged), result
        own = [one for one in result.findings if one.rule in ("FSDP126", "FSDP542")]
        if own:
            assert {one.level.value for one in own} == {"info"}
            found[path] = [one.message for one in own]
    return found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("forward_prefetch=cfg.parallel.ahead", "parallel:\n  ahead: true\n"),
        ("forward_prefetch=cfg['parallel']['ahead']", "parallel:\n  ahead: true\n"),
        ("forward_prefetch=cfg.parallel.get('ahead', False)", "parallel:\n  ahead: true\n"),
        ("forward_prefetch=getattr(cfg, 'ahead', False)", "ahead: true\n"),
        ("forward_prefetch=OmegaConf.select(cfg, 'parallel.ahead')", "parallel:\n  ahead: true\n"),
        ("forward_prefetch=bool(self.cfg.ahead and x)", "ahead: true\n"),
        ("forward_prefetch=fsdp_cfg.ahead", "fsdp:\n  ahead: true\n"),
        ("forward_prefetch=cfg.parallel.ahead", "ahead: true\n"),
        ("backward_prefetch=BackwardPrefetch[cfg.ahead]", "ahead: BACKWARD_PRE\n"),
        ("**{'use_orig_params': cfg.ahead}", "ahead: true\n"),
    ],
)
def test_a_key_of_any_name_is_a_note_in_a_file_without_the_word(given: str, text: str) -> None:
    found = said({"net.py": WRAP.format(before="pass", given=given), "conf/parallel.yaml": text})
    (message,) = [one for one in found["conf/parallel.yaml"] if " passes " in one]
    assert message.startswith("net.py passes ahead to ")
    assert message.endswith(", which FSDP2 does not have")


def test_a_value_is_followed_through_one_name() -> None:
    source = WRAP.format(before="early = cfg.ahead", given="forward_prefetch=early")
    assert "conf.yaml" in said({"net.py": source, "conf.yaml": "ahead: true\n"})


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        ("forward_prefetch=cfg.parallel.ahead", "a.yaml", "data:\n  ahead: true\n"),
        ("forward_prefetch=cfg.ahead", "a.yaml", "data:\n  ahead: true\n"),
        ("forward_prefetch=cfg.ahead", "vocab.json", '{"ahead": 3}'),
        ("forward_prefetch=True", "a.yaml", "ahead: true\n"),
        ("cpu_offload=CPUOffload(cfg.ahead)", "a.yaml", "ahead: true\n"),
        ("backward_prefetch=BackwardPrefetch.BACKWARD_PRE", "a.yaml", "BACKWARD_PRE: true\n"),
    ],
)
def test_other_keys_are_not(given: str, path: str, text: str) -> None:
    assert path not in said({"net.py": WRAP.format(before="pass", given=given), path: text})


def test_flags_of_scripts_and_options_of_other_files() -> None:
    options = (
        "import argparse\n\n\ndef parse():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--early-gather', action='store_true')  # limit_all_gathers\n"
        "    return parser.parse_args()\n"
    )
    files = {
        "net.py": WRAP.format(before="pass", given="limit_all_gathers=args.early_gather"),
        "options.py": options,
        "run.sh": "torchrun net.py --early_gather --lr 3\n",
    }
    assert said(files) == {
        "options.py": ["net.py passes --early-gather to limit_all_gathers, which FSDP2 does not have"],
        "run.sh": ["net.py passes --early_gather to limit_all_gathers, which FSDP2 does not have"],
    }


IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
BUILD = (
    IMPORT + "\n\ndef build(model, ahead=False, *, late=True):\n    return FSDP(model, forward_prefetch=bool(ahead))\n"
)
TRAINER = (
    IMPORT + "\n\nclass Trainer:\n    def __init__(self, model, ahead):\n        self.model = model\n"
    "        self.ahead = ahead\n\n    def wrap(self):\n        return FSDP(self.model, forward_prefetch=self.ahead)\n"
)
PASSED = BUILD.replace("build(", "of(") + "\n\ndef build(m, ahead):\n    of(m, ahead)\n"
FIELDS = """
from dataclasses import dataclass


@dataclass
class Parallel:
    early: bool = False


@dataclass
class Data:
    early: bool = False


@dataclass
class Settings:
    shards: Parallel
    data: Data
"""


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (BUILD, "build(model, cfg.early)"),
        (BUILD, "net.build(model, ahead=cfg.early)"),
        (BUILD, "functools.partial(build, ahead=cfg.early)(model)"),
        (PASSED, "build(model, cfg.early)"),
        (TRAINER, "Trainer(model, cfg.early)"),
    ],
)
def test_a_parameter_is_followed_to_what_callers_give(source: str, call: str) -> None:
    main = f"import functools\nimport net\nfrom net import *\n\n\ndef main(cfg, model):\n    return {call}\n"
    found = said({"net.py": source, "main.py": main, "a.yaml": "early: true\n"})
    assert found["a.yaml"] == ["main.py passes early to forward_prefetch, which FSDP2 does not have"]


@pytest.mark.parametrize("call", ["build(model, True)", "build(model, late=cfg.early)", "other(model, cfg.early)"])
def test_what_callers_give_to_something_else_is_nothing(call: str) -> None:
    main = f"from net import build\n\n\ndef main(cfg, model, other):\n    return {call}\n"
    assert said({"net.py": BUILD, "main.py": main, "a.yaml": "early: true\n"}) == {}


@pytest.mark.parametrize(
    ("given", "lines"),
    [("cfg.shards.early", [7]), ("cfg.parallel.early", [7]), ("cfg.early", [7, 12]), ("cfg.model.early", [])],
)
def test_fields_of_the_class_that_is_read_are_a_note_in_a_file_without_the_word(given: str, lines: list[int]) -> None:
    main = "import conf\nfrom net import build\n\nbuild(None, conf.Settings(), None, None, None)\n"
    source = WRAP.format(before="pass", given=f"forward_prefetch={given}")
    files = {"net.py": source, "conf.py": FIELDS, "main.py": main}
    result = rewrite_tree({path: text.encode() for path, text in files.items()}).get("conf.py", Unchanged())
    assert isinstance(result, Unchanged)
    assert [one.line for one in result.findings if one.rule == "FSDP126"] == lines


def test_a_field_that_its_own_class_gives_away() -> None:
    source = (
        "from dataclasses import dataclass\n" + IMPORT + "\n\n@dataclass\nclass Strategy:\n    early: bool = True\n\n"
        "    def wrap(self, model):\n        return FSDP(model, forward_prefetch=self.early)\n"
    )
    assert said({"net.py": source}) == {
        "net.py": ["net.py passes early to forward_prefetch, which FSDP2 does not have"]
    }


def test_functions_that_pass_a_parameter_to_each_other_end() -> None:
    source = BUILD + "\n\ndef first(m, ahead):\n    second(m, ahead)\n    build(m, ahead)\n"
    source += "\n\ndef second(m, ahead):\n    first(m, ahead)\n"
    assert own_keys_of({"net.py": source.encode()}) == {}


def test_a_note_is_silenced_where_it_is() -> None:
    files = {
        "net.py": WRAP.format(before="pass", given="forward_prefetch=cfg.ahead"),
        "a.yaml": "ahead: true  # fsdp-migrate: ignore[FSDP542]\n",
    }
    assert said(files) == {}


@pytest.mark.parametrize(
    "data", [b"def (FSDP, limit_all_gathers", b"\x00limit_all_gathers FSDP", b"f(use_orig_params=c.x)"]
)
def test_what_does_not_parse_or_does_not_speak_of_it_reads_nothing(data: bytes) -> None:
    assert own_keys_of({"a.py": data}) == {}


def test_settings_that_the_code_gives_to_fsdp1_are_no_framework_s_whatever_they_are_called() -> None:
    """The keys of Composer's mapping, which the project reads without Composer."""
    config = "fsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n  mixed_precision: PURE\n"
    read = "kinds = {'SHARD_GRAD_OP': ShardingStrategy.SHARD_GRAD_OP}"
    given = (
        "sharding_strategy=kinds[fsdp_config['sharding_strategy']], limit_all_gathers=fsdp_config.get('limit', True)"
    )
    source = WRAP.format(before=read, given=given).replace("(model, cfg", "(model, fsdp_config, cfg")
    source = source.replace("DataParallel as FSDP", "DataParallel as FSDP, ShardingStrategy")
    found = said({"net.py": source, "conf.yaml": config})
    assert found["conf.yaml"] == [
        "sharding_strategy: SHARD_GRAD_OP is read by code that still accepts these names after a rewrite"
    ]
    result = rewrite_tree({"conf.yaml": config.encode()})["conf.yaml"]
    assert isinstance(result, Changed) and b"reshard_after_forward: false" in result.source


def test_a_name_of_the_project_s_own_table_of_strategies_stays() -> None:
    read = "kinds = {'full': ShardingStrategy.FULL_SHARD, 'hybrid-full': ShardingStrategy.HYBRID_SHARD}"
    source = WRAP.format(before=read, given="sharding_strategy=kinds[cfg.sharding_strategy]")
    source = source.replace("DataParallel as FSDP", "DataParallel as FSDP, ShardingStrategy")
    config = "fsdp_wrap_strategy: size\nsharding_strategy: "
    note = "sharding_strategy: full is read by code that still accepts these names after a rewrite"
    assert said({"net.py": source, "conf.yaml": config + "full\n"})["conf.yaml"][-1] == note
