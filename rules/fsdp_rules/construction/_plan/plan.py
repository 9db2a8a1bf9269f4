"""What one ``FSDP(...)`` call means, before any code is written: plain data that each argument's rule adds to."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Edit


@dataclass
class Precision:
    """A MixedPrecision: the texts of its fields, and the name of the variable that holds it, if one does."""

    fields: dict[str, cst.BaseExpression]
    variable: str | None = None
    definition: cst.CSTNode | None = None

    def flag(self, name: str, default: bool) -> bool | None:
        """The boolean field ``name``; None when it is not a literal."""
        value = self.fields.get(name)
        if value is None:
            return default
        if isinstance(value, cst.Name) and value.value in ("True", "False"):
            return value.value == "True"
        return None


@dataclass
class Device:
    """Where ``device_id`` puts the model. ``kind`` is ``cuda``, ``cpu``, ``unknown`` or ``unset``."""

    kind: str = "unset"
    value: cst.BaseExpression | None = None
    is_device: bool = False
    set_current: bool = False


@dataclass
class ShardPlan:
    """One wrapped model. Rules fill it in; :mod:`fsdp_rules.construction._plan.render` turns it into code.

    ``selector`` is a test on the loop variable ``{module}`` (called ``unit`` where the test names it) that picks the
    units under the root, None for the root alone. ``mesh`` is ``None`` (FSDP2's default), ``given`` (``mesh_value``),
    ``hybrid`` or ``no_shard``.
    ``helper`` collects the reasons why only ``fsdp_compat.shard`` can do this call, ``helper_edits`` what has to change
    beside the name of the function then.
    """

    call: cst.Call
    arguments: dict[str, cst.BaseExpression]
    selector: str | None = None
    selector_nodes: tuple[cst.BaseExpression, ...] = ()
    unit: str | None = None
    reshard_after_forward: bool | None = None
    mesh: str | None = None
    mesh_value: cst.BaseExpression | None = None
    precision: Precision | None = None
    offload: bool = False
    device: Device = field(default_factory=Device)
    sync: cst.BaseExpression | None = None
    root: bool = True
    consumed: list[tuple[cst.CSTNode, str]] = field(default_factory=list)
    helper: list[str] = field(default_factory=list)
    helper_edits: list[Edit] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    def consume(self, statement: cst.CSTNode, name: str) -> None:
        """The assignment of ``name`` in ``statement`` is not needed for this call any more."""
        self.consumed.append((statement, name))

    def consume_value(self, node: cst.BaseExpression, file: File) -> None:
        """Note that the assignments behind the plain name ``node`` may go once nothing reads them."""
        while isinstance(node, cst.Name):
            found = file.binding(node)
            if found is None or found.value is None:
                return
            self.consume(found.statement, node.value)
            node = found.value
