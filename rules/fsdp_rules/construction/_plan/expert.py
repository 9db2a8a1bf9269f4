"""Units other than FSDP1's, on request: those that an expert would choose, or those of a recorded step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from fsdp_rules.construction._plan.plan import Layout, ShardPlan
from fsdp_rules.construction._plan.policy_test import IS_OF_CLASS, of_others
from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text, indent
from fsdp_rules.file.tree import Code
from fsdp_rules.project.value_facts import Ends
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

ADVICE = "compare it with FSDP1's units by fsdp-migrate tune; --layout keep writes those"
_KEPT = "the units are FSDP1's whatever --layout says: {}"
_AT_RUN_TIME = "fsdp_compat.shard makes them at run time"
BY_TUNE = "fsdp-migrate tune works out a layout from one recorded step"


def plan_layout(call: cst.Call, plan: ShardPlan, file: File) -> Iterator[Diagnosis]:
    """Choose the units that the settings ask for, and say what is another than FSDP1's."""
    planned = file.settings.planned
    if not file.settings.other_layout:
        return
    reason = _unlike(plan, file) or ("" if planned is not None else _unknown(plan))
    if reason:
        yield _kept(call, reason)
        return
    if planned is not None:
        plan.layout, plan.reshard_after_forward = Layout(planned=planned), None
        same = planned.order or "no sum changes"
        message = f"{planned.name}: {planned.costs}"
        yield Diagnosis(call, Level.REVIEW, message, f"{same[0].upper()}{same[1:]}. Measure it, or use --layout keep.")
        return
    ends = _ends(call, plan, file)
    plan.layout = Layout(ends.before, ends.after)
    units = [", ".join(each) for each in (ends.before, ends.after) if each]
    gathers, scatters = len(units) + ends.left - 2, len(units) + ends.left - 1
    if not units:
        gathers, scatters = -1, 0
    apart = f", {' and '.join(f'[{unit}]' for unit in units)} are units" if units else ""
    costs = f"{_more(gathers, 'gather')} and {_more(scatters, 'scatter')} a step"
    message = f"the last unit is kept whole after forward{apart}: {costs}, same sums"
    yield Diagnosis(call, Level.REVIEW, message, f"assumes the last unit by definition runs last; {ADVICE}")


def kept_layout(call: cst.Call, layout: list[Diagnosis]) -> list[Diagnosis]:
    """What is said of a call that calls the helper after all, in place of ``layout``."""
    return [replace(verdict, message=_KEPT.format(_AT_RUN_TIME), advice=BY_TUNE) for verdict in layout]


def _kept(call: cst.Call, reason: str) -> Diagnosis:
    return Diagnosis(call, Level.INFO, _KEPT.format(reason), BY_TUNE)


def _more(number: int, what: str) -> str:
    several = f"{abs(number)} {what}{'' if abs(number) == 1 else 's'}"
    return f"as many {what}s" if not number else f"{several} {'more' if number > 0 else 'fewer'}"


def _unlike(plan: ShardPlan, file: File) -> str:
    """Why FSDP1's units alone can be written."""
    if plan.helper:
        return _AT_RUN_TIME
    if plan.on_meta:
        return "each is initialised before it is sharded"
    if plan.each is not None or plan.spread is not None or plan.strategy is not None:
        return "their arguments are only known at run time"
    if plan.ignored is not None:
        return "some parameters are ignored"
    if len(file.project.wraps) > 1 and file.settings.planned is not None:
        return "several calls wrap models, and one was recorded"
    return "the parameters are not sharded" if plan.mesh in ("no_shard", "replicated") else ""


def _unknown(plan: ShardPlan) -> str:
    """Why no better units are known than FSDP1's."""
    if not plan.selector:
        return "no policy says what the blocks of the model are"
    if plan.units is not None:
        return "their sizes are only known at run time"
    return "SHARD_GRAD_OP gathers each unit once" if plan.reshard_after_forward is False else ""


def _ends(call: cst.Call, plan: ShardPlan, file: File) -> Ends:
    """What the model runs before and after its blocks, where classes of the project alone are those."""
    assert plan.selector is not None
    classes = file.project.parts.classes
    own = IS_OF_CLASS.fullmatch(plan.selector) and all(last_name(node) in classes for node in plan.selector_nodes)
    if not own or plan.prefetches:
        return Ends()
    return file.project.values.apart.get((file.path, file.span(call).line), Ends())


def lines_of_layout(plan: ShardPlan, root: str, arguments: list[str], file: File, code: Code) -> list[str]:
    """The statements that shard the units of ``root``."""
    assert plan.layout is not None
    fully_shard = file.ref("torch.distributed.fsdp.fully_shard")
    if plan.layout.planned is not None:
        return _filled(plan.layout.planned.lines, plan, root, arguments, file)
    unit = plan.unit or file.fresh(plan.module, "module", "submodule", "unit")
    units = file.fresh(plan.module, "units", "fsdp_units", "sharded_units")
    assert plan.selector is not None
    test = plan.selector.format(module=unit, **{f"n{i}": code(n) for i, n in enumerate(plan.selector_nodes)})
    test = test if plan.below_root else of_others(test, unit, root)
    last = f"reshard_after_forward={unit} is not {units}[-1]"
    lines = [
        f"{units} = [{unit} for {unit} in {root}.modules() if {test}]",
        f"for {unit} in reversed({units}):",
        indent(call_text(fully_shard, [unit, last, *arguments])),
    ]
    for names, own in ((plan.layout.before, []), (plan.layout.after, ["reshard_after_forward=False"])):
        if names:
            modules = [f"{root}.{name}" for name in names]
            listed = modules[0] if len(modules) == 1 else f"[{', '.join(modules)}]"
            lines.append(call_text(fully_shard, [listed, *own, *arguments]))
    # What an embedding gives its weights does not depend on them.
    return [*lines, *(f"{root}.{name}.set_unshard_in_backward(False)" for name in plan.layout.before[:1])]


def lines_behind(plan: ShardPlan, root: str, file: File) -> list[str]:
    """The statements after the root's call: which units gather others early."""
    planned = plan.layout.planned if plan.layout is not None else None
    return [] if planned is None else _filled(planned.behind, plan, root, [], file)


def _filled(lines: Iterable[str], plan: ShardPlan, root: str, arguments: list[str], file: File) -> list[str]:
    names = {
        "root": root,
        "fully_shard": file.ref("torch.distributed.fsdp.fully_shard"),
        "unit": file.fresh(plan.module, "module", "submodule", "unit"),
        "units": file.fresh(plan.module, "units", "fsdp_units", "sharded_units"),
        "place": file.fresh(plan.module, "place", "number", "position"),
        "arguments": "".join(f", {argument}" for argument in arguments),
    }
    return [line.format(**names) for line in lines]
