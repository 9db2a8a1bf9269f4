"""How long rules are: lines of their files, docstrings and examples left out."""

from __future__ import annotations

import ast
import inspect
import statistics
from pathlib import Path

from fsdp_rules.engine.registry import all_rules

#: The longest median that there may be; it goes down with the rules.
MEDIAN = 80


def length(path: Path) -> int:
    """The lines of a rule's file that are neither empty, nor a docstring, nor one of its examples."""
    text = path.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = (
            [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
        if is_text or names in (["before"], ["after"]):
            assert isinstance(node, ast.stmt)
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(1 for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in left_out)


def lengths() -> dict[str, int]:
    """The length of each file of rules, by its name."""
    files = {Path(inspect.getfile(type(rule))) for rule in all_rules()}
    return {path.name: length(path) for path in files}


def test_the_median_rule_is_short() -> None:
    found = lengths()
    longest = sorted(found.items(), key=lambda entry: -entry[1])[:5]
    print(f"{len(found)} files of rules, median {statistics.median(found.values())} lines, longest {longest}")
    assert statistics.median(found.values()) <= MEDIAN, longest
