"""What the patterns of ``match`` bind."""

from __future__ import annotations

import ast

from fsdp_rules.ir import operations as ops
from fsdp_rules.ir.lowered_expressions import Expressions


def capture(pattern: ast.pattern, value: int, into: Expressions) -> None:
    """Bind the names of ``pattern`` to what they are where it fits ``value``."""
    match pattern:
        case ast.MatchAs():
            if pattern.pattern is not None:
                capture(pattern.pattern, value, into)
            if pattern.name is not None:
                into.bind(pattern.name, value)
        case ast.MatchOr():
            for one in pattern.patterns:
                capture(one, value, into)
        case ast.MatchSequence():
            for place, one in enumerate(pattern.patterns):
                to = into.new()
                into.add(ops.GetItem(to, value, into.constant(place)))
                capture(one, to, into)
        case ast.MatchMapping():
            for key, one in zip(pattern.keys, pattern.patterns, strict=True):
                to = into.new()
                into.add(ops.GetItem(to, value, into.value(key)))
                capture(one, to, into)
        case ast.MatchClass():
            for name, one in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True):
                to = into.new()
                into.add(ops.GetAttribute(to, value, name))
                capture(one, to, into)
            for one in pattern.patterns:
                capture(one, into.element(value), into)
        case ast.MatchStar(name=str() as name):
            into.bind(name, value)
