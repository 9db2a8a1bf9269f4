"""What one ``FSDP(...)`` call means, before any code is written: plain data that each argument's rule adds to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.construction._plan.leaves import Leaf
from fsdp_rules.construction._plan.policy_test import PolicyTest
from fsdp_rules.construction._plan.strategies import Strategies
from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.settings import PlannedUnits
from fsdp_rules.verdict.diagnosis import Edit


@dataclass
class Precision:
    """A MixedPrecision: the texts of its fields, and the variable (or attribute) that holds it, if one does.

    ``optional``: at run time there may be none. ``buffers_like`` is the field that the buffers' dtype always equals,
    where the variable can hold different ones. ``chosen`` is what the variable is given by the statements themselves,
    where the call chooses by a condition. ``value`` is a MixedPrecision whose fields are read at run time,
    ``plain``: by the statements themselves, since it casts what it does by default.
    """

    fields: dict[str, cst.BaseExpression]
    variable: str | None = None
    optional: bool = False
    buffers_like: str | None = None
    chosen: cst.BaseExpression | None = None
    value: cst.BaseExpression | None = None
    plain: bool = False

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
    """Where ``device_id`` puts the model. ``kind`` is ``cuda``, ``cpu``, ``unknown`` or ``unset``.

    One that is ``unset`` may have a ``value`` that becomes the current device where it is not None.
    """

    kind: str = "unset"
    value: cst.BaseExpression | None = None
    is_device: bool = False
    set_current: bool = False


@dataclass(frozen=True)
class Layout:
    """Units other than FSDP1's: the last one by definition is not resharded after the forward, or ``planned`` ones.

    ``before`` and ``after`` are attributes of the model that are one unit each.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    planned: PlannedUnits | None = None


@dataclass
class ShardPlan:
    """One wrapped model. Rules fill it in; :mod:`fsdp_rules.construction._plan.render` turns it into code.

    ``selector`` is a test on the loop variable ``{module}`` (called ``unit`` where the test names it) that picks the
    units under the root, None for the root alone; ``below_root``: it never picks the root. ``units`` is the list of the
    units where no test selects them. ``mesh`` is ``None`` (FSDP2's default), ``given`` (``mesh_value`` is the mesh,
    or ``mesh_name`` the variable that the branches above put it in),
    ``group`` or ``replicated`` (``mesh_value`` is the group, None with ``optional_group`` for all ranks), ``groups``
    (``groups`` are those to shard and to replicate over), ``hybrid`` or ``no_shard``. ``strategy`` is set where one of
    several is chosen at run time. ``offload_if`` is the test on which parameters are offloaded, ``offload_value`` the
    policy that is chosen at run time. ``on_meta``: the model may be on the meta device, and each unit is initialised
    before it is sharded, by ``param_init_fn`` or reset_parameters; ``draws``: that may draw random numbers.
    ``ignored`` are the parameters that are not sharded, or (``ignores_modules``) the modules that hold them.
    ``prefetches``: each unit gathers the next one early in forward.
    ``helper`` collects the reasons why only ``fsdp_compat.shard`` can do this call, ``helper_edits`` what has to change
    beside the name of the function then. ``taken`` are the values that come from definitions which are rewritten too.
    ``guarded``: an optimizer of unknown origin may hold the parameters from before.
    ``each`` is the function that gives a module the arguments of its unit, None for no unit, with what it can give.
    ``layout`` makes units other than FSDP1's.
    ``spread`` is the dictionary that has the arguments, ``taken_out`` the statements that take others out of it.
    """

    call: cst.Call
    arguments: dict[str, cst.BaseExpression]
    selector: str | None = None
    selector_nodes: tuple[cst.BaseExpression, ...] = ()
    unit: str | None = None
    below_root: bool = False
    units: PolicyTest | None = None
    each: tuple[cst.BaseExpression, Contract] | None = None
    reshard_after_forward: bool | None = None
    mesh: str | None = None
    mesh_value: cst.BaseExpression | None = None
    mesh_name: str | None = None
    optional_group: bool = False
    groups: tuple[cst.BaseExpression, cst.BaseExpression] | None = None
    strategy: Strategies | None = None
    precision: Precision | None = None
    offload: bool = False
    offload_if: cst.BaseExpression | None = None
    offload_value: cst.BaseExpression | None = None
    device: Device = field(default_factory=Device)
    sync: cst.BaseExpression | None = None
    on_meta: bool = False
    param_init_fn: cst.BaseExpression | None = None
    draws: bool = True
    ignored: cst.BaseExpression | None = None
    ignores_modules: bool = False
    root: bool = True
    guarded: bool = False
    prefetches: bool = False
    consumed: list[tuple[cst.CSTNode, str]] = field(default_factory=list)
    helper: list[str] = field(default_factory=list)
    helper_edits: list[Edit] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    taken: list[tuple[cst.CSTNode, Slot]] = field(default_factory=list)
    layout: Layout | None = None
    spread: str | None = None
    taken_out: list[str] = field(default_factory=list)

    @property
    def has_units(self) -> bool:
        """Whether statements shard units below the root."""
        return bool(self.selector) or self.layout is not None

    @property
    def module(self) -> cst.BaseExpression:
        """The model that the call is given."""
        return self.arguments["module"]

    def held(self, value: cst.BaseExpression, leaf: Leaf, names: tuple[str, ...], file: File) -> cst.BaseExpression:
        """Take what the definition of ``leaf`` gives ``value``; a name of it where it may not be evaluated again."""
        self.take(leaf)
        return self.named(value, names, file)

    def named(self, value: cst.BaseExpression, names: tuple[str, ...], file: File) -> cst.BaseExpression:
        """``value``, or a name of it where it may not be evaluated again."""
        if is_repeatable(value):
            return value
        name = file.fresh(self.call, *names)
        self.taken_out.append(f"{name} = {file.code(value)}")
        return cst.Name(name)

    def select(
        self, test: str, nodes: Iterable[cst.BaseExpression], once: Mapping[cst.CSTNode, str], file: File
    ) -> None:
        """Select the units by ``test`` of the ``nodes``, of which those of ``once`` are computed before all units."""
        names = {node: file.fresh(self.call, name, f"{name}_") for node, name in once.items()}
        self.taken_out += [f"{name} = {file.code(node)}" for node, name in names.items()]
        self.selector = test
        self.selector_nodes = tuple(cst.Name(names[node]) if node in names else node for node in nodes)

    def take(self, leaf: Leaf) -> None:
        """Note that the call needs FSDP2's form of what the definition of ``leaf`` gives."""
        if leaf.slot is not None:
            self.taken.append((leaf.node, leaf.slot))

    def take_slot(self, node: cst.CSTNode, slot: Slot) -> None:
        """Note that the call needs FSDP2's form of what ``slot`` gives ``node``."""
        self.taken.append((node, slot))

    def consume(self, statement: cst.CSTNode, name: str) -> None:
        """The assignment of ``name`` in ``statement`` is not needed for this call any more."""
        self.consumed.append((statement, name))

    def consume_value(self, node: cst.BaseExpression, file: File) -> None:
        """Note that the assignments behind the plain name ``node`` may go once nothing reads them."""
        for statement, name in file.bindings.behind(node):
            self.consume(statement, name)
