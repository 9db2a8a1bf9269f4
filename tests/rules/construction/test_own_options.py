"""Options of a program for arguments that FSDP2 does not have."""

from __future__ import annotations

import pytest

from tests.rules.helpers import rewrite_tree

WRAP = b"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\ndef build(m, o):\n    return FSDP(m)\n"


def told(source: str, others: bytes = WRAP) -> list[str]:
    result = rewrite_tree({"options.py": source.encode(), "build.py": others}).get("options.py")
    return [one.message for one in getattr(result, "findings", ()) if one.rule == "FSDP126"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("parser.add_argument('--backward_prefetch', default='BACKWARD_PRE')\n", "--backward_prefetch"),
        ("parser.add_argument('-l', '--fsdp-limit-all-gathers')\n", "--fsdp-limit-all-gathers"),
        ("@dataclass\nclass C:\n    use_orig_params: bool = True\n", "use_orig_params"),
    ],
)
def test_an_option_in_another_file_is_a_note(source: str, name: str) -> None:
    assert told(source) == [f"{name} has no effect under FSDP2, which has no such argument"]


@pytest.mark.parametrize(
    "source",
    [
        "parser.add_argument('--prefetch')\n",
        "def f():\n    use_orig_params: bool = True\n    add_argument()\n",
        "parser.add_argument('use_orig_params')\n",
        "parser.add_argument('--sync_module_states')\n",
        "@dataclass\nclass C:\n    forward_prefetch: bool = True\n    sync_module_states: bool = True\n",
    ],
)
def test_other_names_and_places_are_nothing(source: str) -> None:
    assert told(source) == []


def test_a_project_without_fsdp1_is_nothing() -> None:
    assert told("parser.add_argument('--backward_prefetch')\n", b"x = 1\n") == []


GIVEN = b"""from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def build(m, cfg):
    kept = cfg.use_peft or cfg.freeze
    return FSDP(m, use_orig_params=kept)
"""
FIELD = "@dataclass\nclass Cfg:\n    use_peft: bool = False\n    # of FSDP: limit_all_gathers\n"


def test_an_option_that_is_given_to_such_an_argument_alone() -> None:
    assert told(FIELD, GIVEN) == ["build.py passes use_peft to use_orig_params, which FSDP2 does not have"]
    assert told(FIELD, GIVEN + b"def write(cfg):\n    cfg.use_peft = True\n") == told(FIELD, GIVEN)


@pytest.mark.parametrize("use", ["cfg.use_peft", "cfg['use_peft']", "cfg.get('use_peft')", "getattr(cfg, 'use_peft')"])
def test_an_option_that_the_program_reads_for_something_else_too(use: str) -> None:
    assert told(FIELD, GIVEN + f"def load(cfg, m):\n    return peft(m) if {use} else m\n".encode()) == []
