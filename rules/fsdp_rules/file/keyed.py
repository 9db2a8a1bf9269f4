"""Arguments of a call and entries of a dictionary by their names: some go, others get new texts, and more are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from fsdp_rules.file.expressions import literal_text
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import line_with
from fsdp_rules.file.tree import Code
from fsdp_rules.settings import LINE_LENGTH

Item = cst.Arg | cst.DictElement


def key_of(item: cst.Arg | cst.BaseDictElement) -> str | None:
    """The name of an argument, or the text of a dictionary's key; None where it has none that the file says."""
    if isinstance(item, cst.Arg):
        return item.keyword.value if item.keyword else None
    return literal_text(item.key) if isinstance(item, cst.DictElement) else None


def keyed_call(
    call: cst.Call, texts: Mapping[str, str | None], names: Mapping[str, str], code: Code, file: File
) -> str:
    """As :func:`call_with`, an argument a line where the call does not fit on one."""
    text = call_with(call, texts, names, code, file)
    if "\n" in text or line_with(text, call, False, file) <= LINE_LENGTH:
        return text
    made = cst.ensure_type(cst.parse_expression(text), cst.Call)
    parts = [_printed(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in made.args]
    return f"{_printed(made.func)}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def call_with(call: cst.Call, texts: Mapping[str, str | None], names: Mapping[str, str], code: Code, file: File) -> str:
    """``call`` with other arguments; those that stay keep their comments and layout.

    ``texts`` are the new values by name, None to drop the argument; a name that the call does not have is added.
    ``names`` are new names for arguments. ``code`` gives the values that stay, edits in them already made.
    """
    args = [_rewritten(arg, texts, names, code, file) for arg in call.args if not _is_dropped(arg, texts)]
    known = {key_of(arg) for arg in call.args}
    added = [
        cst.Arg(cst.parse_expression(text), cst.Name(name), equal=_equal())
        for name, text in texts.items()
        if text is not None and name not in known
    ]
    space = call.whitespace_before_args
    if not args and not isinstance(space, cst.ParenthesizedWhitespace):
        space = cst.SimpleWhitespace("")
    func = cst.parse_expression(code(call.func))
    made = _joined(call.args, args, added, space)
    return _printed(call.with_changes(func=func, args=made, whitespace_before_args=space))


def keyed_dict(
    node: cst.Dict, texts: Mapping[str, str | None], names: Mapping[str, str], code: Code, file: File
) -> str:
    """``node`` with other entries, as :func:`keyed_call` does it; new keys get the quotes of the first one."""
    elements = [element for element in node.elements if isinstance(element, cst.DictElement)]
    kept = [_rewritten(one, texts, names, code, file) for one in elements if not _is_dropped(one, texts)]
    known = {key_of(element) for element in elements}
    first = next((one.key.quote for one in elements if isinstance(one.key, cst.SimpleString)), '"')
    added: list[Item] = [
        cst.DictElement(cst.SimpleString(f"{first}{name}{first}"), cst.parse_expression(text))
        for name, text in texts.items()
        if text is not None and name not in known
    ]
    return _printed(node.with_changes(elements=_joined(elements, kept, added, node.lbrace.whitespace_after)))


def _is_dropped(item: Item, texts: Mapping[str, str | None]) -> bool:
    key = key_of(item)
    return key is not None and key in texts and texts[key] is None


def _rewritten(item: Item, texts: Mapping[str, str | None], names: Mapping[str, str], code: Code, file: File) -> Item:
    key = key_of(item) or ""
    text = texts.get(key)
    changes: dict[str, object] = {}
    if text is None and code(item.value) != file.code(item.value):
        text = code(item.value)
    if text is not None:
        changes["value"] = cst.parse_expression(text)
    if key in names:
        changes["keyword" if isinstance(item, cst.Arg) else "key"] = _named(item, names[key])
    return item.with_changes(**changes) if changes else item


def _named(item: cst.Arg | cst.DictElement, name: str) -> cst.BaseExpression:
    if isinstance(item, cst.Arg):
        return cst.Name(name)
    quote = item.key.quote if isinstance(item.key, cst.SimpleString) else '"'
    return cst.SimpleString(f"{quote}{name}{quote}")


def _joined(
    before: Sequence[Item], kept: Sequence[Item], added: Sequence[Item], first: cst.BaseParenthesizableWhitespace
) -> list[Item]:
    """``kept`` and ``added`` with commas between them, and at the end what the last of ``before`` had there."""
    items = [*kept, *added]
    if not items or not before:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return [item.with_changes(comma=comma) for item in items[:-1]] + items[-1:]
    last = before[-1]
    between = _between(before, first)
    made: list[Item] = []
    for index, item in enumerate(items):
        is_last = index == len(items) - 1
        if is_last and item is not last:
            item = item.with_changes(comma=_ending(last, item))
            if isinstance(item, cst.Arg) and isinstance(last, cst.Arg):
                item = item.with_changes(whitespace_after_arg=_bare(last.whitespace_after_arg))
        elif not is_last and (item is last or isinstance(item.comma, cst.MaybeSentinel)):
            item = item.with_changes(comma=_within(item, between))
            if isinstance(item, cst.Arg):
                item = item.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
        made.append(item)
    return made


def _between(before: Sequence[Item], first: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """The whitespace between two items: that of the call or dictionary, without its comments."""
    found = before[0].comma.whitespace_after if len(before) > 1 and isinstance(before[0].comma, cst.Comma) else first
    return _bare(found) if isinstance(found, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")


def _bare(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """``space`` without comments."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return cst.ParenthesizedWhitespace(indent=space.indent, last_line=space.last_line)
    return space


def _within(item: Item, between: cst.BaseParenthesizableWhitespace) -> cst.Comma:
    """The comma of an item that was the last one: its comment is kept on its line."""
    own = item.comma.whitespace_after if isinstance(item.comma, cst.Comma) else None
    if own is None and isinstance(item, cst.Arg):
        own = item.whitespace_after_arg
    if isinstance(own, cst.ParenthesizedWhitespace) and isinstance(between, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=between.with_changes(first_line=own.first_line))
    return cst.Comma(whitespace_after=between)


def _ending(last: Item, item: Item) -> cst.Comma | cst.MaybeSentinel:
    """What follows the new last item: what followed the old one, but for its comment."""
    if not isinstance(last.comma, cst.Comma):
        return cst.MaybeSentinel.DEFAULT
    space = last.comma.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace):
        own = item.comma.whitespace_after if isinstance(item.comma, cst.Comma) else None
        line = own.first_line if isinstance(own, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()
        return last.comma.with_changes(whitespace_after=space.with_changes(first_line=line))
    return last.comma


def _equal() -> cst.AssignEqual:
    return cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _printed(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
