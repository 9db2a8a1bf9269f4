"""What every dialect says of keys alike: unknown ones, those written twice, and those that FSDP2 does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from fsdp_rules.configuration.block import Block, Change, Setting, Verdict
from fsdp_rules.frameworks.table import Key
from fsdp_rules.verdict.finding import Level

ELEMENTWISE = (
    "assumes an elementwise optimizer (Adam, SGD): FSDP2 has no flat parameters for it",
    "Compare the losses of a few steps. In accelerate, pass model and optimizer to one prepare() call.",
)
NOT_BROADCAST = (
    "assumes all ranks start from the same weights: FSDP2 does not broadcast those of rank 0",
    "Set cpu_ram_efficient_loading (fsdp_cpu_ram_efficient_loading in accelerate's files) to have them broadcast.",
)
#: What gathers units early in forward where a framework has no key for it.
AHEAD = "If steps become slower, call set_modules_to_forward_prefetch() on each unit after prepare()."
AGAIN = "Remove one of them and run this tool again."


def unknown(setting: Setting, reader: str, known: Collection[str]) -> Verdict:
    """The verdict about a key that ``reader`` does not read, with the one of ``known`` that may be meant."""
    near = difflib.get_close_matches(setting.name, list(known), n=1, cutoff=0.8)
    advice = f"Did you mean {near[0]}?" if near else "Remove it, or use a key that is read."
    return Verdict(setting, Level.MANUAL, f"{reader} does not read the key {setting.written}", advice)


def written_twice(settings: Iterable[Setting], known: Mapping[str, Key] | None = None) -> Iterable[Verdict]:
    """The verdicts about keys that count less than a later one of the same name.

    ``known`` are the rows of the framework: a key that FSDP2 has nothing for is removed wherever it is written.
    """
    for setting in settings:
        row = known.get(setting.name) if known else None
        if row is not None and row.verdict in ("removed", "dead"):
            continue
        told = f"{setting.written} is written twice, and the last value wins"
        yield Verdict(setting, Level.MANUAL, told, AGAIN, keeps=True)


def removed(setting: Setting, prefix: str, *, broadcasts: bool, moves: bool = True) -> Verdict:
    """The verdict about a key that FSDP2 does not have. ``prefix`` is what the keys of the place begin with.

    ``broadcasts``: FSDP2 gives all ranks the weights of rank 0 without the key as well. ``moves``: the block is FSDP1's
    today.
    """
    change = Change(removed=(setting.written,))
    if moves and setting.name == f"{prefix}use_orig_params" and not setting.is_true:
        return Verdict(setting, Level.REVIEW, *ELEMENTWISE, change)
    if moves and setting.name == f"{prefix}sync_module_states" and setting.is_true and not broadcasts:
        return Verdict(setting, Level.REVIEW, *NOT_BROADCAST, change)
    if moves and setting.name == f"{prefix}forward_prefetch" and setting.is_true:
        told = f"{setting.written} is removed: the numbers are the same, and the forward no longer gathers units early"
        return Verdict(setting, Level.REVIEW, told, AHEAD, change)
    return Verdict(setting, Level.SAFE, f"{setting.written} is removed: FSDP2 has no such setting", change=change)


def is_on(block: Block, name: str) -> bool:
    """Whether a setting is there and true."""
    found = block.get(name)
    return found is not None and found.is_true
