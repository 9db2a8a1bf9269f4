"""What became of the calls that wrap models, counted from the sources before and after a rewrite."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.leftovers.names import fsdp1
from tests.leftovers.resolve import Names, text_of

WRAPPER = "FullyShardedDataParallel"
#: The runtime functions that shard with FSDP1's arguments.
HELPERS = frozenset({"fsdp_compat.shard", "fsdp_compat.FSDP", f"fsdp_compat.{WRAPPER}"})
#: What a finding about a helper says in front of its reasons.
REASONS = re.compile(r".* FSDP1's arguments[^:]*: (.*)")
HEADINGS = ("constructor calls", "native", "helper", "kept", "fsdp_compat imports", "FSDP1 names left")


@dataclass(frozen=True)
class Constructors:
    """The calls of one checkout: all before, those with a helper and those of FSDP1 after, imports of the helpers."""

    calls: int
    helper: int
    kept: int
    imports: int
    reasons: Counter[str]

    @property
    def native(self) -> int:
        """The calls that became ``fully_shard``."""
        return self.calls - self.helper - self.kept

    def cells(self, names_left: int) -> list[str]:
        """The numbers, in the order of HEADINGS."""
        return [*map(str, (self.calls, self.native, self.helper, self.kept, self.imports, names_left))]


def constructors(
    before: Mapping[str, str], after: Mapping[str, str], findings: Iterable[Mapping[str, Any]]
) -> Constructors:
    """The calls in ``before`` and in ``after`` (path → text); ``findings`` are those of the JSON report."""
    wrapped, helped = _wrapping(before), _wrapping(after)
    return Constructors(
        calls=wrapped["fsdp1"],
        helper=helped["helper"] - wrapped["helper"],
        kept=helped["fsdp1"],
        imports=sum(bool(re.search(r"^\s*(import|from) fsdp_compat\b", text, re.M)) for text in after.values()),
        reasons=Counter(
            reason
            for finding in findings
            if finding["rule"] in ("FSDP101", "FSDP115", "FSDP116") and (said := REASONS.match(finding["message"]))
            for reason in said.group(1).split(", ")
        ),
    )


def _wrapping(sources: Mapping[str, str]) -> Counter[str]:
    """How many calls wrap a model with FSDP1, and with a helper: direct, by ``partial`` or by ``enable_wrap``."""
    trees: dict[str, ast.Module] = {}
    for path, text in sources.items():
        try:
            trees[path] = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
    names = Names(trees)
    found: Counter[str] = Counter()
    for path, tree in trees.items():
        for call in ast.walk(tree):
            for node in _wrappers(call) if isinstance(call, ast.Call) else ():
                meanings = names.meanings(path, text) if (text := text_of(node)) is not None else frozenset()
                if any(fsdp1(full) == WRAPPER for full in meanings):
                    found["fsdp1"] += 1
                elif HELPERS & meanings:
                    found["helper"] += 1
    return found


def _wrappers(call: ast.Call) -> list[ast.expr]:
    """The expressions in ``call`` that may name the class that wraps."""
    if (text_of(call.func) or "").rpartition(".")[2] == "partial":
        return call.args[:1]
    return [call.func, *(entry.value for entry in call.keywords if entry.arg == "wrapper_cls")]
