"""The names of the functions that the output defines in a file, which may have another meaning for each."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File

BY_SIZE = "units_by_size"
BY_POLICY = "units_of"
BY_NAME = "sharding_arguments"
BY_FIELDS = "mp_policies"
REFUSES_EARLY = "refuse_early_optimizer"
BY_INIT = "materialize_unit"
BY_RESET = "reset_unit"
IN_ORDER = "children_first"
#: How their docstrings begin, by which another run knows them.
SUMMARIES = {
    BY_SIZE: "The modules in ``module`` that hold so many parameters",
    BY_POLICY: "The modules in ``module`` that ``policy`` selects",
    BY_NAME: "The arguments of fully_shard for the sharding strategy",
    BY_FIELDS: "The MixedPrecisionPolicy of the model",
    REFUSES_EARLY: "Stop a step that would train nothing",
    BY_INIT: "Run ``init_module`` on a unit with meta tensors",
    BY_RESET: "Initialize a unit with meta tensors by reset_parameters()",
    IN_ORDER: "The modules in ``module``, each after its children",
}


def own_name(name: str, file: File) -> str:
    """``name``, with underscores where ``file`` means something else by it than the function of a former run."""
    summary = SUMMARIES[name]
    while not is_written(name, summary, file) and file.references.means_another(name, f".{name}"):
        name += "_"
    return name


def is_in_own(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is in a function that a former run has written."""
    function = file.function(node)
    summary = (function.get_docstring() if isinstance(function, cst.FunctionDef) else None) or ""
    return any(map(summary.startswith, SUMMARIES.values()))


def is_written(name: str, summary: str, file: File) -> bool:
    """Whether a former run has written the function called ``name`` whose docstring begins with ``summary``."""
    found = [entry for entry in file.nodes(cst.FunctionDef) if entry.name.value == name]
    return any((entry.get_docstring() or "").startswith(summary) for entry in found)
