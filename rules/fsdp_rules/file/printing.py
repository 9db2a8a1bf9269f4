"""How a call that takes the place of a shorter one is laid out over lines."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.comments import comments
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.project.gates import NEWLINE
from fsdp_rules.settings import LINE_LENGTH

BRACKETS = (
    cst.Dict
    | cst.List
    | cst.Set
    | cst.Tuple
    | cst.DictComp
    | cst.ListComp
    | cst.SetComp
    | cst.GeneratorExp
    | cst.Subscript
)


def line_of(number: int, file: File) -> str:
    """The line with that number, from 1. A form feed ends no line for Python's parser, as it does for splitlines."""
    return NEWLINE.split(file.text)[number - 1]


def depth(call: cst.Call, file: File) -> int:
    """By how much the line of ``call`` is indented inside its own statement."""
    line = line_of(file.span(call).line, file)
    return max(0, len(line) - len(line.lstrip()) - file.span(file.statement(call)).column)


def is_embedded(call: cst.Call, file: File) -> bool:
    """Whether a bracket around ``call`` opens on its line, so that breaking the call alone would tear that line."""
    line = file.span(call).line
    for ancestor, inner in branches(call, file):
        if isinstance(ancestor, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        bracket = isinstance(ancestor, BRACKETS) and (not isinstance(ancestor, cst.Tuple) or bool(ancestor.lpar))
        if bracket and file.span(ancestor).line == line:
            return True
        if isinstance(ancestor, cst.Call) and ancestor.func is not inner and file.span(ancestor.func).end_line == line:
            return True
    return False


def line_with(text: str, call: cst.Call, unwrapped: bool, file: File) -> int:
    """The length of the line of ``call`` with ``text`` in its place; ``unwrapped``: a block around it goes."""
    span = file.span(call)
    line = line_of(span.line, file)
    rest = len(line) - span.end_column if span.end_line == span.line else 0
    return span.column - (4 if unwrapped else 0) + len(text) + rest


def call_text(function: str, arguments: list[str]) -> str:
    """A call on one line, or an argument to a line where that would be too long or an argument has several lines."""
    text = f"{function}({', '.join(arguments)})"
    if len(text) <= LINE_LENGTH and "\n" not in text:
        return text
    return f"{function}(\n" + "".join(f"{indent(argument)},\n" for argument in arguments) + ")"


def indent(text: str) -> str:
    """``text`` one level deeper."""
    return "\n".join(f"    {line}" if line else line for line in text.split("\n"))


def call_with(
    function: str, first: str, call: cst.Call, code: Code, file: File, given: Sequence[cst.Arg] | None = None
) -> str:
    """``call`` with another function and one more argument in front; its own arguments and comments are kept.

    ``given`` are those of its arguments that are kept, by default all. On as many lines as the call had: one, or one
    for each argument.
    """
    given = call.args if given is None else given
    arguments = [
        (f"{argument.keyword.value}=" if argument.keyword is not None else argument.star) + code(argument.value)
        for argument in given
    ]
    if "\n" not in file.code(call):
        return f"{function}({', '.join([first, *arguments])})"
    lines = [*comments(call.whitespace_before_args), f"{first},"]
    for text, argument in zip(arguments, given, strict=True):
        inside = comments(argument.value)
        beside = [comment for comment in comments(argument) if comment not in inside]
        lines.append("  ".join([f"{text},", *beside]))
    return f"{function}(\n" + "\n".join(f"    {line}" for line in lines) + "\n)"


def broken(function: str, parts: Sequence[str], margin: int, column: int) -> str:
    """A call of ``function`` with a line for each of ``parts``; options are broken too where they are too long.

    ``margin`` is where the call's line starts inside its statement, ``column`` where the statement itself does.
    """
    indent = " " * (margin + 4)
    lines = [f"{indent}{_fitted(part, margin + 4, column)},\n" for part in parts]
    return f"{function}(\n{''.join(lines)}{' ' * margin})"


def _fitted(part: str, margin: int, column: int) -> str:
    name, equals, value = part.partition("=") if part.startswith("options=") else ("", "", part)
    if "\n" in part or column + margin + len(part) + 1 <= LINE_LENGTH or not equals:
        return part
    call = cst.parse_expression(value)
    if not isinstance(call, cst.Call):
        return part
    module = cst.Module([])
    arguments = [module.code_for_node(argument.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for argument in call.args]
    return f"{name}={broken(module.code_for_node(call.func), arguments, margin, column)}"


def import_text(module: str, names: Sequence[str], long: bool = False) -> str:
    """The statement that imports ``names``, one to a line if it was ``long`` or would be."""
    text = f"from {module} import {', '.join(names)}"
    if (long and len(names) > 1) or len(text) > LINE_LENGTH:
        text = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
    return text


def alias_text(alias: cst.ImportAlias) -> str:
    """One name of an import, as it is spelled there."""
    name = alias.evaluated_name
    return f"{name} as {alias.evaluated_alias}" if alias.evaluated_alias else name
