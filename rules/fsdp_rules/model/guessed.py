"""What is said of an edit where nothing but the name of a method says that its subject is a sharded model."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import is_guessed
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


def as_guessed(found: Diagnosis, model: cst.BaseExpression, file: File) -> Diagnosis:
    """``found``, which is not safe where ``model`` may be anything: another object may have a method so called."""
    if found.level is not Level.SAFE or not found.edits or not is_guessed(model, file):
        return found
    assumption = f"assumes {file.code(model)} is the sharded model, for which the name of a called method speaks alone"
    return replace(found, level=Level.REVIEW, message=f"{found.message}; {assumption}")
