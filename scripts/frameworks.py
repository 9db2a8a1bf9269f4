"""Writes docs/frameworks.md: every configuration key, and the same inputs through ``accelerate to-fsdp2``.

Needs the framework extra (``make frameworks``), since the other converter is really run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from fsdp_migrate.configs.migrate import migrate
from fsdp_rules.frameworks.table import Key, frameworks, table
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged

PAGE = Path(__file__).resolve().parent.parent / "docs" / "frameworks.md"
HEAD = """\
# Configuration of frameworks

`fsdp-migrate rewrite` and `fsdp-migrate check` read the configuration by which frameworks run FSDP1. Of a YAML or JSON
file no byte outside of the changed keys is touched; shell scripts are edited word by word. A file moves as a whole: if
one key of it has no counterpart, nothing is changed, and the finding says why.

| framework | read | changed | reported |
|---|---|---|---|
| accelerate | YAML, JSON, flags of `accelerate launch` | every key below | `FSDP_*` variables, heredocs, the plugin in Python |
| transformers Trainer | JSON, `fsdp` beside `fsdp_config` in YAML and JSON | version, policy, strategy, offloading, old keys | flags in shell scripts, `TrainingArguments` in Python, names of accelerate that it never reads |
| verl | YAML, overrides in shell scripts | `strategy` of each role | roles that inherit fsdp, nested strategies, size policies |
| Lightning, NeMo, torchtnt, Ray Train, Composer, MMEngine, d2go, SageMaker | Python; `class_path`, `_target_` and words in YAML | | all of it, with what to do |
| axolotl, llm-foundry | YAML | | FSDP1, and keys without effect under FSDP2 |
| a project's own | YAML, flags | | names of FSDP1's strategies |

A YAML or JSON file above 1 MB is not read: it is data.

## What changes although no key does

Measured with accelerate {accelerate} and torch {torch} on two processes on the CPU, five steps, before and after a
rewrite (`make frameworks`, tests/configs/frameworks). accelerate takes FSDP on accelerators alone; its test for one is
put aside there, and everything behind it is its own code.

| setting | losses before and after |
|---|---|
| FULL_SHARD, SHARD_GRAD_OP, fp32, with and without dropout | equal, bit for bit |
| activation checkpointing without dropout | equal, bit for bit |
| activation checkpointing with dropout | the first equal, then different: FSDP2 recomputes with another mask (FSDP509) |
| `mixed_precision: bf16` | different: no autocast, and the loss of the model is bf16 instead of fp32 (FSDP508) |
| other weights on each rank, no RAM-efficient loading | different: rank 0's weights are not broadcast (FSDP504) |

## The same files through `accelerate to-fsdp2`

Both were run on the same `fsdp_config` (two machines, 16 processes, `mixed_precision: no`); the columns have what came
out of it.

| `fsdp_config` | `accelerate to-fsdp2` {accelerate} | `fsdp-migrate rewrite` |
|---|---|---|
"""
CASES = (
    "fsdp_sharding_strategy: FULL_SHARD",
    "fsdp_sharding_strategy: SHARD_GRAD_OP",
    "fsdp_sharding_strategy: HYBRID_SHARD",
    "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2",
    "fsdp_sharding_strategy: NO_SHARD",
    "fsdp_sharding_strategy: full_shard",
    "fsdp_sharding_strategy: 1",
    "fsdp_sharding_strategy: 2",
    "fsdp_sharding_strategy: 4",
    "sharding_strategy: SHARD_GRAD_OP",
    "fsdp_reshard_after_forward: SHARD_GRAD_OP",
    "fsdp_state_dict_type: LOCAL_STATE_DICT",
    "fsdp_offload_params: false",
    "fsdp_version: 2\n  fsdp_sharding_strategy: SHARD_GRAD_OP",
    "fsdp_backward_prefetch_policy: BACKWARD_PRE",
    "fsdp_limit_all_gathers: true",
    "fsdp_use_orig_params: true  # a comment",
    "fsdp_auto_wrap_polcy: NO_WRAP",
)


def main() -> int:
    """Write the page; the exit code."""
    logging.disable(logging.CRITICAL)
    versions = {name: importlib.metadata.version(name) for name in ("accelerate", "torch")}
    lines = [HEAD.format(**versions).rstrip("\n"), *map(_row, CASES), *_tables(), ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    return 0


def _row(case: str) -> str:
    text = f"distributed_type: FSDP\nfsdp_config:\n  {case}\nmixed_precision: 'no'\nnum_machines: 2\nnum_processes: 16\n"
    return f"| {_code(case)} | {_theirs(text)} | {_ours(text)} |"


def _theirs(text: str) -> str:
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = convert_config_to_fsdp2(yaml.safe_load(text))
    return _code("\n".join(f"{key}: {_word(value)}" for key, value in made["fsdp_config"].items()))


def _ours(text: str) -> str:
    result = migrate(text.encode(), "accelerate.yaml", Settings())
    if isinstance(result, Changed):
        made = yaml.safe_load(result.source)
        keys = {**made["fsdp_config"], **made.get("parallelism_config", {})}
        manual = [one.message for one in result.findings if one.level.value == "manual"]
        return "; ".join([_code("\n".join(f"{key}: {_word(value)}" for key, value in keys.items())), *manual])
    found = result.findings if isinstance(result, Unchanged) else ()
    return "kept: " + "; ".join(one.message for one in found if one.rule != "FSDP501")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _code(text: str) -> str:
    return " ".join(f"`{line.strip()}`" for line in text.splitlines())


def _tables() -> Iterator[str]:
    for name in frameworks():
        one = table(name)
        yield from ("", f"## {one.title}", "", f"Compared with the installed code of {', '.join(one.proved)}.", "")
        yield from ("| key | default | FSDP1 | FSDP2 | trap | shown by |", "|---|---|---|---|---|---|")
        yield from map(_key, one.keys.values())


def _key(key: Key) -> str:
    default = f"`{key.default}`" if key.default and " " not in key.default else key.default
    return f"| `{key.name}` | {default} | {key.v1} | {key.v2} | {key.trap} | {key.source} |"


if __name__ == "__main__":
    sys.exit(main())
