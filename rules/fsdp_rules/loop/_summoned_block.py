"""What a ``with summon_full_params(...)`` does with its model, and its form without a helper where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.file.expressions import bind, call_of, is_repeatable, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.nothing import Chosen, chosen, entered_where, is_nothing
from fsdp_rules.file.rank_tests import asks_for_rank
from fsdp_rules.file.stored_contexts import Entered, entered_by_name, is_rebound
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._summoned_parameters import Uses, uses_of
from fsdp_rules.loop.gathered import may_be_gathered
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.program_wraps import has_units, sources_of, wraps_of
from fsdp_rules.model.resharding import reshard_before
from fsdp_rules.model.wrap_given import IGNORED, wrap_given
from fsdp_rules.project.flow import Certainty
from fsdp_rules.verdict.diagnosis import Edit, Rebuild, ReplaceStatement, remove

PARAMETERS = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
Statements = Sequence[cst.SimpleStatementLine | cst.BaseCompoundStatement]
Iteration = cst.For | cst.CompFor


@dataclass
class Native:
    """What takes the block's place: edits, what they do, and what is to be known of them."""

    done: str
    notes: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)


@dataclass
class _Block:
    """A ``with``, which of its items summons, and what it is given.

    ``choice`` is on what that hangs, ``stored`` are the statements that store the context, or (``lazily``) what makes
    it: the first of them, and those that store none.
    """

    statement: cst.With
    position: int
    model: cst.BaseExpression
    given: dict[str, cst.BaseExpression]
    file: File
    choice: Chosen
    stored: tuple[cst.Assign, ...] = ()
    lazily: bool = False

    def flag(self, name: str, default: bool) -> bool | None:
        """A literal argument; None where it is not one."""
        return literal_bool(self.given[name]) if name in self.given else default


def native(call: cst.Call, methods: Callable[[str], bool], file: File) -> Native | str:
    """What takes the place of the block that ``call`` opens, or why only a helper does.

    ``methods`` says of a method by its name whether it computes, as ``generate`` does.
    """
    block = _block(call, file)
    if isinstance(block, str):
        return block
    if wrap_given(block.model, file).gives("ignored", *IGNORED) is not Certainty.NO:
        return "ignored parameters are plain tensors, which have no full_tensor()"
    loops: list[tuple[Iteration, str]] = []
    runs: list[str] = []
    for place in _mentions(block):
        method = _method(place, file)
        iteration = file.parent(file.parent(method) or method) if method is not None else None
        if method is None:
            return f"{file.code(place)} is used as a whole in the block"
        if method.attr.value in ("parameters", "named_parameters") and isinstance(iteration, Iteration):
            loops.append((iteration, method.attr.value))
        elif known_as("enters_modules", method, file) and has_units(wraps_of(block.model, file), sources_of(file)):
            return f"{method.attr.value} calls a method of a unit instead of the unit, which gathers nothing"
        elif methods(method.attr.value):
            runs.append(method.attr.value)
        else:
            return f"this tool cannot see what {method.attr.value} does with the parameters"
    if (loops and runs) or not (loops or runs):
        return "the block does more than read parameters or generate"
    return _run(block, runs[0], file) if runs else _looped(block, loops, file)


def _block(call: cst.Call, file: File) -> _Block | str:
    found = chosen(call, file)
    if found is None:
        return "its context is stored, chosen or passed on"
    choice, item = found
    statement = file.parent(item) if isinstance(item, cst.WithItem) else None
    held = entered_by_name(call, file) if statement is None else None
    if isinstance(statement, cst.With) and isinstance(item, cst.WithItem) and item.asname is None:
        position = list(statement.items).index(item)
    elif held is not None and _is_all(held, call, item, file):
        statement, position = held.block, held.position
    else:
        return "its context is stored, chosen or passed on"
    arguments = bind(call, PARAMETERS)
    if arguments is None or "module" not in arguments or not is_repeatable(arguments["module"]):
        return "its arguments are only known at run time"
    block = _Block(statement, position, arguments["module"], arguments, file, choice)
    if held is not None and is_rebound(held, block.model, file):
        return "its context is stored, and the model's name was reassigned since"
    if held is not None:
        own = [entry for entry in held.made if entry is file.statement(call)]
        block.stored = (*own, *(entry for entry in held.made if entry not in own))
        block.lazily = held.called
    if block.flag("rank0_only", False) is not False or block.flag("with_grads", False) is not False:
        return "only rank 0 gets the parameters, or gradients are gathered too"
    if None in (block.flag("writeback", True), block.flag("offload_to_cpu", False), block.flag("recurse", True)):
        return "its arguments are only known at run time"
    others = [entry for place, entry in enumerate(statement.items) if place != position]
    if any("summon_full_params" in file.code(entry.item) for entry in others):
        return "two models are gathered at once"
    return block


def _is_all(held: Entered, call: cst.Call, around: cst.CSTNode | None, file: File) -> bool:
    """Whether the choice of ``call``, in ``around``, is all that the block of ``held`` may enter beside nothing."""
    own = file.statement(call)
    for statement in held.made:
        if statement is not own and (held.called or not is_nothing(statement.value, file, called=True)):
            return False
    if not held.called:
        return around is own
    return isinstance(around, cst.Lambda) and not around.params.params and file.parent(around) is own


def _mentions(block: _Block) -> list[cst.BaseExpression]:
    """The places in the block that name the model, ``.module`` included."""
    file, text = block.file, block.file.code(block.model)
    found: list[cst.BaseExpression] = []
    for kind in (cst.Name, cst.Attribute, cst.Subscript):
        for node in file.inside(block.statement.body, kind):
            parent = file.parent(node)
            if file.code(node) != text or (isinstance(parent, cst.Attribute) and parent.attr is node):
                continue
            inner = isinstance(parent, cst.Attribute) and parent.attr.value == "module"
            found.append(parent if inner and isinstance(parent, cst.Attribute) else node)
    return found


