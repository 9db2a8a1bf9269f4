"""Which functions are given a text that is formed from the number of the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from fsdp_rules.fsdp1.names import expand
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.walking import walk

#: What people call the number of a process, and of its place among others that hold parts of a model.
RANK = re.compile(r"(^|_)rank(_id)?(_|$)|get_rank$|^local_rank$", re.IGNORECASE)
#: What stands in front of the number of a device in its name.
DEVICE = re.compile(r"(cuda|xpu|hpu|npu|mps|mlu|musa|cpu|privateuseone):")


def own_names(given: Iterable[str], modules: Iterable[str]) -> frozenset[str]:
    """The last names of those functions among ``given`` that may be of a project with these ``modules``."""
    parts = {part for module in modules for part in module.split(".")}
    return frozenset(name.rpartition(".")[2] for name in given if "." not in name or name.partition(".")[0] in parts)


def given_rank(nodes: Iterable[ast.AST], names: Mapping[str, str]) -> frozenset[str]:
    """The functions that a file, whose nodes are ``nodes``, gives such a text.

    By their whole dotted names where ``names``, what the file imports, has the first part, else by their last.
    """
    nodes = list(nodes)
    devices = _devices(nodes)
    forming = frozenset(id(node) for node in nodes if id(node) not in devices and any(map(_names_rank, _parts(node))))
    if not forming:
        return frozenset()
    given: set[str] = set()
    for scope in nodes:
        if isinstance(scope, ast.FunctionDef | ast.Module):
            inside = [*walk(scope)]
            texts = _texts(inside, forming)
            # What the whole file is asked for needs not be asked for again where a function has no texts of its own.
            calls = [node for node in inside if isinstance(node, ast.Call)]
            for call in calls if texts or isinstance(scope, ast.Module) else ():
                values = [*call.args, *(keyword.value for keyword in call.keywords)]
                if any(_is_formed(one, texts, forming) for one in values):
                    given.add(_called(call.func, names))
    return frozenset(given)


def _devices(nodes: Iterable[ast.AST]) -> frozenset[int]:
    """What is in the texts among ``nodes`` that name a device, as ``f"cuda:{rank}"`` does: they are no paths."""
    found: set[int] = set()
    for node in nodes:
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str() as start), ast.FormattedValue() as index]):
                found.update((id(node), id(index)) if DEVICE.fullmatch(start) else ())
            case ast.BinOp(left=ast.Constant(value=str() as start), right=ast.Call() as index):
                found.update((id(node), id(index)) if DEVICE.fullmatch(start) else ())
            case ast.BinOp(left=ast.Constant(value=str() as form), op=ast.Mod()):
                found.update((id(node),) if DEVICE.fullmatch(form.removesuffix("%d").removesuffix("%s")) else ())
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as form), attr="format")):
                found.update((id(node),) if DEVICE.fullmatch(form.partition("{")[0]) else ())
    return frozenset(found)


def _called(func: ast.expr, names: Mapping[str, str]) -> str:
    text = text_of(func)
    return expand(text, names) if text is not None and text.partition(".")[0] in names else _last(func)


def _texts(nodes: Iterable[ast.AST], forming: frozenset[int]) -> frozenset[str]:
    """The names to which one of ``nodes`` gives a text that is formed from a rank."""
    return frozenset(
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_formed(node.value, frozenset(), forming)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_formed(node: ast.expr, texts: frozenset[str], forming: frozenset[int]) -> bool:
    """Whether ``node`` is one of ``texts``, or has a node of ``forming`` in it, which puts a rank into a text."""
    if isinstance(node, ast.Name):
        return node.id in texts
    return any(id(one) in forming for one in walk(node))


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """What ``node`` puts into a text, where it forms one."""
    if isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Call) and _last(node.func) == "str":
        yield from node.args
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        yield node.right


def _names_rank(node: ast.expr) -> bool:
    return any(RANK.search(_last(one)) for one in walk(node) if isinstance(one, ast.Name | ast.Attribute))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
