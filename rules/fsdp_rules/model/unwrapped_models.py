"""What models are before a call wraps them: with BatchNorm, which FSDP1 keeps in full precision, or on meta."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import is_none, last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.run_evidence import seen_wrap
from fsdp_rules.model.wrapping import wrapped_module
from fsdp_rules.project.batchnorm import may_have_batchnorm
from fsdp_rules.project.flow import Certainty


def has_batch_norm(call: cst.Call, file: File) -> Certainty:
    """``YES`` where a run or the code shows some; ``MAYBE`` where it is to be assumed that there is none."""
    by_code = may_have_batchnorm(file.project, file.path, file.scope(call))
    if (shown := seen_wrap(call, file)) is not None and (shown.batch_norm or by_code):
        return Certainty.YES if shown.batch_norm else Certainty.MAYBE
    return Certainty.YES if by_code else Certainty.MAYBE if "batchnorm" in file.project.flags else Certainty.NO


def may_be_on_meta(call: cst.Call, file: File) -> bool:
    """Whether a run shows such a model on the meta device, or the code does and no run shows otherwise."""
    if (shown := seen_wrap(call, file)) is not None:
        return shown.on_meta
    return file.project.may_be_on_meta(file.path, file.scope(call)) and not is_loaded(call, file)


def is_loaded(call: cst.Call, file: File) -> bool:
    """Whether what ``call`` wraps was read from a checkpoint each time, outside of a block for another device."""
    module = wrapped_module(call)
    made = [one for one in file.objects.origins(module) if one is not call] if module is not None else []
    loads = [one for one in made if not is_none(one)]
    return bool(loads) and all(
        isinstance(one, cst.Call)
        and last_name(one.func) == "from_pretrained"
        and not any(isinstance(around, cst.With) for around in file.ancestors(one))
        for one in loads
    )
