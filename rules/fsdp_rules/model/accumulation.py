"""In which dtype a program's models accumulate gradients that they do not reduce."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from fsdp_rules.file.file import File
from fsdp_rules.model.program_wraps import sources_of
from fsdp_rules.model.wrap_arguments import parsed
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.walking import walk

#: The fields by their places.
FIELDS = ("param_dtype", "reduce_dtype")
DTYPE = re.compile(r"\btorch\.(bfloat16|float16|half|float32|float)\b")
#: The first torch in which fsdp_compat accumulates in the dtype of the reduction as well.
AS_REDUCED = (2, 15)


def accumulates_wider(file: File) -> bool:
    """Whether a MixedPrecision of the program reduces in another dtype than it computes in, so that FSDP2 rounds less.

    Where the dtypes are only known at run time, this is not.
    """
    return any(_is_wider(source) for source in sources_of(file) if b"MixedPrecision" in source)


@lru_cache(maxsize=32)
def _is_wider(source: bytes) -> bool:
    for call in walk(parsed(source)):
        if isinstance(call, ast.Call) and (text_of(call.func) or "").rpartition(".")[2] == "MixedPrecision":
            given = dict(zip(FIELDS, call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg in FIELDS}
            computed, reduced = (_dtypes(given.get(name)) for name in FIELDS)
            if computed and reduced and computed.isdisjoint(reduced | {"float", "float32"}):
                return True
    return False


def _dtypes(value: ast.expr | None) -> set[str]:
    return set(DTYPE.findall(ast.unparse(value))) if value is not None else set()