def _method(place: cst.BaseExpression, file: File) -> cst.Attribute | None:
    """The method of ``place`` that is called there."""
    parent = file.parent(place)
    if not isinstance(parent, cst.Attribute) or parent.value is not place:
        return None
    return parent if call_of(parent, file) is not None else None


def _run(block: _Block, method: str, file: File) -> Native | str:
    if block.flag("offload_to_cpu", False):
        return "it computes with parameters on the CPU"
    found = Native(f"unshard() gathers the root's parameters for {method}")
    if "mixed_precision" in file.project.flags:
        if block.flag("recurse", True):
            return "FSDP1 computes in full precision here, and unshard() gathers param_dtype"
        found.notes.append("the root computes in param_dtype here (FSDP1: in full precision)")

    early = bool(block.stored) and not block.lazily and _hangs(block)
    known = _test(block)
    test = known or (_flag(block, early) if _hangs(block) else "")

    def build(statement: cst.BaseCompoundStatement, code: Code) -> Statements:
        body = cst.IndentedBlock(_without(statement, block.position))
        lines = [f"{code(block.model)}.{call}()" for call in ("unshard", "reshard")]
        first, last = (_statement(f"if {test}:\n    {line}" if test else line, file) for line in lines)
        is_new = test and not early and not known
        above = [_statement(f"{test} = {entered_where(block.choice, code)}", file)] if is_new else []
        return [*above, first, cst.Try(body=body, finalbody=cst.Finally(cst.IndentedBlock([last])))]

    found.edits.append(Rebuild(block.statement, build))
    if early:
        found.edits.append(
            ReplaceStatement(block.stored[0], lambda code: f"{test} = {entered_where(block.choice, code)}")
        )
        found.edits += [ReplaceStatement(one, lambda code: f"{test} = False") for one in block.stored[1:]]
    else:
        found.edits += [remove(one) for one in block.stored]
    return found


def _hangs(block: _Block) -> bool:
    """Whether the parameters are only gathered at times."""
    return block.choice.condition is not None or len(block.stored) > 1


def _flag(block: _Block, early: bool) -> str:
    """A new name for whether they are."""
    file = block.file
    around = file.function(block.statement)
    stored = {
        file.code(file.statement(entry)).partition("=")[0]
        for entry in (file.inside(around, cst.Attribute) if around is not None and early else ())
        if entry.attr.value == "summon_full_params"
    }
    # Two that are stored may wait at a time.
    several = (f"{file.code(block.stored[0].targets[0].target)}_gathers",) if len(stored) > 1 else ()
    return file.fresh(block.stored[0] if early else block.statement, *several, "gathers", "gathers_parameters")


def _test(block: _Block) -> str:
    """The name that a block hangs on, which may be read again behind it; "" where it hangs on another expression."""
    choice, file = block.choice, block.file
    is_early = bool(block.stored) and not block.lazily
    if not isinstance(choice.condition, cst.Name) or choice.otherwise or is_early:
        return ""
    name = choice.condition
    bound = [entry.statement for entry in file.bindings.found.get((file.scope(name), name.value), ())]
    return "" if any(block.statement in file.ancestors(one) for one in bound) else name.value


def _looped(block: _Block, loops: Sequence[tuple[Iteration, str]], file: File) -> Native | str:
    if _hangs(block):
        return "its context is stored, chosen or passed on"
    if not block.flag("recurse", True):
        return "recurse=False leaves the parameters of inner units sharded"
    if any(asks_for_rank(entry.test, file) for entry in file.inside(block.statement, cst.If)):
        return "only some ranks read parameters, and full_tensor() needs all ranks"
    for call in file.inside(block.statement.body, cst.Call):
        own = any(_method(place, file) in file.inside(call, cst.Attribute) for place in _mentions(block))
        if not own and value_of(call, file).parameters is not Certainty.NO:
            return f"{file.code(call)} also returns parameters that it gathers"
    found = Native("full_tensor() gathers each parameter where the block reads it")
    writes = block.flag("writeback", True) is True
    changes = False
    for loop, iterated in loops:
        uses = uses_of(loop, iterated, writes, bool(block.flag("offload_to_cpu", False)), file)
        if not isinstance(uses, Uses):
            return uses
        found.edits += uses.edits
        found.notes += [note for note in uses.notes if note not in found.notes]
        changes |= uses.writes
        if uses.writes:
            found.done = (
                "each rank writes its own shard of a parameter, and full_tensor() gathers the values that are read"
            )
    if may_be_gathered(block.statement, block.model, changes, file):
        found.edits.append(reshard_before(block.statement, block.model, file))
    found.edits.append(Rebuild(block.statement, lambda statement, code: _without(statement, block.position)))
    found.edits += [remove(one) for one in block.stored]
    return found


def _without(statement: cst.BaseCompoundStatement, position: int) -> Statements:
    """The statements of a ``with``, in one of its other items where it has any."""
    block = cst.ensure_type(statement, cst.With)
    items = [entry for place, entry in enumerate(block.items) if place != position]
    if items:
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return [block.with_changes(items=items)]
    if isinstance(block.body, cst.IndentedBlock):
        body = list(block.body.body)
        return [entry for entry in body if isinstance(entry, cst.SimpleStatementLine | cst.BaseCompoundStatement)]
    small = [entry for entry in block.body.body if isinstance(entry, cst.BaseSmallStatement)]
    return [cst.SimpleStatementLine(small)]


def _statement(text: str, file: File) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    return cst.parse_statement(text, config=file.module.config_for_parsing)
