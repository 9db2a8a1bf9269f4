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
from typing import Any

from ruamel.yaml import YAML

from fsdp_migrate.configs.migrate import migrate
from fsdp_rules.frameworks.table import Key, frameworks, table
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged

PAGE = Path(__file__).resolve().parent.parent / "docs" / "frameworks.md"
HEAD = Path(__file__).with_name("frameworks_head.md")
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
    "fsdp_auto_wrap_policy: SIZE_BASED_WRAP",
    "fsdp_backward_prefetch_policy: BACKWARD_PRE",
    "fsdp_limit_all_gathers: true",
    "fsdp_use_orig_params: true  # a comment",
    "fsdp_auto_wrap_polcy: NO_WRAP",
)


def main() -> int:
    """Write the page; the exit code."""
    logging.disable(logging.CRITICAL)
    versions = {name: importlib.metadata.version(name) for name in ("accelerate", "torch")}
    rows = [f"| {code(case)} | {theirs(text_of(case))} | {ours(text_of(case))} |" for case in CASES]
    lines = [HEAD.read_text(encoding="utf-8").format(**versions).rstrip("\n"), *rows, *tables(), ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    return 0


def text_of(case: str) -> str:
    """The file that a row of the comparison is about."""
    return (
        f"distributed_type: FSDP\nfsdp_config:\n  {case}\nmixed_precision: 'no'\nnum_machines: 2\nnum_processes: 16\n"
    )


def theirs(text: str) -> str:
    """What ``accelerate to-fsdp2`` makes of a file, as Markdown."""
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = convert_config_to_fsdp2(_read(text))
    return code("\n".join(f"{key}: {_word(value)}" for key, value in made["fsdp_config"].items()))


def ours(text: str) -> str:
    """What this tool makes of a file, as Markdown."""
    result = migrate(text.encode(), "accelerate.yaml", Settings())
    if isinstance(result, Changed):
        made = _read(result.source.decode())
        keys = {**made["fsdp_config"], **made.get("parallelism_config", {})}
        manual = [one.message for one in result.findings if one.level.value == "manual"]
        return "; ".join([code("\n".join(f"{key}: {_word(value)}" for key, value in keys.items())), *manual])
    found = result.findings if isinstance(result, Unchanged) else ()
    return "kept: " + "; ".join(one.message for one in found if one.rule != "FSDP501")


def _read(text: str) -> dict[str, Any]:
    made: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return made


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def code(text: str) -> str:
    """Each line of a text in backticks."""
    return " ".join(f"`{line.strip()}`" for line in text.splitlines())


def tables() -> Iterator[str]:
    """The lines of the tables of keys."""
    for name in frameworks():
        one = table(name)
        yield from ("", f"## {one.title}", "", f"Compared with the installed code of {', '.join(one.proved)}.", "")
        yield from ("| key | default | FSDP1 | FSDP2 | trap | shown by |", "|---|---|---|---|---|---|")
        yield from map(_key, one.keys.values())
        if one.arguments:
            yield from ("", "Arguments that `FullyShardedDataParallelPlugin` has only in Python:", "")
            yield from ("| argument | default | FSDP1 | FSDP2 | trap | shown by |", "|---|---|---|---|---|---|")
            yield from map(_key, one.arguments.values())
            named = [f"`{key.argument}` for `{key.name}`" for key in one.keys.values() if _is_other(key)]
            bare = [f"`{key.argument}` is {key.bare}" for key in one.keys.values() if key.bare]
            yield from (
                "",
                f"The other arguments are the keys without `fsdp_`, except {', '.join(named)}.",
            )
            yield f"If no launcher sets a variable, {', '.join(bare[:-1])} and {bare[-1]}."


def _is_other(key: Key) -> bool:
    return bool(key.argument) and key.argument not in (key.name, key.name.removeprefix("fsdp_"))


def _key(key: Key) -> str:
    default = f"`{key.default}`" if key.default and " " not in key.default else key.default
    since = f", from {key.since} on" if key.since else ""
    return f"| `{key.name}`{since} | {default} | {key.v1} | {key.v2} | {key.trap} | {key.source} |"


if __name__ == "__main__":
    sys.exit(main())
