"""Settings of a project's own that its code gives to arguments which FSDP2 does not have."""

from __future__ import annotations

import pytest

from fsdp_rules.project.own_keys import own_keys
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
    (message,) = [one for one in found["conf/parallel.yaml"] if " gives " in one]
    assert message.startswith("net.py gives ahead to ")
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
        "options.py": ["net.py gives --early-gather to limit_all_gathers, which FSDP2 does not have"],
        "run.sh": ["net.py gives --early_gather to limit_all_gathers, which FSDP2 does not have"],
    }


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
    assert own_keys(data) == ()
