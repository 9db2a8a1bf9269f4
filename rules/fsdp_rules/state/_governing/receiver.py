"""Whether the receiver of ``state_dict`` or ``load_state_dict`` is a sharded model, where no ``with`` says so."""

from __future__ import annotations

import re
from functools import cached_property

import libcst as cst

from fsdp_rules.file.expressions import element_text, last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.model.sharded import sharded, sharded_owner
from fsdp_rules.project.project import INNER, Certainty
from fsdp_rules.state._governing.calls import StateCall
from fsdp_rules.state._governing.sticky import is_set_before

#: Other things than models that have a state.
NO_MODEL = re.compile(r"optim|sched|scaler", re.IGNORECASE)


class Receiver:
    """The receiver of one call."""

    def __init__(self, state: StateCall, file: File) -> None:
        self.state = state
        self.file = file

    @cached_property
    def is_set_before(self) -> bool:
        """Whether set_state_dict_type was given it, which shows what it is."""
        return is_set_before(self.state.call, self.state.model, self.file)

    @property
    def is_model(self) -> bool:
        """Whether it is a sharded model, or a part of one, for all that is known."""
        return self.is_set_before or self._seen[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be true for that."""
        return () if self.is_set_before else self._seen[1]

    @property
    def is_sharded(self) -> bool:
        """Whether it is one by more than its name."""
        return self.is_model and not self.is_a_mere_name

    @cached_property
    def is_a_mere_name(self) -> bool:
        """Whether nothing but the name of an attribute says that the receiver is an FSDP1 model.

        An attribute of ``self`` may come from a base class in another file, and is not meant.
        """
        model, file = self.state.model, self.file
        root = (dotted(model) or "self").partition(".")[0]
        return (
            isinstance(model, cst.Attribute)
            and root not in ("self", "cls")
            and sharded(model, file).certainty is Certainty.MAYBE
            and not self.is_set_before
            and not file.project.touches(file.path)
            and not any(canonical(target) is not None or "fsdp" in target.lower() for target in file.aliases.values())
        )

    @cached_property
    def _seen(self) -> tuple[bool, tuple[str, ...]]:
        """Whether it is an FSDP1 model, or a part of one, and what has to be true for that."""
        model, file = self.state.model, self.file
        element = dotted(model) is None and element_text(model) is not None
        if isinstance(model, cst.Subscript) and _is_replaced(model, file):
            return False, ()
        name = file.code(model) if element or _is_chosen_attribute(model) else dotted(model)
        if name is None or name in ("self", "cls"):
            return False, ()
        if isinstance(model, cst.Attribute) and model.attr.value == "_orig_mod":
            model = model.value
        held = sharded(model, file).certainty
        if held is Certainty.MAYBE and NO_MODEL.search(name.rpartition(".")[2]):
            return False, ()
        if held is not Certainty.NO:
            return True, (f"assumes {name} is the sharded model",) if held is Certainty.MAYBE else ()
        model = self.state.model
        part = sharded_owner(model, file) is not None or (
            isinstance(model, cst.Attribute) and _is_unwrapped(model.value, file)
        )
        return part, (f"assumes {name} is part of the sharded model",) if part else ()


def _is_chosen_attribute(model: cst.BaseExpression) -> bool:
    """Whether ``model`` is an attribute whose name the program works out: ``getattr(trainer, name)``."""
    return isinstance(model, cst.Call) and last_name(model.func) == "getattr" and len(model.args) in (2, 3)


def _is_unwrapped(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is, or is a part of, the ``module`` of what may be a sharded model."""
    while isinstance(node, cst.Attribute):
        if f".{node.attr.value}" in INNER and sharded(node.value, file).certainty is not Certainty.NO:
            return True
        node = node.value
    return False


def _is_replaced(element: cst.Subscript, file: File) -> bool:
    """Whether the function of ``element`` gives it to a call that takes its place, as a wrap does, only further down.

    What else is put there, such as None or its ``.module``, says nothing of what the element was before.
    """
    text, line = file.code(element), file.span(element).line
    lines = [
        file.span(entry).line
        for entry in file.nodes(cst.Assign)
        if file.scope(entry) == file.scope(element)
        and any(file.code(target.target) == text for target in entry.targets)
        and isinstance(entry.value, cst.Call)
        and any(file.code(argument.value) == text for argument in entry.value.args)
    ]
    return bool(lines) and min(lines) >= line
