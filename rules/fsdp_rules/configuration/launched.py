"""What the rules about accelerate's launcher have in common: which version a block asks for, and whether it counts."""

from __future__ import annotations

from fsdp_rules.configuration.block import Block, Plain
from fsdp_rules.frameworks.table import table

ACCELERATE = "accelerate"
VERSION = "fsdp_version"
#: The form of a block that is a call in Python, where no launcher fills in what is absent.
PYTHON = "python"


def named(block: Block, key: str) -> str:
    """What ``key`` is called where the block is written."""
    return table(ACCELERATE).keys[key].argument if block.form == PYTHON else key


def said(block: Block, name: str, value: Plain) -> str:
    """A name and its value as the block's place writes them."""
    if block.form == PYTHON:
        return f"{name}={value!r}"
    return f"{name}: {str(value).lower() if isinstance(value, bool) else value}"


def is_read(block: Block) -> bool:
    """Whether the launcher reads the block: a file may have an ``fsdp_config`` and start something else."""
    return block.around.get("distributed_type") in (None, "FSDP")


def is_fsdp2(block: Block) -> bool:
    return str(block.value(VERSION)) == "2"


def is_fsdp1(block: Block) -> bool:
    """Whether the block runs FSDP1 today: accelerate's default to this day."""
    return is_read(block) and not is_fsdp2(block)


def low_precision(block: Block) -> str:
    """``bf16`` or ``fp16`` if the file says so, empty if it says ``no``, and ``unknown`` where it says nothing."""
    said = block.around.get("mixed_precision")
    if said is None:
        return "fp16" if block.around.get("fp16") else "unknown"
    # YAML reads a bare no as false.
    return "" if said is False or str(said).lower() in ("no", "none") else str(said)
