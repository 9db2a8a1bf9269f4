"""The text of a MixedPrecisionPolicy, and of dictionaries that are too long for a line."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.tree import Code
from fsdp_rules.settings import LINE_LENGTH


def policy_text(fields: dict[str, cst.BaseExpression], file: File, code: Code, casts: bool = True) -> str:
    """``MixedPrecisionPolicy(...)`` for the fields of a MixedPrecision."""
    arguments = [
        f"{name}={at_margin(code(fields[name]), 4)}" for name in ("param_dtype", "reduce_dtype") if name in fields
    ]
    if "param_dtype" in fields and "reduce_dtype" not in fields:
        # FSDP1 reduces in param_dtype by default; FSDP2 does so up to torch 2.14 only.
        arguments.append(f"reduce_dtype={code(fields['param_dtype'])}")
    if not casts:
        arguments.append("cast_forward_inputs=False")
    return call_text(file.ref("torch.distributed.fsdp.MixedPrecisionPolicy"), arguments)


def read_policies(
    precision: cst.BaseExpression, policy: str, inner: str | None, held: str, file: File, code: Code
) -> list[str]:
    """What makes ``policy``, and ``inner`` for units, of a MixedPrecision that ``held`` names below the first line."""
    made = file.ref("torch.distributed.fsdp.MixedPrecisionPolicy")
    text = at_margin(code(precision))
    dtypes = [f"param_dtype={held}.param_dtype", f"reduce_dtype={held}.reduce_dtype or {held}.param_dtype"]
    lines = [] if text == held else [f"{held} = {text}"]
    lines += [f"{policy} = {made}()", f"if {held} is not None:"]
    lines += [f"    {line}" for line in f"{policy} = {call_text(made, dtypes)}".split("\n")]
    if inner is not None:
        lines.append(f"{inner} = {file.ref('dataclasses.replace')}({policy}, cast_forward_inputs=False)")
    return lines


def at_margin(text: str, margin: int = 0) -> str:
    """``text`` with the line that closes it ``margin`` columns in, and its other lines moved along."""
    first, *others = text.split("\n")
    if not others:
        return text
    closing = len(others[-1]) - len(others[-1].lstrip())
    moved = (" " * margin + line[min(closing, len(line) - len(line.lstrip())) :] for line in others)
    return "\n".join([first, *moved])


def display(entries: list[str]) -> str:
    """A dictionary on one line, or an entry to a line where that would be too long."""
    text = f"{{{', '.join(entries)}}}"
    if len(text) <= LINE_LENGTH - 24 and "\n" not in text:
        return text
    lines = (entry.replace("\n", "\n    ") for entry in entries)
    return "{\n" + "".join(f"    {entry},\n" for entry in lines) + "}"
