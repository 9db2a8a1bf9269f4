"""Rule for the context manager ``FSDP.state_dict_type``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import libcst as cst

from fsdp_rules.file.comments import removed_line
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.state._governing.blocks import block_assumption
from fsdp_rules.state._governing.context import is_context_call, read_context
from fsdp_rules.state._governing.entering import (
    context_items,
    entered,
    given_model,
    name_of_model,
    read_entered,
    switching,
)
from fsdp_rules.state._governing.returned import Returned, returned_by
from fsdp_rules.state._writing.context_functions import assumption_of, is_removable, naming
from fsdp_rules.state._writing.shared_options import shared_name, shared_options
from fsdp_rules.state._writing.verdict import problem_of
from fsdp_rules.state.local_state_dict import LocalStateDict
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Rebuild, Replace, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence
from fsdp_rules.verdict.what_to_test import RESUME

UNUSED = "remove it together with its imports"
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


class StateDictTypeContext(Rule):
    """FSDP.state_dict_type().

    FSDP2 has no such mode: the functions of `torch.distributed.checkpoint.state_dict` take options at each call. The
    `with` is removed, its body is kept, and each call in it gets the options of the context:

    | FSDP1 | options |
    |---|---|
    | `FULL_STATE_DICT` | `full_state_dict=True` |
    | with `offload_to_cpu=True, rank0_only=True` | `full_state_dict=True, cpu_offload=True` (only rank 0 gets it) |
    | with `offload_to_cpu=True` | the full state on every rank, each tensor moved by `.cpu()` |
    | `SHARDED_STATE_DICT` | none: the tensors are DTensors |

    A function or method that only returns the context of one type, or enters it around its `yield`, is rewritten in the
    same way, with the code that enters it. The function is removed. If other files import it, it is kept without the
    context.

    A block is `manual` if it passes the model to code this tool cannot see, if its type is only known at run time, or
    if a context manager of another file sets the type in another way.
    """

    id = "FSDP301"
    name = "state-dict-type"
    moves_together = True
    what_to_test = RESUME
    visits = (cst.With, cst.Call)
    before = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, path):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

def save(model, path):
    state = get_model_state_dict(
        model,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
    if dist.get_rank() == 0:
        torch.save(state, path)
"""

    def visit(self, node: cst.With | cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for a ``with``, and one for a call that is no context manager of a ``with`` itself."""
        function = file.function(node)
        found = returned_by(function, file) if function is not None else None
        if found is not None and is_removable(found, self.id):
            if node is found.call:
                yield _removed(found, file)
            return
        if isinstance(node, cst.With):
            yield from self._block(node, file)
        elif is_context_call(node, file) and not entered(node, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                "state_dict_type is called here but entered elsewhere, in code this tool cannot see",
                "call get_model_state_dict(model, options=StateDictOptions(...)) instead",
                claims=(node.func,),
            )

    def _block(self, block: cst.With, file: File) -> Iterator[Diagnosis]:
        items = list(context_items(block, file))
        if not items:
            yield from _switched(block, file)
            return
        problem = problem_of(block, file)
        if problem is not None:
            yield Diagnosis(
                items[0][1],
                Level.MANUAL,
                problem.message,
                problem.advice,
                claims=tuple(_references(block, file)),
                rule=LocalStateDict.id if problem.local else "",
            )
            return
        context = read_entered(items[0][1], file)
        assert context is not None
        assumption = block_assumption(block, file)
        yield Diagnosis(
            items[0][1],
            Level.REVIEW if assumption else Level.SAFE,
            sentence(context.kind.removed, assumption),
            edits=(Rebuild(block, _unwrapped(block, file)),),
            claims=tuple(call.func for _, call in items),
            consumes=context.consumes,
        )


def _removed(found: Returned, file: File) -> Diagnosis:
    """The verdict about a function that only gives the context, once no block needs it."""
    context, assumption = read_context(found.call, file), assumption_of(found)
    assert context is not None
    name = found.function.name.value
    edits: tuple[Edit, ...] = (remove(found.function),)
    message, advice = f"{name} is removed: its callers pass their own options", ""
    if naming(found):
        message, advice = f"{name} no longer sets anything: its callers pass their own options", UNUSED
        edits = (_emptied(found, file),)
    return Diagnosis(
        found.call,
        Level.REVIEW if assumption else Level.SAFE,
        sentence(message, assumption),
        advice,
        edits=edits,
        claims=tuple(_references(found.function, file)),
        consumes=context.consumes,
    )


def _emptied(found: Returned, file: File) -> Edit:
    """The function without the context, for the files that import it."""
    block = next((one for one in file.ancestors(found.call) if isinstance(one, cst.With)), None)
    if block is not None:
        return Rebuild(block, _unwrapped(block, file))
    empty = f"{file.ref('contextlib.nullcontext')}()"
    return Replace(found.call, lambda code: empty)


def _switched(block: cst.With, file: File) -> Iterator[Diagnosis]:
    for entry, call in switching(block, file):
        yield Diagnosis(
            entry,
            Level.MANUAL,
            f"{file.code(call.func)} sets the state dict type for the calls in this block, and FSDP2 has no "
            "such setting",
            "pass options to each call in it, get_model_state_dict(model, options=StateDictOptions(...)), "
            "and remove this context manager",
        )


def _references(block: cst.BaseCompoundStatement, file: File) -> Iterator[cst.CSTNode]:
    """Everything of FSDP1 in ``block``: one verdict speaks for all of it."""
    return (node for node in file.inside(block, cst.Attribute) if file.fsdp1(node) is not None)


def _unwrapped(block: cst.With, file: File) -> Callable[[cst.BaseCompoundStatement, Code], Sequence[Statement]]:
    gone = {item for item, _ in context_items(block, file)}
    named = [
        (name.value, file.code(model))
        for _, call in context_items(block, file)
        if (name := name_of_model(call, file)) is not None and (model := given_model(call, file)) is not None
    ]
    shared = shared_options(block, file)

    def build(updated: cst.BaseCompoundStatement, code: Code) -> Sequence[Statement]:
        statement = cst.ensure_type(updated, cst.With)
        lines = [f"{name} = {model}" for name, model in named if name != model]
        if shared:
            lines.append(f"{shared_name(block, file)} = {shared.removeprefix('options=')}")
        first: list[Statement] = [cst.ensure_type(cst.parse_statement(one), cst.SimpleStatementLine) for one in lines]
        kept = [item for old, item in zip(block.items, statement.items, strict=True) if old not in gone]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=statement.items[-1].comma)
            return [*first, statement.with_changes(items=kept)]
        body = statement.body
        if isinstance(body, cst.SimpleStatementSuite):
            return [*first, cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)]
        return [*first, *cast("Sequence[Statement]", body.body), *_footer(body)]

    return build


def _footer(body: cst.BaseSuite) -> list[Statement]:
    """A statement without content that hands the comments at the end of ``body`` to what follows."""
    lines = [line for line in getattr(body, "footer", ()) if line.comment is not None]
    return [removed_line(lines)] if lines else []
