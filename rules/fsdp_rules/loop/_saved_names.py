"""Names of sharded models' parameters and modules that a program writes to a file as they are."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.member_names import Named, names_in, names_of
from fsdp_rules.model.program_wraps import has_units, sources_of, wraps_of
from fsdp_rules.model.sharded import sharded_names, wrapper_of
from fsdp_rules.model.wrap_given import flattened
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: Functions that write what they are given to a file.
SAVES = frozenset({"dump", "save", "save_file", "savez", "savez_compressed"})
PREFIXED = "FSDP1's names, which are saved here, have _fsdp_wrapped_module. before each unit; FSDP2's do not"
FLAT = "FSDP1's names, which are saved here, are one _flat_param per unit; FSDP2's are the names of all parameters"
ADVICE = "use the new names in code that reads this file, and in files saved earlier"


def about_saved(call: cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``call``, which saves names, where FSDP1's were others."""
    if last_name(call.func) not in SAVES:
        return
    for argument in call.args:
        for named in (*names_in(argument.value, file), *names_of(argument.value, file)):
            held = _had_prefix(named, file)
            if held is not Certainty.NO:
                flat = not named.is_gathered and flattened(_whole(named.model, file), file) is Certainty.YES
                said = FLAT if flat else PREFIXED
                if held is Certainty.YES:
                    yield Diagnosis(call, Level.MANUAL, said, ADVICE)
                else:
                    yield Diagnosis(call, Level.REVIEW, f"if this model is sharded: {said}", ADVICE)
                return


def _had_prefix(named: Named, file: File) -> Certainty:
    """How sure it is that a name had FSDP1's prefix.

    While full parameters are gathered the wrapper itself takes it off. The module in it has none of its own in front.
    """
    model, file = named.origin or (None, file)
    whole = _whole(model, file)
    if whole is model or whole is None:
        return Certainty.NO if named.is_gathered else named.held
    held = named.held if named.model is None else sharded_names(whole, file)
    return held if has_units(wraps_of(whole, file), sources_of(file)) else Certainty.NO


def _whole(model: cst.BaseExpression | None, file: File) -> cst.BaseExpression | None:
    """The wrapped model, where ``model`` is the module in it; else ``model``."""
    if model is None:
        return None
    return wrapper_of(model, file) or model
